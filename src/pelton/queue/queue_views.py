"""The part of a queue's face that shows its jobs, what became of those that have ended, and what happens from now on.

**Failed jobs, and how they are put into their queue again.** In a store file, a dead letter is removed and its job
stored in one transaction. On a cluster these are two steps. The redriven job has an id and a place that follow from the
failed one's id (``job_message.py``), so whoever repeats a redrive that was interrupted between the two stores nothing:
because the job is there, because its message id is known, or because the history has its outcome.

**Events.** How jobs end, that they are retried, and their progress are read from the streams in which the queue keeps
them, in order and without a gap, from the moment at which the reader begins. That they were enqueued, and that they
start, is stored nowhere, because it would cost each job a message: it is announced to those who listen, at most once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from pelton.api import (
    ConfigError,
    Delivered,
    JobNotFoundError,
    MessageNotFoundError,
    Outgoing,
    PeltonError,
    StreamInfoRequest,
    WrongLastSequenceError,
    headers,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.times import Seconds
from pelton.api.tracing import Replacement
from pelton.jet.message_source import OrderedReader
from pelton.jet.registers import Follower, is_busy
from pelton.jet.stream import last_of
from pelton.queue.enqueuer import (
    ANNOUNCED,
    EVENT_KINDS,
    QueueEvent,
    QueueEventKind,
    announce_again,
    ending_event,
    progress_event,
    read_announcement,
    retry_event,
)
from pelton.queue.job import JobHandle
from pelton.queue.job_message import JobMessage
from pelton.queue.model.naming import tenant_in
from pelton.queue.model.options import PLAIN, JobFilter, JobOptions, checked_id, job_filter, seconds
from pelton.queue.model.records import job_id_in, redriven_in_flow
from pelton.queue.model.states import (
    ENDINGS,
    DeadLetter,
    Ending,
    Envelope,
    JobCounts,
    JobInfo,
    JobState,
    Outcome,
    TenantCounts,
    WorkerInfo,
    decode_outcome,
)
from pelton.queue.scan import deliveries, orders_in, taken_of_tenant, tenants_with_jobs
from pelton.runtime import at_home, end_tasks, within

if TYPE_CHECKING:
    from pelton.api import BackendSubscription
    from pelton.queue.enqueuer import Enqueuer
    from pelton.queue.registry import QueueContext
    from pelton.queue.views import JobViews

_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_worker: Final = msgspec.json.Decoder(WorkerInfo).decode
_AT_ONCE: Final = 64
_MOST_EVENTS: Final = 1000


# --- what happens from now on


class _Source(NamedTuple):
    """A stream that keeps events, and how they are read."""

    stream: str
    filter_subject: str
    read: Callable[[Delivered], QueueEvent | None]


class QueueEvents:
    """What happens to the jobs of a queue, in any process: made by ``queue.events()``.

    Use it in ``async with``, which begins to listen; or iterate over it, which begins by itself, and ends with
    the iteration. Retries, ends and progress are told in their order, without a gap; that jobs are enqueued or start is
    told at most once. Whoever is slow to read them holds nobody up.
    """

    def __init__(self, queue: QueueContext, kinds: Sequence[QueueEventKind]) -> None:
        for kind in kinds:
            if kind not in EVENT_KINDS:
                raise ConfigError(f"queue {queue.name!r}: no events {kind!r}; give {', '.join(EVENT_KINDS)}")
        self._queue = queue
        self._check_loop = queue.backend.check_loop
        self._kinds = frozenset(kinds or EVENT_KINDS)
        self._found: asyncio.Queue[QueueEvent | PeltonError] = asyncio.Queue(_MOST_EVENTS)
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[OrderedReader] = []
        self._subscription: BackendSubscription | None = None
        self._has_begun = False
        self._failure: PeltonError | None = None

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def next(self, *, timeout: Seconds | None = None) -> QueueEvent | None:
        """Return the next event, or None on ``timeout`` (seconds; None: wait for ever).

        Raises ConfigError, also after :meth:`close`, StoreClosedError, StreamNotFoundError if there is no such queue.
        """
        limit = None if timeout is None else seconds(f"events of queue {self._queue.name!r}: timeout", timeout)
        await self._begin()
        if self._failure is not None and self._found.empty():
            raise self._failure
        if limit is None:
            told = await self._found.get()
        else:
            try:
                told = await within(self._queue.clock, limit, self._found.get())
            except TimeoutError:
                return None
        if isinstance(told, PeltonError):
            # Whoever asks again is told again.
            self._failure = told
            raise told
        return told

    @at_home
    async def __aiter__(self) -> AsyncIterator[QueueEvent]:
        has_begun = self._has_begun
        try:
            while True:
                event = await self.next()
                if event is not None:
                    yield event
        finally:
            if not has_begun:
                await self.close()

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        self._failure = self._failure or ConfigError(f"these events of queue {self._queue.name!r} were closed")
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.close()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(PeltonError):
                await subscription.close()

    # --- reading

    async def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        try:
            if self._kinds & ANNOUNCED:
                self._subscription = await self._queue.backend.subscribe(self._queue.names.events)
                self._spawn(partial(self._listen, self._subscription))
            for source in self._sources():
                await self._read(source)
        except BaseException:
            await self.close()
            raise

    def _sources(self) -> list[_Source]:
        names, sources = self._queue.names, list[_Source]()
        endings = [ending for ending in ENDINGS if ending in self._kinds]
        if endings:
            one = names.ending_subject(endings[0], "*") if len(endings) == 1 else ""
            sources.append(_Source(names.history, one, ending_event))
        if "retrying" in self._kinds:
            sources.append(_Source(names.attempts, "", retry_event))
        if "progress" in self._kinds:
            sources.append(_Source(names.running, names.progress_subject("*"), progress_event))
        return sources

    async def _read(self, source: _Source) -> None:
        backend = self._queue.backend
        info = await backend.call(StreamInfoRequest(name=source.stream))
        reader = OrderedReader(
            backend,
            self._queue.runtime,
            source.stream,
            deliver_policy="by_start_sequence",
            opt_start_seq=info.state.last_seq + 1,
            filter_subject=source.filter_subject,
        )
        await reader.begin()
        self._readers.append(reader)

        async def saw(one: Delivered | None) -> None:
            # One that cannot be read is of another version.
            with suppress(*UNREADABLE):
                await self._tell(None if one is None else source.read(one))

        outage = self._queue.outage(f"events in stream {source.stream}", is_busy)
        self._spawn(Follower(reader.follow, saw, outage.wait, outage.end).follow)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(self._queue.runtime.spawn(self._told(work), f"pelton {self._queue.name} events"))

    async def _told(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except PeltonError as error:
            await self._found.put(error)

    async def _listen(self, subscription: BackendSubscription) -> None:
        while True:
            told = await subscription.next()
            for event in read_announcement(told.data) if told is not None else ():
                await self._tell(event)

    async def _tell(self, event: QueueEvent | None) -> None:
        if event is not None and event.kind in self._kinds:
            await self._found.put(event)


# --- the face


class StoredLetter(NamedTuple):
    """A dead letter and its sequence."""

    seq: int
    letter: DeadLetter


class QueueWithViews:
    """A queue whose jobs, workers, history and dead letters can be seen; the latter two can also be cleared."""

    name: str
    exclusive: bool
    _context: QueueContext
    _views: JobViews
    _enqueuer: Enqueuer

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}{', exclusive' if self.exclusive else ''}>"

    # --- what has not ended

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state."""
        return await self._views.counts()

    async def oldest_at(self) -> int:
        """Return when the oldest job that is due was enqueued, or fell due again, in wall nanoseconds; 0 for none.

        Jobs that wait for their time, or for another attempt, are not due.
        """
        return await self._views.oldest_at()

    async def tenants(self, limit: int = 100) -> list[TenantCounts]:
        """Return the tenants that have jobs which are due and have not ended: those with the most first.

        At most ``limit`` of them. Raises ConfigError.
        """
        if type(limit) is not int or limit < 1:
            raise ConfigError(f"queue {self.name!r}: limit is {limit!r}; it must be a whole number from 1 on")
        names = self._context.names
        stream = await self._context.jet.stream(names.jobs)
        listed = await tenants_with_jobs(stream, names)
        stored = Counter[str]()
        for counts in listed.values():
            stored.update(counts)
        largest = sorted(stored, key=lambda token: (-stored[token], token))[:limit]
        weights = await self.weights() if largest else {}
        tenants: list[TenantCounts] = []
        for token in largest:
            ranks = [rank for rank, counts in listed.items() if token in counts]
            taken = sum(await asyncio.gather(*(taken_of_tenant(stream, names, token, rank) for rank in ranks)))
            tenants.append(
                TenantCounts(
                    tenant=tenant_in(token),
                    pending=max(stored[token] - taken, 0),
                    taken=min(taken, stored[token]),
                    weight=weights.get(tenant_in(token), 1),
                )
            )
        return tenants

    async def weights(self) -> dict[str, int]:
        """Return the weights of the tenants that have another one than 1."""
        control = await self._context.side_to_read(self._context.names.control)
        orders = await orders_in(control, self._context.names.weight_subject("*"))
        weights = [order.weight for order in orders if order.weight is not None and not order.over]
        return {weight.tenant: weight.weight for weight in sorted(weights, key=attrgetter("tenant"))}

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers of this queue, in every process, each as it told about 10 s ago.

        One that has died is listed for 30 s at most.
        """
        stream = await self._context.side_to_read(self._context.names.running)
        async with aclosing(deliveries(stream, self._context.names.worker_subject("*"))) as told:
            return sorted([_worker(one.data) async for one in told], key=attrgetter("started_at"))

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id, in whatever state it is.

        Raises JobNotFoundError if it is not known, or no longer known; ConfigError.
        """
        return await self._views.get(job_id)

    async def named(self, name: str, *, key: str = "", tenant: str = "") -> JobHandle[Any]:
        """Return the unfinished job of this ``id``, and ``key`` or ``tenant``. Raises JobNotFoundError, ConfigError."""
        return self._enqueuer.handle(await self._views.id_of_named(JobOptions(id=name, key=key, tenant=tenant)))

    @at_home
    async def jobs(
        self,
        *,
        state: JobState | None = None,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> AsyncIterator[JobInfo]:
        """Iterate over the jobs that have not ended, oldest first.

        Only jobs of a state, a key, a name or a tenant, if given. Raises ConfigError.
        """
        async with aclosing(self._views.jobs(job_filter(self.name, key, job, state, tenant))) as jobs:
            async for each in jobs:
                yield each.info

    def events(self, *kinds: QueueEventKind) -> QueueEvents:
        """Return what happens to jobs from now on, in any process: ``async with queue.events() as events``.

        ``kinds`` are those to be told, by default all: see `QueueEvent`. Raises ConfigError.
        """
        return QueueEvents(self._context, kinds)

    # --- what has ended

    @at_home
    async def history(self, state: Ending | None = None) -> AsyncIterator[Outcome]:
        """Iterate over the outcomes of jobs, oldest first; only over those in state ``state`` if given.

        Raises ConfigError.
        """
        if state is not None and state not in ENDINGS:
            raise ConfigError(f"queue {self.name!r}: no history of {state!r}; a job ends as {', '.join(ENDINGS)}")
        stream = await self._context.jet.stream(self._context.names.history)
        filter_subject = self._context.names.ending_subject(state, "*") if state else ""
        async with aclosing(deliveries(stream, filter_subject)) as outcomes:
            async for one in outcomes:
                yield decode_outcome(one.data)

    @at_home
    async def dead_letters(self, *, key: str | None = None, job: str | None = None) -> AsyncIterator[DeadLetter]:
        """Iterate over failed jobs that can be redriven, oldest first; only jobs of a key or a name, if given."""
        async with aclosing(self._letters(job_filter(self.name, key, job))) as letters:
            async for stored in letters:
                yield stored.letter

    async def redrive(self, job_id: str, args: Mapping[str, object] | None = None) -> JobHandle[Any]:
        """Put a failed job into the queue again, as a new job, and remove its dead letter: both, or neither.

        ``args`` replace some of its arguments, by name. A redrive can be repeated: the job is stored once. Raises
        JobNotFoundError when there is no such dead letter, JobArgumentsError, ConfigError.
        """
        return await self._redrive(await self._letter(job_id), job_id, args)

    async def redrive_all(self, *, key: str | None = None, job: str | None = None) -> int:
        """Redrive all dead letters that there are now, or those of a key or a job's name; return how many.

        Raises ConfigError.
        """
        last = (await (await self._context.jet.stream(self._context.names.dead)).info()).state.last_seq
        done = 0
        batch: list[StoredLetter] = []
        async with aclosing(self._letters(job_filter(self.name, key, job))) as letters:
            async for stored in letters:
                # A job that was redriven may have failed again.
                if stored.seq > last:
                    break
                batch.append(stored)
                if len(batch) == _AT_ONCE:
                    done += await self._redrive_many(batch)
                    batch = []
        return done + await self._redrive_many(batch)

    async def discard(self, job_id: str) -> None:
        """Remove a dead letter; the history keeps the job's outcome. Raises JobNotFoundError, ConfigError."""
        stored = await self._letter(job_id)
        dead = await self._context.jet.stream(self._context.names.dead)
        try:
            await dead.delete_message(stored.seq)
        except MessageNotFoundError:
            raise self._no_letter(job_id) from None

    async def clean(self, *, older_than: Seconds) -> int:
        """Remove from the history what ended more than ``older_than`` (seconds) ago; return how many were removed.

        Raises ConfigError.
        """
        age = seconds(f"queue {self.name!r}: older_than", older_than)
        await self._context.time.refresh(self._context.names.history)
        limit = self._context.time.now() - int(age * 1e9)
        stream = await self._context.jet.stream(self._context.names.history)
        upto = 0
        async with aclosing(deliveries(stream, "")) as records:
            async for one in records:
                if decode_outcome(one.data).finished_at > limit:
                    break
                upto = one.seq
        return await stream.purge(seq=upto + 1) if upto else 0

    # --- dead letters

    async def _letters(self, wanted: JobFilter) -> AsyncGenerator[StoredLetter]:
        """Iterate over failed jobs that can be redriven, oldest first."""
        stream = await self._context.jet.stream(self._context.names.dead)
        async with aclosing(deliveries(stream, "")) as records:
            async for one in records:
                letter = _dead(one.data)
                if wanted.has_letter(letter):
                    yield StoredLetter(one.seq, letter)

    async def _letter(self, job_id: str) -> StoredLetter:
        dead = await self._context.jet.stream(self._context.names.dead)
        subject = self._context.names.dead_subject(checked_id(self.name, job_id))
        stored = await last_of(dead, subject)
        if stored is None:
            raise self._no_letter(job_id)
        return StoredLetter(stored.seq, _dead(stored.data))

    def _no_letter(self, job_id: str) -> JobNotFoundError:
        return JobNotFoundError(self.name, job_id, "it left no dead letter, or was already redriven")

    async def _redrive_many(self, batch: list[StoredLetter]) -> int:
        return sum(await asyncio.gather(*map(self._is_redriven, batch)))

    async def _is_redriven(self, stored: StoredLetter) -> bool:
        try:
            return not (await self._redrive(stored, stored.letter.outcome.id, None)).duplicate
        except JobNotFoundError:
            # Another call was faster.
            return False

    async def _redrive(self, stored: StoredLetter, job_id: str, args: Mapping[str, object] | None) -> JobHandle[Any]:
        handle = await self._put_back(stored, job_id, args)
        envelope = stored.letter.envelope
        await announce_again(self._context, handle, envelope.job, envelope.key)
        return handle

    async def _put_back(self, stored: StoredLetter, job_id: str, args: Mapping[str, object] | None) -> JobHandle[Any]:
        letter = stored.letter
        message = self._letter_message(letter, job_id, args)
        place, names = letter.envelope.flow, self._context.names
        again = () if place is None or place.caller else (redriven_in_flow(names, place, job_id_in(message.data, 0)),)
        # After the job: a flow waits for it from then on. If that has ended by now, it changes nothing.
        messages = again if await self._has_ended(job_id_in(message.data, 0)) else (message, *again)
        try:
            answer = await self._context.backend.withdraw(names.dead, {stored.seq: Replacement(messages)})
        except WrongLastSequenceError:
            # It was redriven concurrently: both calls got the same job.
            messages = again
            answer = await self._context.backend.withdraw(names.dead, {stored.seq: Replacement(messages)})
        if not answer.sequences:
            raise self._no_letter(job_id)
        seq, is_duplicate = (0, True) if messages is again else (answer.acks[0].seq, answer.acks[0].duplicate)
        return self._enqueuer.handle(job_id_in(message.data, seq), letter.envelope.job, duplicate=is_duplicate)

    async def _has_ended(self, job_id: str) -> bool:
        history = await self._context.jet.stream(self._context.names.history)
        return await last_of(history, self._context.names.outcomes_of(job_id)) is not None

    def _letter_message(self, letter: DeadLetter, job_id: str, args: Mapping[str, object] | None) -> Outgoing:
        if letter.subject:
            if args is not None:
                raise ConfigError(f"queue {self.name!r}: {job_id!r} was no valid job and has no arguments")
            block = headers.encode({headers.MSG_ID: f"redrive-{job_id}"})
            return Outgoing(letter.subject, letter.data, block)
        envelope = msgspec.structs.replace(letter.envelope, redriven_from=job_id)
        if args is not None:
            envelope = self._with_args(envelope, args)
        return JobMessage(self._context.names, envelope.job, exclusive=self._context.exclusive).redriven(envelope)

    def _with_args(self, envelope: Envelope, args: Mapping[str, object]) -> Envelope:
        if not isinstance(args, Mapping):
            raise ConfigError(f"queue {self.name!r}: args is {args!r:.80}; give arguments by name, in a dict")
        named = {**msgspec.json.decode(envelope.args), **args}
        call = self._enqueuer.call_of(envelope.job, (), named, PLAIN)
        return msgspec.structs.replace(envelope, args=msgspec.Raw(call.args))
