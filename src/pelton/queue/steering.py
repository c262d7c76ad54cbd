"""Steering a queue from any process: jobs cancelled, moved, withdrawn; pauses, limits, weights; removal.

**Cancelling.** A job that nobody holds is cancelled on the spot. In a store file its message is withdrawn and its
outcome stored in one transaction. On a cluster the outcome is stored on condition that the job has none, and then its
message is removed: the first outcome counts, because workers store theirs under the same condition. A job that runs is
ended by the worker that holds it, which hears of an order (``model/limits.py``); should that worker die, the next one
does it.

**Moving to another queue.** In a store file, the job is withdrawn here and stored there in one transaction. On a
cluster it is stored there first, at a place that follows from its id, so that a move that was interrupted can be
repeated; then it is ended here, under the condition that it has not ended otherwise.

**Draining.** A drained queue is a paused one. What workers hold is read from a store file, which lists it. Servers do
not tell a job that is held from one that waits for another attempt; there each worker tells how many it holds, at once
when it hears of the pause and again when it holds none, so what counts is what it has told after the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    ConfigError,
    ConsumerNotFoundError,
    ConsumerPause,
    JobEndedError,
    JobNotFoundError,
    JobNotMovedError,
    NotFoundError,
    Outgoing,
    QueueInUseError,
    QueueNotFoundError,
    StoredMessage,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
    rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.times import Seconds
from pelton.api.tracing import Replacement
from pelton.jet.stream import last_of
from pelton.queue.enqueuer import announce_again, signal_message
from pelton.queue.job_message import JobMessage, ResultCodec
from pelton.queue.model.limits import JobLimit, Order, Rate, TenantWeight, job_limit, scope_of, to_cancel
from pelton.queue.model.naming import CANCEL, decode_key, encode_key, encode_tenant, token_of
from pelton.queue.model.options import checked_id, checked_text, job_filter, seconds
from pelton.queue.model.records import job_id_in, told_to_flow
from pelton.queue.model.states import ENDINGS, Outcome, WorkerInfo, decode_envelope, decode_step, outcome_without_worker
from pelton.queue.registry import ALL_LISTED
from pelton.queue.run.calls import awaited_calls
from pelton.queue.run.parking import Recall
from pelton.queue.run.undo import has_registered
from pelton.queue.scan import deliveries, stored_messages
from pelton.queue.views import JobViews, first_of, limits_of
from pelton.runtime import Deadline, end_tasks

if TYPE_CHECKING:
    from pelton.queue.enqueuer import Enqueuer
    from pelton.queue.job import JobHandle
    from pelton.queue.model.states import JobInfo
    from pelton.queue.registry import QueueContext

_AT_ONCE: Final = 1000
_FIRST: Final = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"})
_STOP_TTL: Final = headers.encode({headers.TTL: "1h"})
_encode: Final = msgspec.json.Encoder().encode


_TRIES: Final = 20


class Steering(JobViews):
    """Ends jobs of one queue that nobody holds, has others cancelled, and finds out what became of all."""

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job, and what it waits for; return False if it had ended otherwise.

        Raises JobNotFoundError, ConfigError.
        """
        if is_cancelled := await self._cancel(job_id, reason):
            # Afterwards, or their ends would have it go on; a call that was interrupted can be repeated.
            await self.cancel_called(job_id)
            await self._sweep(job_id)
        return is_cancelled

    async def _sweep(self, job_id: str) -> None:
        """Remove what a job has left, and what was sent to it, unless a worker is about to end it."""
        running, traces = await self._queue.side_to_read(self._queue.names.running), self._queue.names.traces_of(job_id)
        if await last_of(running, traces) is not None and await self.find_message(job_id) is None:
            await running.purge(filter=traces)

    async def cancel_called(self, job_id: str) -> None:
        """Cancel the jobs that a job has called and that are not to go on without it."""
        running = await self._queue.side_to_read(self._queue.names.running)
        async with aclosing(awaited_calls(running, self._queue.names, job_id)) as calls:
            async for call in calls:
                with suppress(JobNotFoundError, QueueNotFoundError):
                    is_here = call.queue == self._queue.name
                    jobs = self if is_here else Steering(await self._queue.other(call.queue))
                    await jobs.cancel(call.id, reason=f"job {job_id}, which has called it, has ended")

    async def _cancel(self, job_id: str, reason: str) -> bool:
        checked_id(self._queue.name, job_id)
        for _ in range(_TRIES):
            info = await self.get(job_id)
            if info.state in ENDINGS:
                return info.state == "cancelled"
            if await self.order_undo(info, reason):
                return True
            if info.state == "running":
                await self._tell(job_id, reason)
                return True
            stored = await self.find_message(job_id)
            # One that has registered something since is looked at again.
            with suppress(WrongLastSequenceError):
                if stored is not None and await self._end(stored, info, reason):
                    return True
            # A worker has taken it, or it fell due.
        await self._tell(job_id, reason)
        return True

    async def send(self, job_id: str, name: str, value: object = None, *, msg_id: str = "") -> bool:
        """Send a signal to a job; return False if one with this ``msg_id`` was sent before.

        Raises JobEndedError, JobNotFoundError, ConfigError.
        """
        signal = signal_message(self._queue, job_id, name, value, msg_id)
        if await self.find_message(job_id) is None:
            raise JobEndedError(self._queue.name, job_id, (await self.get_ended(job_id)).state)
        try:
            await self._queue.backend.publish(signal.subject, signal.data, signal.headers)
        except WrongLastSequenceError:
            return False
        return True

    async def event(self, job_id: str, name: str, kind: Any = Any, *, timeout: Seconds | None = None) -> Any:
        """Return what a job has published last under a name, once it has."""
        what = f"event {name!r} of job {checked_id(self._queue.name, job_id)}"
        limit = None if timeout is None else seconds(f"{what}: timeout", timeout)
        if await self.find_message(job_id) is None:
            # Or it is not known.
            await self.get_ended(job_id)
        names, running = self._queue.names, await self._queue.side_to_read(self._queue.names.running)
        subject = names.memory_subject(job_id, "event", token_of(checked_text(f"{what}: its name", name)), ">")
        spawn = self._queue.runtime.spawn
        told = spawn(first_of(running, [subject], self._queue.clock, limit), f"pelton {what}")
        ended = spawn(self.outcome(job_id, limit), f"pelton {what}")
        try:
            await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and (outcome := ended.result()) is not None:
                if (value := (outcome.events or {}).get(name)) is None:
                    raise JobEndedError(self._queue.name, job_id, outcome.state)
            elif (message := await told) is None:
                raise TimeoutError(f"{what} of queue {self._queue.name!r} was not published within {limit:g} s")
            else:
                # Removed, if the job has ended since.
                value = decode_step((await last_of(running, subject) or message).data).result
        finally:
            await end_tasks(told, ended)
        return ResultCodec(what, kind).decode(value)

    async def events(self, job_id: str) -> AsyncGenerator[tuple[str, Any]]:
        """Iterate over what a job publishes, with the names, until it ends."""
        what = f"events of job {checked_id(self._queue.name, job_id)}"
        if await self.find_message(job_id) is None:
            # Or it is not known.
            await self.get_ended(job_id)
        names, running = self._queue.names, await self._queue.side_to_read(self._queue.names.running)
        prefix, seq = names.memory_subject(job_id, "event", ""), 0
        spawn, given = self._queue.runtime.spawn, dict[str, bytes]()
        ended = spawn(self.outcome(job_id, None), f"pelton {what}")
        try:
            while True:
                has_ended = ended.done()
                async with aclosing(stored_messages(running, f"{prefix}>", seq + 1)) as stored:
                    async for one in stored:
                        name, value = (
                            decode_key(one.subject.removeprefix(prefix).partition(".")[0]),
                            decode_step(one.data),
                        )
                        seq, given[name] = one.seq, bytes(value.result)
                        yield name, msgspec.json.decode(value.result)
                if has_ended:
                    break
                told = spawn(first_of(running, [f"{prefix}>"], self._queue.clock, None, seq), f"pelton {what}")
                try:
                    await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await end_tasks(told)
            # What was removed before it was read.
            outcome = await ended
            for name, last in (outcome.events or {} if outcome is not None else {}).items():
                if given.get(name) != bytes(last):
                    yield name, msgspec.json.decode(last)
        finally:
            await end_tasks(ended)

    async def order_undo(self, info: JobInfo, reason: str) -> bool:
        """Have a worker cancel a job that has something to undo; return False if it has nothing."""
        if not await has_registered(self._queue, info.id):
            return False
        await self._tell(info.id, reason)
        return True

    async def _tell(self, job_id: str, reason: str) -> None:
        """Have the worker that holds a job cancel it; should it wait by then, it is recalled."""
        order = to_cancel(self._queue.names, job_id, reason, ended=False)
        await self._queue.backend.publish(order.subject, order.data, order.headers)
        subject = self._queue.names.memory_subject(job_id, "signal", CANCEL, "1")
        with suppress(WrongLastSequenceError):
            # Told before: who gets that does not need another one.
            await self._queue.backend.publish(subject, reason.encode(), _FIRST)

    async def _end(self, stored: StoredMessage, info: JobInfo, reason: str) -> int:
        """End a job that nobody holds as cancelled; raises WrongLastSequenceError if it has something to undo."""
        names = self._queue.names
        if names.is_later(stored.subject) or (info.state == "pending" and not info.attempt):
            return await self.end_all(((stored, info),), reason)
        block = {
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: names.memory_subject(info.id, "undo", ">"),
        }
        guard = Outgoing(names.memory_subject(info.id, "cancelled"), b"{}", headers.encode(block))
        return await self.replace(stored, info, _why_cancelled(reason), (guard,))

    async def end_all(self, jobs: Sequence[tuple[StoredMessage, JobInfo]], reason: str) -> int:
        """End jobs that nobody holds as cancelled, in a store file in one transaction; return how many these were."""
        error = _why_cancelled(reason)
        endings = {info.id: (stored, self._ending(stored, info, error)) for stored, info in jobs}
        return await self._withdraw(endings, error)

    async def replace(self, stored: StoredMessage, info: JobInfo, error: str, others: Sequence[Outgoing] = ()) -> bool:
        """End one with the error that its outcome names; return False if somebody holds it, or if it is not there.

        ``others`` are stored with its outcome: in a store file in the same transaction, on servers before it.
        """
        ending = self._ending(stored, info, error)
        ending = Replacement((*others, *ending.messages), ending.once)
        return await self._withdraw({info.id: (stored, ending)}, error) > 0

    async def _withdraw(self, endings: Mapping[str, tuple[StoredMessage, Replacement]], error: str) -> int:
        instead = {stored.seq: ending for stored, ending in endings.values()}
        answer = await self._queue.backend.withdraw(self._queue.names.jobs, instead)
        # A worker may have taken it meanwhile: its outcome is refused, so it need not go on.
        told = {*answer.sequences} & {*answer.held}
        orders = [
            to_cancel(self._queue.names, job_id, error, ended=True)
            for job_id, (stored, _) in endings.items()
            if stored.seq in told
        ]
        if orders:
            await self._queue.backend.publish_batch(orders)
        return len(answer.sequences)

    def _flow_notes(self, stored: StoredMessage, outcome: Outcome) -> tuple[Outgoing, ...]:
        """Return what tells the flow of a job that it has ended."""
        with suppress(*UNREADABLE):
            if (place := decode_envelope(stored.data).flow) is not None:
                return (told_to_flow(self._queue.names, place, outcome),)
        return ()

    def _ending(self, stored: StoredMessage, info: JobInfo, error: str) -> Replacement:
        """Return what the end of a job stores, its outcome last, which counts if it is the first.

        Its flow is told before, so that it learns of it even if this is interrupted: it looks for the outcome itself.
        """
        names, now = self._queue.names, self._queue.clock.now()
        outcome = outcome_without_worker(
            "cancelled", info.id, info.job, info.key, error, stored.time_ns, now, info.attempt
        )
        record = Outgoing(names.ending_subject("cancelled", info.id), _encode(outcome))
        return Replacement((*self._flow_notes(stored, outcome), record), names.outcomes_of(info.id))


def _why_cancelled(reason: str) -> str:
    return f"it was cancelled: {reason}" if reason else "it was cancelled"


class Mover:
    """Moves jobs of one queue to another one, whose jobs ``there`` enqueues."""

    def __init__(
        self, queue: QueueContext, jobs: Steering, other: QueueContext, there: Enqueuer, others: Steering
    ) -> None:
        if other.backend is not queue.backend or other.name == queue.name:
            raise ConfigError(
                f"queue {queue.name!r}: jobs can be moved to another queue of the same opening, not to {other.name!r}"
            )
        self._queue = queue
        self._jobs = jobs
        self._other = other
        self._there = there
        self._others = others

    async def move(self, job_id: str) -> JobHandle[Any]:
        """Move a job; return its new handle. Raises JobNotFoundError, JobNotMovedError, ConfigError."""
        info = await self._jobs.get(job_id)
        stored = await self._jobs.find_message(job_id)
        if info.state in ENDINGS or stored is None or await self._may_run(stored, info):
            raise JobNotMovedError(self._queue.name, job_id, "running" if info.state == "pending" else info.state)
        message = self._message(stored, info)
        handle = self._there.handle(job_id_in(message.data, 0), info.job)
        error = f"it was moved to queue {self._other.name!r} as job {handle.id}"
        if not await self._replace(stored, info, error, message):
            raise await self._not_moved(info.id, handle.id, error)
        await announce_again(self._other, handle, info.job, info.key, info.due if info.state == "scheduled" else 0)
        return handle

    async def _not_moved(self, job_id: str, other_id: str, error: str) -> JobNotMovedError:
        """Return why a job was not moved, and cancel what was stored there on servers, unless another call moved it."""
        try:
            info = await self._jobs.get_ended(job_id)
        except JobNotFoundError:
            info = await self._jobs.get(job_id)
        if info.last_error != error:
            with suppress(JobNotFoundError):
                await self._others.cancel(other_id, reason="it was not moved after all")
        return JobNotMovedError(self._queue.name, job_id, info.state)

    async def _may_run(self, stored: StoredMessage, info: JobInfo) -> bool:
        entry = (await self._queue.stats.underway()).get(stored.seq)
        if entry is not None or not self._queue.names.is_free(stored.subject):
            return entry is not None and not entry.waits
        return (await self._queue.stats.unlisted()).may_have(self._queue.names.lane(stored.subject), stored.seq)

    async def _replace(self, stored: StoredMessage, info: JobInfo, error: str, message: Outgoing) -> bool:
        try:
            return await self._jobs.replace(stored, info, error, (message,))
        except WrongLastSequenceError as refused:
            other = await (await self._queue.jet.stream(self._other.names.jobs)).get_message(refused.seq or 0)
            if job_id_in(other.data, 0) != job_id_in(message.data, 0):
                there = f"a duplicate of a job of queue {self._other.name!r}"
                raise JobNotMovedError(self._queue.name, info.id, there) from None
        # An earlier call was interrupted.
        return await self._jobs.replace(stored, info, error)

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
        return form.to_move(plain, self._queue.name, info.id, self._queue.names.leaf_of(stored.subject), left)


_FOR_EVER_NS: Final = 100 * 365 * 86_400 * 10**9
_ALL: Final = "pause.all"
_LOOK_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
_HEAVIEST: Final = 1_000
_worker: Final = msgspec.json.Decoder(WorkerInfo).decode


class QueueWithSteering:
    """A queue that is steered from any process, while its workers run."""

    name: str
    _context: QueueContext
    _steering: Steering

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job, for a ``reason``; return False if it had ended otherwise.

        A job that no worker holds has ended as ``cancelled`` when this returns, unless it has something to undo. One
        that runs is told: an async function is cancelled, and one on a thread sees ``JobContext.cancelled``. So are
        the jobs that it waits for.
        Raises JobNotFoundError, ConfigError.
        """
        return await self._steering.cancel(job_id, reason=reason)

    async def send(self, job_id: str, name: str, value: object = None, *, msg_id: str = "") -> bool:
        """Send a ``value``, as JSON, to `JobContext.wait_for` of a job, by a ``name``.

        False: this ``msg_id`` was sent before. Raises JobEndedError, JobNotFoundError, ConfigError.
        """
        return await self._steering.send(job_id, name, value, msg_id=msg_id)

    async def pause(self, *, key: str | None = None, job: str | None = None) -> None:
        """Start no more jobs, in any process, until :meth:`resume`: all, those of a key, or those of a job's name.

        Jobs that run are not affected, and jobs can be enqueued. Raises ConfigError.
        """
        await _pause(self._context, key, job, over=False)

    async def resume(self, *, key: str | None = None, job: str | None = None) -> None:
        """Start jobs again that :meth:`pause` has held up, with the same ``key`` or ``job``.

        Raises ConfigError.
        """
        await _pause(self._context, key, job, over=True)

    async def drain(self, *, timeout: Seconds | None = None) -> None:
        """Pause the queue, and return when no worker holds a job.

        :meth:`resume` continues. On a cluster, jobs that claims hold are not
        waited for, and a worker that has died is for 30 s. Raises TimeoutError after ``timeout`` seconds, and leaves
        the queue paused; ConfigError.
        """
        limit = None if timeout is None else seconds(f"drain of queue {self.name!r}: timeout", timeout)
        clock = self._context.clock
        deadline = Deadline(clock, limit)
        since = await _pause_all(self._context)
        looks = 0
        while held := await _describe_held(self._context, since):
            if deadline.is_over:
                raise TimeoutError(f"queue {self.name!r}: after {limit:g} s, {held}; it stays paused")
            pause, left = _LOOK_S[min(looks, len(_LOOK_S) - 1)], deadline.left
            await clock.sleep(pause if left is None else min(pause, left))
            looks += 1

    async def purge(self, *, key: str | None = None, job: str | None = None, tenant: str | None = None) -> int:
        """Cancel all jobs that no worker holds: waiting, scheduled or retried; return how many were cancelled.

        Only those of a key, of a job's name, or of a tenant, if given. Jobs that run, that are enqueued meanwhile, and
        dead letters stay. On a cluster, jobs that were taken once and wait for a retry stay, too. Raises ConfigError.
        """
        wanted = job_filter(self.name, key, job, tenant=tenant)
        names = self._context.names
        stream = await self._context.jet.stream(names.jobs)
        last, unlisted = (await stream.info()).state.last_seq, await self._context.stats.unlisted()
        ended = 0
        batch: list[tuple[StoredMessage, JobInfo]] = []
        async with aclosing(self._steering.jobs(wanted, is_brief=True)) as jobs:
            async for entry in jobs:
                if entry.stored.seq > last:
                    break
                subject = entry.stored.subject
                may_run = names.is_free(subject) and unlisted.may_have(names.lane(subject), entry.stored.seq)
                if entry.is_taken or may_run:
                    continue
                has_run = entry.info.attempt or entry.info.state != "pending"
                if has_run and await self._steering.order_undo(entry.info, "the queue was purged"):
                    ended += 1
                    continue
                batch.append((entry.stored, entry.info))
                if len(batch) == _AT_ONCE:
                    ended += await self._steering.end_all(batch, "the queue was purged")
                    batch = []
        return ended + (await self._steering.end_all(batch, "the queue was purged") if batch else 0)

    async def delete(self, *, force: bool = False) -> None:
        """Remove the queue: its jobs, its history, its dead letters. Do not use it, or its handles, after that.

        With ``force``, also if workers hold jobs: their next operation raises. Raises QueueInUseError.
        """
        if not force and (running := await _running(self._context)):
            raise QueueInUseError(self.name, running)
        names = self._context.names
        # The jobs last: should this be interrupted, the queue is still there and can be deleted again.
        for name in (*(side for side, _ in names.sides), names.jobs):
            with suppress(StreamNotFoundError):
                await self._context.jet.delete_stream(name)

    # --- limits and weights, which every worker hears of

    async def limit(
        self, *, job: str | None = None, per_key: bool = False, concurrency: int | None = None, rate: Rate | None = None
    ) -> JobLimit:
        """Limit how many jobs run at a time, and how many start in a period, in all processes together.

        For all jobs, or those named ``job``; ``per_key``: for each key by itself (jobs without a key are not limited).
        Each of these has one limit, which a later call replaces; a job starts when all limits that it is under let it.
        At most ``concurrency`` jobs run at a time; starts keep to ``rate``: ``pelton.Rate(100, per=60, burst=10)``.
        Raises ConfigError.
        """
        limit = job_limit(self.name, job, per_key, concurrency, rate)
        await _publish_order(self._context, self._context.names.limit_subject(limit.scope), Order(limit=limit))
        # Jobs that were put off for the one that it replaces.
        await Recall(self._context).all_of(limit.scope, limit.text)
        return limit

    async def unlimit(self, *, job: str | None = None, per_key: bool = False) -> bool:
        """Take away the limit with the same ``job`` and ``per_key``; return False if there was none.

        Raises ConfigError.
        """
        name = "" if job is None else checked_text(f"queue {self.name!r}: limit: job", job)
        scope = scope_of(name, bool(per_key))
        taken_away = [limit for limit in await self.limits() if limit.scope == scope]
        for limit in taken_away:
            subject = self._context.names.limit_subject(scope)
            await _publish_order(self._context, subject, Order(limit=limit, over=True))
        if taken_away:
            await Recall(self._context).all_of(scope, None)
        return bool(taken_away)

    async def limits(self) -> list[JobLimit]:
        """Return all limits of the queue, in the order in which they were set."""
        return await limits_of(self._context)

    async def stop_worker(self, name: str) -> None:
        """Tell a worker, by its name, to stop, wherever it runs: it takes no more jobs, and its `work` returns.

        Those that run have their grace, as when its process is told to end. Raises ConfigError if no worker of this
        name has told of itself in the last 30 s.
        """
        running = await self._context.jet.stream(self._context.names.running)
        subject = self._context.names.worker_subject(checked_text(f"queue {self.name!r}: worker", name))
        known = None if set(name) & set(". *>") else await last_of(running, subject)
        if known is None:
            raise ConfigError(f"queue {self.name!r}: no worker is called {name[:80]!r}: see workers()")
        names = self._context.names
        # No worker ever has this name again.
        await _publish_order(self._context, names.order_subject(f"stop.{name}"), Order(stop=name), _STOP_TTL)

    async def weigh(self, tenant: str, weight: int) -> None:
        """Give a tenant ``weight`` turns (1 to 1,000; by default 1) while others have one; every worker hears of it.

        Jobs of tenants that have some waiting start in turns: see ``tenant`` of `JobOptions`. Raises ConfigError.
        """
        token = encode_tenant(tenant)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _HEAVIEST:
            raise ConfigError(
                f"queue {self.name!r}: the weight of tenant {tenant!r} is {weight!r}; it must be a whole number from 1 "
                f"to {_HEAVIEST}"
            )
        order = Order(weight=TenantWeight(tenant, weight), over=weight == 1)
        await _publish_order(self._context, self._context.names.weight_subject(token), order)


async def _publish_order(queue: QueueContext, subject: str, order: Order, block: bytes | None = None) -> None:
    await queue.backend.publish(subject, _encode(order), block)


async def _pause(queue: QueueContext, key: str | None, job: str | None, *, over: bool) -> None:
    if key is not None:
        encode_key(key)
        await _pause_some(queue, Order(pause_key=key, over=over))
    if job is not None:
        name = checked_text(f"queue {queue.name!r}: job", job)
        await _pause_some(queue, Order(pause_job=name, over=over))
    if key is None and job is None:
        # The consumers stop everybody who takes jobs from them, the order those who take keys on a cluster.
        await _publish_order(queue, queue.names.order_subject(_ALL), Order(pause_all=True, over=over))
        until = "" if over else rfc3339(queue.clock.now() + _FOR_EVER_NS)
        stream = await queue.jet.stream(queue.names.jobs)
        for of_tenants in (False, True):
            # Those of tenants come and go, and a new one is paused if the others are: so these are first.
            for name in await stream.consumer_names():
                if queue.names.is_tenant_consumer(name) == of_tenants:
                    with suppress(ConsumerNotFoundError):
                        await queue.backend.call(ConsumerPause(stream=stream.name, name=name, pause_until=until))


async def _pause_some(queue: QueueContext, order: Order) -> None:
    [scope] = order.pause_scopes
    await _publish_order(queue, queue.names.order_subject(scope), order)
    if order.over:
        await Recall(queue).all_of(scope, None)


async def _pause_all(queue: QueueContext) -> int:
    """Pause the queue, and say so again when nobody can take jobs; return when that was stored, wall nanoseconds.

    What a worker tells after it has heard it again is what it still holds.
    """
    await _pause(queue, None, None, over=False)
    subject = queue.names.order_subject(_ALL)
    await _publish_order(queue, subject, Order(pause_all=True))
    return (await (await queue.jet.stream(queue.names.control)).get_last_message(subject)).time_ns


async def _describe_held(queue: QueueContext, since: int) -> str:
    """Return who has jobs, in words; empty if nothing is. ``since``: when the pause was stored."""
    if await queue.stats.unlisted() is ALL_LISTED:
        held = await _count_running(queue)
        return f"workers still have {held} jobs" if held else ""
    names = queue.names
    holding = 0
    async with aclosing(deliveries(await queue.jet.stream(names.running), names.worker_subject("*"))) as told:
        async for record in told:
            worker = _worker(record.data)
            # One that has died is forgotten after some time.
            holding += record.time_ns <= since or bool(worker.held or worker.running)
    return f"{holding} workers still have jobs" if holding else ""


async def _count_running(queue: QueueContext) -> int:
    """Return how many jobs run: neither those that wait for another attempt, nor those whose worker has died."""
    now, underway = queue.clock.now(), await queue.stats.underway()
    return sum(not entry.waits and (not entry.due or entry.due > now) for entry in underway.values())


async def _running(queue: QueueContext) -> int:
    try:
        return await _count_running(queue) + (await queue.stats.unlisted()).number
    except NotFoundError:
        # An earlier call has deleted it, or was interrupted.
        return 0
