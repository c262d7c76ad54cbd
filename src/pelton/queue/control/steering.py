"""Steering a queue from any process: jobs cancelled, moved, withdrawn; pauses, limits, weights; removal.

**Ending jobs that nobody holds, moving them to another queue, emptying a queue and removing it.** **Moving jobs to
another queue.** In a store file, the job is withdrawn here and stored there in one transaction. On a cluster it is
stored there first, at a place that follows from its id, so that a move that was interrupted can be repeated; then it is
ended here, under the condition that it has not ended otherwise.

**Steering a queue: jobs are cancelled, what is not to start is paused, limits and weights are set, from any process.**
**Cancelling jobs and pausing what is not to start, from any process.** A job that nobody holds is cancelled on the
spot. In a store file its message is withdrawn and its outcome stored in one transaction. On a cluster the outcome is
stored on condition that the job has none, and then its message is removed: the first outcome counts, because workers
store theirs under the same condition. A job that runs is ended by the worker that holds it, which hears of an order
(``model/orders.py``); should that worker die, the next one does it.

**Draining a queue: its workers take nothing more, and the caller learns when nobody holds a job.** A drained queue is a
paused one. What workers hold is read from a store file, which lists it. Servers do not tell a job that is held from one
that waits for another attempt; there each worker tells how many it holds, at once when it hears of the pause and again
when it holds none, so what counts is what it has told after the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    ApiError,
    ConfigError,
    ConsumerNotFoundError,
    ConsumerPause,
    JobNotMovedError,
    MessageNotFoundError,
    MsgWithdraw,
    NotFoundError,
    Outgoing,
    QueueInUseError,
    StoredMessage,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
    rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.queue.backing.scan import deliveries, orders_in
from pelton.queue.enqueue.announcing import announce_again
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.limits.recall import Recall
from pelton.queue.model.checks import checked_id, checked_text
from pelton.queue.model.flow_records import told_to_flow
from pelton.queue.model.limits import JobLimit, scope_of
from pelton.queue.model.naming import encode_key, encode_tenant
from pelton.queue.model.orders import Order, TenantWeight, to_cancel
from pelton.queue.model.records import as_first, job_id_in
from pelton.queue.model.states import ENDINGS, Outcome, WorkerInfo, decode_envelope
from pelton.runtime import Deadline

if TYPE_CHECKING:
    from pelton.queue.define.handle import JobHandle
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.enqueue.enqueuer import Enqueuer
    from pelton.queue.inspect.views import FoundJob, JobViews
    from pelton.queue.model.options import JobFilter
    from pelton.queue.model.states import JobInfo

# In a store file they share a transaction, on servers they are written side by side.
_IN_FILE, _ON_SERVERS = 1000, 64
_DELETE_FAILED: Final = 10057
_encode: Final = msgspec.json.Encoder().encode


class Withdrawal:
    """Ends jobs of one queue that nobody holds."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._is_file = MsgWithdraw in queue.backend.planning.own_verbs
        # How many jobs to cancel at once.
        self.at_once = _IN_FILE if self._is_file else _ON_SERVERS

    async def cancel(self, stored: StoredMessage, info: JobInfo, reason: str) -> bool:
        """End a job that nobody holds as cancelled; return False if somebody does, or if it is not there any more."""
        return await self.replace(stored, info, f"it was cancelled: {reason}" if reason else "it was cancelled")

    async def cancel_all(self, jobs: Sequence[FoundJob], reason: str) -> int:
        """Do the same for many jobs, in a store file in one transaction; return how many were cancelled."""
        if not self._is_file:
            return sum(await asyncio.gather(*(self.cancel(job.stored, job.info, reason) for job in jobs)))
        error = f"it was cancelled: {reason}"
        return await self._withdraw({job.stored.seq: self._ending(job.stored, job.info, error) for job in jobs})

    async def _withdraw(self, messages: dict[int, tuple[Outgoing, ...]]) -> int:
        request = MsgWithdraw(stream=self._queue.names.jobs, messages=messages)
        return len((await self._queue.backend.call(request)).withdrawn)

    async def replace(self, stored: StoredMessage, info: JobInfo, error: str, others: Sequence[Outgoing] = ()) -> bool:
        """The same with the error that its outcome names; ``others`` are stored in the same transaction.

        That is only possible in a store file: on servers they are not stored.
        """
        *told, record = self._ending(stored, info, error)
        if self._is_file:
            return await self._withdraw({stored.seq: (*others, *told, record)}) > 0
        try:
            if told:
                # First, so that the flow learns of it even if this is interrupted: it looks for the outcome itself.
                await self._queue.backend.publish_batch(told)
            first = as_first(self._queue.names, record)
            await self._queue.backend.publish(first.subject, first.data, first.headers)
        except WrongLastSequenceError:
            return False
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        try:
            await stream.delete_message(stored.seq)
        except ApiError as refused:
            # A worker that had taken it has found the outcome, and removed it.
            if not isinstance(refused, MessageNotFoundError) and refused.err_code != _DELETE_FAILED:
                raise
        # A worker may have taken it meanwhile: its outcome is refused, so it need not go on.
        await self._order(to_cancel(self._queue.names, info.id, error, ended=True))
        return True

    async def tell(self, job_id: str, reason: str) -> None:
        """Have the worker that holds a job cancel it."""
        await self._order(to_cancel(self._queue.names, job_id, reason, ended=False))

    async def _order(self, order: Outgoing) -> None:
        await self._queue.backend.publish(order.subject, order.data, order.headers)

    def _told(self, stored: StoredMessage, outcome: Outcome) -> tuple[Outgoing, ...]:
        """Return what tells the flow of a job that it has ended."""
        with suppress(*UNREADABLE):
            if (place := decode_envelope(stored.data).flow) is not None:
                return (told_to_flow(self._queue.names, place, outcome),)
        return ()

    def _ending(self, stored: StoredMessage, info: JobInfo, error: str) -> tuple[Outgoing, ...]:
        """Return what the end of a job stores, its outcome last."""
        outcome = self._outcome(info, stored, error)
        record = Outgoing(self._queue.names.ending_subject("cancelled", info.id), _encode(outcome))
        return (*self._told(stored, outcome), record)

    def _outcome(self, info: JobInfo, stored: StoredMessage, error: str) -> Outcome:
        return Outcome(
            id=info.id,
            job=info.job,
            state="cancelled",
            key=info.key,
            attempt=info.attempt,
            worker="",
            enqueued_at=stored.time_ns,
            started_at=0,
            finished_at=self._queue.clock.now(),
            error=error,
        )


class Mover:
    """Moves jobs of one queue to another one, whose jobs ``there`` enqueues."""

    def __init__(
        self, queue: QueueContext, views: JobViews, other: QueueContext, there: Enqueuer, steering: Steering
    ) -> None:
        if other.backend is not queue.backend or other.name == queue.name:
            raise ConfigError(
                f"queue {queue.name!r}: jobs can be moved to another queue of the same opening, not to {other.name!r}"
            )
        self._queue = queue
        self._views = views
        self._other = other
        self._there = there
        # Of the other queue.
        self._steering = steering
        self._withdrawal = Withdrawal(queue)

    async def move(self, job_id: str) -> JobHandle[Any]:
        """Move a job; return its new handle. Raises JobNotFoundError, JobNotMovedError, ConfigError."""
        info = await self._views.get(job_id)
        stored = await self._views.stored(job_id)
        if info.state in ENDINGS or stored is None or await self._may_run(stored, info):
            raise JobNotMovedError(self._queue.name, job_id, "running" if info.state == "pending" else info.state)
        message = self._message(stored, info)
        handle = self._there.handle(job_id_in(message.data, 0), info.job)
        error = f"it was moved to queue {self._other.name!r} as job {handle.id}"
        if MsgWithdraw in self._queue.backend.planning.own_verbs:
            moved = await self._replace(stored, info, error, message)
        else:
            await self._publish(message, info)
            moved = await self._withdrawal.replace(stored, info, error)
            if not moved:
                await self._steering.cancel(handle.id, reason="it was not moved after all")
        if not moved:
            raise JobNotMovedError(self._queue.name, job_id, (await self._views.get(job_id)).state)
        await announce_again(self._other, handle, info.job, info.key, info.due if info.state == "scheduled" else 0)
        return handle

    async def _may_run(self, stored: StoredMessage, info: JobInfo) -> bool:
        entry = (await self._queue.stats.underway()).get(stored.seq)
        if entry is not None or not self._queue.names.is_free(stored.subject):
            return entry is not None and not entry.waits
        return (await self._queue.stats.unlisted()).may_have(self._queue.names.lane(stored.subject), stored.seq)

    async def _replace(self, stored: StoredMessage, info: JobInfo, error: str, message: Outgoing) -> bool:
        try:
            return await self._withdrawal.replace(stored, info, error, (message,))
        except WrongLastSequenceError:
            raise self._is_duplicate(info.id) from None

    async def _publish(self, message: Outgoing, info: JobInfo) -> None:
        try:
            await self._queue.backend.publish(message.subject, message.data, message.headers)
        except WrongLastSequenceError as refused:
            found = await (await self._queue.jet.stream(self._other.names.jobs)).get_message(refused.seq or 0)
            if job_id_in(found.data, 0) != job_id_in(message.data, 0):
                raise self._is_duplicate(info.id) from None
            # An earlier call was interrupted.

    def _is_duplicate(self, job_id: str) -> JobNotMovedError:
        return JobNotMovedError(self._queue.name, job_id, f"a duplicate of a job of queue {self._other.name!r}")

    def _message(self, stored: StoredMessage, info: JobInfo) -> Outgoing:
        try:
            envelope = decode_envelope(stored.data)
        except UNREADABLE as error:
            raise ConfigError(f"queue {self._queue.name!r}: {info.id!r} is no valid job: {error}") from None
        if envelope.flow is not None:
            raise ConfigError(f"queue {self._queue.name!r}: {info.id!r} is a job of a flow, which stays in its queue")
        form = JobMessage(self._other.names, envelope.job, exclusive=self._other.exclusive)
        plain = msgspec.structs.replace(envelope, due=info.due, timetable=None)
        is_delayed = headers.first(stored.hdrs, headers.DELAY) is not None
        left = max((info.due - self._queue.time.now()) / 1e9, 0.0) if is_delayed else None
        return form.moved(plain, self._queue.name, info.id, self._queue.names.leaf_of(stored.subject), left)


# --- emptying a queue, and removing it

_REASON: Final = "the queue was purged"


class Removal:
    """Removes the jobs of one queue, or all of it."""

    def __init__(self, queue: QueueContext, views: JobViews) -> None:
        self._queue = queue
        self._views = views
        self._withdrawal = Withdrawal(queue)

    async def purge(self, wanted: JobFilter) -> int:
        """Cancel the jobs that are stored now and that no worker holds; return how many that were."""
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        last, unlisted = (await stream.info()).state.last_seq, await self._queue.stats.unlisted()
        ended = 0
        batch: list[FoundJob] = []
        async with aclosing(self._views.jobs(wanted)) as jobs:
            async for found in jobs:
                if found.stored.seq > last:
                    break
                is_free = self._queue.names.is_free(found.stored.subject)
                may_run = is_free and unlisted.may_have(self._queue.names.lane(found.stored.subject), found.stored.seq)
                if found.is_taken or may_run:
                    continue
                batch.append(found)
                if len(batch) == self._withdrawal.at_once:
                    ended += await self._withdrawal.cancel_all(batch, _REASON)
                    batch = []
        return ended + (await self._withdrawal.cancel_all(batch, _REASON) if batch else 0)

    async def delete(self, *, force: bool) -> None:
        """Remove all streams of the queue that are left. Raises QueueInUseError if jobs run."""
        if not force and (running := await self._running()):
            raise QueueInUseError(self._queue.name, running)
        names = self._queue.names
        # The jobs last: should this be interrupted, the queue is still there and can be deleted again.
        for name in (*(side for side, _ in names.sides), names.jobs):
            with suppress(StreamNotFoundError):
                await self._queue.jet.delete_stream(name)

    async def _running(self) -> int:
        now = self._queue.clock.now()
        try:
            underway, unlisted = await self._queue.stats.underway(), await self._queue.stats.unlisted()
        except NotFoundError:
            # An earlier call has deleted it, or was interrupted.
            return 0
        # Those that were handed back, or wait for another attempt, do not run.
        held = sum(not entry.waits and (not entry.due or entry.due > now) for entry in underway.values())
        return held + unlisted.number


_FOR_EVER_NS: Final = 100 * 365 * 86_400 * 10**9
_TRIES: Final = 20
_ALL: Final = "pause.all"


class Steering:
    """Steers the jobs of one queue, and finds out what became of them."""

    def __init__(self, queue: QueueContext, views: JobViews) -> None:
        self._queue = queue
        self._views = views
        self._withdrawal = Withdrawal(queue)
        self._recall = Recall(queue)

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id. Raises JobNotFoundError, ConfigError."""
        return await self._views.get(job_id)

    async def outcome(self, job_id: str, limit: float | None) -> Outcome | None:
        """Wait until a job has ended, for ``limit`` seconds at most; None if it has not ended by then."""
        return await self._views.outcome(job_id, limit)

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job; return False if it had ended otherwise. Raises JobNotFoundError, ConfigError."""
        checked_id(self._queue.name, job_id)
        for _ in range(_TRIES):
            info = await self._views.get(job_id)
            if info.state in ENDINGS:
                return info.state == "cancelled"
            if info.state == "running":
                await self._withdrawal.tell(job_id, reason)
                return True
            stored = await self._views.stored(job_id)
            if stored is not None and await self._withdrawal.cancel(stored, info, reason):
                return True
            # A worker has taken it, or it fell due.
        await self._withdrawal.tell(job_id, reason)
        return True

    async def pause(self, key: str | None, job: str | None) -> None:
        """Start no more jobs, of a key or a name if given, until :meth:`resume`."""
        await self._pause(key, job, over=False)

    async def resume(self, key: str | None, job: str | None) -> None:
        """Start jobs again that :meth:`pause` has held up."""
        await self._pause(key, job, over=True)

    async def _pause(self, key: str | None, job: str | None, *, over: bool) -> None:
        if key is not None:
            encode_key(key)
            await self._pause_some(Order(pause_key=key, over=over))
        if job is not None:
            name = checked_text(f"queue {self._queue.name!r}: job", job)
            await self._pause_some(Order(pause_job=name, over=over))
        if key is None and job is None:
            # The consumers stop everybody who takes jobs from them, the order those who take keys on a cluster.
            await self._order(Order(pause_all=True, over=over), _ALL)
            until = "" if over else rfc3339(self._queue.clock.now() + _FOR_EVER_NS)
            stream = await self._queue.jet.stream(self._queue.names.jobs)
            names = self._queue.names
            for of_tenants in (False, True):
                # Those of tenants come and go, and a new one is paused if the others are: so these are first.
                for name in await stream.consumer_names():
                    if names.is_tenant_consumer(name) == of_tenants:
                        with suppress(ConsumerNotFoundError):
                            request = ConsumerPause(stream=stream.name, name=name, pause_until=until)
                            await self._queue.backend.call(request)

    async def pause_all(self) -> int:
        """Pause the queue, and say so again when nobody can take jobs; return when that was stored, wall nanoseconds.

        What a worker tells after it has heard it again is what it still holds.
        """
        await self.pause(None, None)
        await self._order(Order(pause_all=True), _ALL)
        control = await self._queue.jet.stream(self._queue.names.control)
        return (await control.get_last_message(self._queue.names.order_subject(_ALL))).time_ns

    async def _pause_some(self, order: Order) -> None:
        [scope] = order.pause_scopes
        await self._order(order, scope)
        if order.over:
            await self._recall.all_of(scope, None)

    async def _order(self, order: Order, subject: str) -> None:
        await self._queue.backend.publish(self._queue.names.order_subject(subject), _encode(order))


_worker: Final = msgspec.json.Decoder(WorkerInfo).decode
_LOOK_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2)


class Drain:
    """Drains one queue."""

    def __init__(self, queue: QueueContext, steering: Steering) -> None:
        self._queue = queue
        self._steering = steering

    async def drain(self, limit: float | None) -> None:
        """Pause the queue, and return when no job is held. Raises TimeoutError after ``limit`` seconds."""
        clock = self._queue.clock
        deadline = Deadline(clock, limit)
        since = await self._steering.pause_all()
        looks = 0
        while held := await self._held(since):
            if deadline.is_over:
                raise TimeoutError(
                    f"queue {self._queue.name!r}: after {limit:g} s, {held} are still held; it stays paused"
                )
            pause, left = _LOOK_S[min(looks, len(_LOOK_S) - 1)], deadline.left
            await clock.sleep(pause if left is None else min(pause, left))
            looks += 1

    async def _held(self, since: int) -> str:
        """Return what is held, in words; empty if nothing is. ``since``: when the pause was stored."""
        if MsgWithdraw in self._queue.backend.planning.own_verbs:
            now, underway = self._queue.clock.now(), await self._queue.stats.underway()
            # Neither those that wait for another attempt, nor those whose worker has died.
            held = sum(not entry.waits and (not entry.due or entry.due > now) for entry in underway.values())
            return f"{held} jobs" if held else ""
        names = self._queue.names
        holding = 0
        async with aclosing(deliveries(await self._queue.jet.stream(names.running), names.worker_subject("*"))) as told:
            async for record in told:
                worker = _worker(record.data)
                # One that has died is forgotten after some time.
                holding += record.time_ns <= since or bool(worker.held or worker.running)
        return f"jobs of {holding} workers" if holding else ""


# --- setting the limits of a queue, which every worker hears of, and listing them


class Limiting:
    """The limits of one queue."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._recall = Recall(queue)

    async def set(self, limit: JobLimit) -> None:
        """Set a limit, which replaces one of the same scope; jobs that were put off for that one are recalled."""
        await self._tell(Order(limit=limit), limit.scope)
        await self._recall.all_of(limit.scope, limit.text)

    async def remove(self, job: str, per_key: bool) -> bool:
        """Take a limit away; return whether there was one."""
        scope = scope_of(job, per_key)
        found = [limit for limit in await self.all() if limit.scope == scope]
        for limit in found:
            await self._tell(Order(limit=limit, over=True), scope)
        if found:
            await self._recall.all_of(scope, None)
        return bool(found)

    async def all(self) -> list[JobLimit]:
        """Return all limits, in the order in which they were set."""
        control = await self._queue.side_to_read(self._queue.names.control)
        orders = await orders_in(control, self._queue.names.limit_subject(">"))
        return [order.limit for order in orders if order.limit is not None and not order.over]

    async def _tell(self, order: Order, scope: str) -> None:
        await self._queue.backend.publish(self._queue.names.limit_subject(scope), _encode(order))


# --- setting the weights of a queue's tenants, which every worker hears of

_HEAVIEST: Final = 1_000


class Weighing:
    """The weights of one queue's tenants."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue

    async def set(self, tenant: str, weight: int) -> None:
        """Set the weight of a tenant. Raises ConfigError."""
        token = encode_tenant(tenant)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _HEAVIEST:
            raise ConfigError(
                f"queue {self._queue.name!r}: the weight of tenant {tenant!r} is {weight!r}; it must be a whole number "
                f"from 1 to {_HEAVIEST}"
            )
        order = Order(weight=TenantWeight(tenant, weight), over=weight == 1)
        await self._queue.backend.publish(self._queue.names.weight_subject(token), _encode(order))
