"""Putting jobs into a queue, and telling whoever listens what happens to jobs: that is stored nowhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, Unpack, get_args, overload

import msgspec

from pelton.api import (
    ConfigError,
    DuplicateJobError,
    JobNotFoundError,
    NoStreamForSubjectError,
    Outgoing,
    PeltonError,
    PubAck,
    QueueNotFoundError,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.json_values import UNREADABLE, to_json
from pelton.jet.stream import message_at
from pelton.queue.job import JobCall, JobDefinition, JobHandle, encode_unknown
from pelton.queue.job_message import JobMessage
from pelton.queue.model.naming import encode_tenant, token_of
from pelton.queue.model.options import (
    PLAIN,
    JobOptions,
    OptionFields,
    checked_id,
    checked_job_name,
    checked_text,
    due_time,
    job_options,
)
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import (
    Attempt,
    Envelope,
    JobProgress,
    Outcome,
    decode_envelope,
    decode_outcome,
    decode_progress,
)

if TYPE_CHECKING:
    from pelton.api import Delivered, StoredMessage
    from pelton.jet import Stream, Streams
    from pelton.queue.job import JobLookup
    from pelton.queue.job_message import ResultCodec
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.registry import QueueContext

QueueEventKind = Literal[
    "enqueued", "scheduled", "held", "started", "progress", "retrying", "completed", "failed", "cancelled", "expired"
]
EVENT_KINDS: Final[tuple[QueueEventKind, ...]] = get_args(QueueEventKind)
ANNOUNCED: Final[frozenset[QueueEventKind]] = frozenset(("enqueued", "scheduled", "held", "started"))
"""Those that are told to whoever listens, and are not stored."""

_attempt: Final = msgspec.json.Decoder(Attempt).decode


class QueueEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that has happened to a job, ``at`` in wall nanoseconds.

    ``due`` is when a scheduled job is to start, or a retrying one to be tried again; ``error`` is what the last attempt
    raised. A job that has ended has its ``outcome``. Progress has no ``job`` and no ``key``.
    """

    kind: QueueEventKind
    """What has happened."""
    id: str
    """The job's id."""
    at: int
    job: str = ""
    key: str = ""
    attempt: int = 0
    worker: str = ""
    """Who runs, or ran, it."""
    error: str = ""
    due: int = 0
    progress: JobProgress | None = None
    """How far it says it is."""
    outcome: Outcome | None = None
    limit: str = ""
    """The limit that a held job waits for."""


_told: Final = msgspec.json.Decoder(list[QueueEvent]).decode
encode_events: Final = msgspec.json.Encoder().encode


def read_announcement(data: bytes) -> Sequence[QueueEvent]:
    """Return the events of an announcement; empty if it cannot be read, because another version wrote it."""
    try:
        return _told(data)
    except UNREADABLE:
        return ()


def ending_event(delivered: Delivered) -> QueueEvent | None:
    outcome = decode_outcome(delivered.data)
    return QueueEvent(
        kind=outcome.state,
        id=outcome.id,
        at=delivered.time_ns,
        job=outcome.job,
        key=outcome.key,
        attempt=outcome.attempt,
        worker=outcome.worker,
        error=outcome.error,
        outcome=outcome,
    )


def retry_event(delivered: Delivered) -> QueueEvent | None:
    """Return the event of an attempt's record, or None for one that was only handed back, or put off."""
    record = _attempt(delivered.data)
    if record.waits or not record.retry_at:
        return None
    return QueueEvent(
        kind="retrying",
        id=record.id,
        at=delivered.time_ns,
        job=record.job,
        key=record.key,
        attempt=record.attempt,
        error=record.error,
        due=record.retry_at,
    )


def progress_event(delivered: Delivered) -> QueueEvent | None:
    told = decode_progress(delivered.data)
    job_id = delivered.subject.rpartition(".progress")[0].rpartition(".")[2]
    return QueueEvent(kind="progress", id=job_id, at=told.at or delivered.time_ns, progress=told)


_log: Final = logging.getLogger("pelton.queue")
_TOGETHER: Final = 500
_MOST_RUNG: Final = 500
_encode: Final = msgspec.json.Encoder().encode


def has_listeners(queue: QueueContext) -> bool:
    """Whether somebody may be listening to the events of a queue: on a cluster that cannot be known."""
    return queue.jet.backend.might_reach(queue.names.events)


async def ring(queue: QueueContext, stored: Iterable[JobOptions]) -> None:
    """Tell the workers that wait of the tenants that have jobs now; others find out by themselves."""
    rung = {(options.tenant, options.priority) for options in stored if options.tenant}
    if rung and queue.backend.might_reach(queue.names.bell):
        told = [(encode_tenant(tenant), rank) for tenant, rank in rung] if len(rung) <= _MOST_RUNG else []
        try:
            await queue.backend.send(queue.names.bell, _encode(told))
        except PeltonError as error:
            _log.debug("workers of queue %r were not told: %s", queue.name, error, extra={"queue": queue.name})


async def announce_enqueued(queue: QueueContext, calls: Sequence[JobCall], handles: Sequence[JobHandle[Any]]) -> None:
    """Tell that jobs were stored, those that were there before left out."""
    now = queue.clock.now()
    events = [
        _stored_event(handle.id, call.job, call.options.key, due_time(call.options, now), now)
        for call, handle in zip(calls, handles, strict=True)
        if not handle.duplicate
    ]
    await _announce(queue, events)


async def announce_again(queue: QueueContext, handle: JobHandle[Any], job: str, key: str, due: int = 0) -> None:
    """Tell that a job was stored that has been elsewhere: among the dead letters, or in another queue."""
    if has_listeners(queue) and not handle.duplicate:
        await _announce(queue, [_stored_event(handle.id, job, key, due, queue.clock.now())])


async def announce_messages(queue: QueueContext, messages: Sequence[Outgoing]) -> None:
    """Tell that the jobs of these messages were stored; each has its own id."""
    if messages and has_listeners(queue):
        now, envelopes = queue.clock.now(), [decode_envelope(message.data) for message in messages]
        await _announce(queue, [_stored_event(one.id, one.job, one.key, one.due, now) for one in envelopes])


def _stored_event(job_id: str, job: str, key: str, due: int, now: int) -> QueueEvent:
    kind: QueueEventKind = "scheduled" if due else "enqueued"
    return QueueEvent(kind=kind, id=job_id, at=now, job=job, key=key, due=due)


async def announce_taken(
    queue: QueueContext, kind: QueueEventKind, records: AttemptRecords, worker: str, limit: str = ""
) -> None:
    """Tell that an attempt has ``started``, or that a job that was taken is ``held`` for a limit."""
    event = QueueEvent(
        kind=kind,
        id=records.id,
        at=queue.clock.now(),
        job=records.envelope.job,
        key=records.envelope.key,
        attempt=records.attempt if kind == "started" else records.begun_attempts,
        worker=worker,
        limit=limit,
    )
    await _announce(queue, (event,))


async def _announce(queue: QueueContext, events: Sequence[QueueEvent]) -> None:
    try:
        for first in range(0, len(events), _TOGETHER):
            await queue.backend.send(queue.names.events, encode_events(events[first : first + _TOGETHER]))
    except PeltonError as error:
        # What has happened has happened: nothing must fail because nobody could be told.
        _log.debug("events of queue %r were not told: %s", queue.name, error, extra={"queue": queue.name})


P = ParamSpec("P")
R = TypeVar("R")
Publish = Callable[[Outgoing], Awaitable[PubAck]]
_AT_ONCE: Final = 500


class Enqueuer:
    """Puts jobs into one queue. ``lookup`` is for their handles."""

    def __init__(self, queue: QueueContext, lookup: JobLookup) -> None:
        self.queue = queue
        self._jet = queue.jet
        self._name = queue.name
        self._events = queue.names.events
        self._free = queue.names.free_subject
        self._lookup = lookup
        self._form: JobMessage | None = None
        self._jobs: Stream | None = None
        self._probes = queue.probes

    def call_of(
        self, job: JobDefinition[Any, Any] | str, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions
    ) -> JobCall:
        """Return a checked call of a job, or of the job of a name that other programs know.

        Raises JobArgumentsError, ConfigError.
        """
        if isinstance(job, JobDefinition):
            return job.call_with(args, kwargs, options)
        name = checked_job_name(f"queue {self.queue.name!r}", job)
        known = self.queue.jobs.get(name)
        if known is not None:
            return known.call_with(args, kwargs, options)
        return JobCall(name, encode_unknown(name, args, kwargs), options)

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]:
        """Put many jobs into the queue, durable together and in order.

        With unique ones among them, each is stored by itself: if one is refused, the others are stored all the same.
        """
        if not isinstance(calls, Sequence) or not set(map(type, calls)) <= {JobCall}:
            raise ConfigError(f"queue {self._name!r}: enqueue_many takes a list of calls: [job.bind(...), ...]")
        tracing = self._jet.backend.tracing
        if tracing is None or not calls:
            return await self._enqueue(calls)
        with tracing.enqueuing(self._name, [call.job for call in calls]) as span:
            handles = await self._enqueue([call.with_trace(span.meta) for call in calls])
            span.on_stored([handle.id for handle in handles])
            return handles

    async def _enqueue(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]:
        is_unique = False
        for call in calls:
            if call.options is not PLAIN:
                is_unique = is_unique or call.options.is_unique
                if call.options.is_timed:
                    await self.queue.time.refresh(self.queue.names.jobs)
        messages = self.messages_of(calls)
        try:
            if len(calls) == 1:
                handles = [await self._enqueue_one(calls[0], messages[0])]
            elif is_unique:
                handles = await self._enqueue_apart(calls, messages)
            else:
                acks = await self._jet.backend.publish_batch(messages)
                handles = list(map(self.handle_of, calls, messages, acks))
        except NoStreamForSubjectError:
            await self._check_exists()
            raise
        if self._probes.on_stored is not None:
            await self._probes.on_stored()
        await self.announce(calls, handles)
        return handles

    async def _enqueue_one(self, call: JobCall, message: Outgoing) -> JobHandle[Any]:
        try:
            ack = await self._jet.backend.publish(message.subject, message.data, message.headers)
        except WrongLastSequenceError as refused:
            return await self.after_refusal(call, message, refused, self._publish, alone=False)
        return self.handle_of(call, message, ack)

    async def _check_exists(self) -> None:
        """Raise QueueNotFoundError if the queue was deleted."""
        try:
            await self.queue.jet.stream(self.queue.names.jobs)
        except StreamNotFoundError:
            raise QueueNotFoundError(self.queue.name) from None

    async def announce(self, calls: Sequence[JobCall], handles: Sequence[JobHandle[Any]]) -> None:
        """Tell those who listen that jobs were stored, and the workers that wait for their tenants."""
        for call in calls:
            if call.options is not PLAIN and call.options.tenant:
                await ring(self.queue, [call.options for call in calls])
                break
        if self._jet.backend.might_reach(self._events):
            await announce_enqueued(self.queue, calls, handles)

    async def _enqueue_apart(self, calls: Sequence[JobCall], messages: Sequence[Outgoing]) -> list[JobHandle[Any]]:
        answers = await self._jet.backend.publish_apart(messages)
        acks = [answer for answer in answers if isinstance(answer, PubAck)]
        if len(acks) == len(calls):
            return list(map(self.handle_of, calls, messages, acks))
        settled = await self._settle_refused(calls, messages, answers)
        handles: list[JobHandle[Any]] = []
        for index, (call, message, answer) in enumerate(zip(calls, messages, answers, strict=True)):
            one = settled.get(index, answer)
            if isinstance(one, BaseException):
                raise one
            handles.append(one if isinstance(one, JobHandle) else self.handle_of(call, message, one))
        return handles

    async def _settle_refused(
        self, calls: Sequence[JobCall], messages: Sequence[Outgoing], answers: Sequence[PubAck | PeltonError]
    ) -> dict[int, JobHandle[Any] | BaseException]:
        """Return by its index what follows for each unique job that met another one, some of them at once."""
        settled: dict[int, JobHandle[Any] | BaseException] = {}

        async def settle(chain: Sequence[int]) -> None:
            for index in chain:
                refused = answers[index]
                assert isinstance(refused, WrongLastSequenceError), "only these are settled"
                try:
                    settled[index] = await self.after_refusal(
                        calls[index], messages[index], refused, self._publish, alone=False
                    )
                except Exception as error:
                    settled[index] = error

        chains = _chains(calls, messages, answers)
        for start in range(0, len(chains), _AT_ONCE):
            await asyncio.gather(*map(settle, chains[start : start + _AT_ONCE]))
        return settled

    async def after_refusal(
        self, call: JobCall, message: Outgoing, refused: WrongLastSequenceError, publish: Publish, *, alone: bool
    ) -> JobHandle[Any]:
        """Return the handle of the job that a unique one met, or of that one, if it could be stored after all.

        ``publish`` stores a message; ``alone``: nobody else can write meanwhile, so that what was met twice, and can't
        be read, stays.
        """
        vanished: int | None = -1
        while True:
            instead, handle = await self._resolve(call, refused)
            if handle is not None:
                return handle
            if instead is None and alone:
                # It may have been replaced since, by another one of these jobs.
                if vanished == refused.seq:
                    raise refused
                vanished = refused.seq
            # The job to be replaced may have ended: then the original message is tried again.
            try:
                ack = await publish(instead or message)
            except WrongLastSequenceError as again:
                refused = again
            else:
                return self.handle_of(call, instead or message, ack)

    async def _publish(self, message: Outgoing) -> PubAck:
        return await self._jet.backend.publish(message.subject, message.data, message.headers)

    async def _resolve(
        self, call: JobCall, refused: WrongLastSequenceError
    ) -> tuple[Outgoing | None, JobHandle[Any] | None]:
        """Return the message to store instead, or the handle of the job that kept a unique one from being stored.

        Neither: that job has ended since, or is part of an open transaction.
        """
        if not refused.seq:
            # It was to replace, or to follow, a job that has ended.
            return None, None
        if self._jobs is None:
            self._jobs = await self.queue.jet.stream(self.queue.names.jobs)
        if (stored := await message_at(self._jobs, refused.seq)) is None:
            return None, None
        [message] = self.messages_of((call,))
        if call.options.replace and stored.subject == message.subject:
            form = JobMessage(self.queue.names, call.job, exclusive=self.queue.exclusive)
            return form.replacing(message, stored), None
        job_id, names = job_id_in(stored.data, stored.seq), self.queue.names
        if call.options.unique_until == "started" and names.is_job(stored.subject) and await self._has_started(stored):
            form = JobMessage(names, call.job, exclusive=self.queue.exclusive)
            return form.following(message, stored.seq), None
        if call.options.on_duplicate == "raise":
            raise DuplicateJobError(self.queue.name, job_id)
        return None, self._handle(job_id, call.results, True)

    async def _has_started(self, stored: StoredMessage) -> bool:
        """Whether a worker has begun a job."""
        try:
            info = await self._lookup.get(job_id_in(stored.data, stored.seq))
        except JobNotFoundError:
            return False
        return info.state == "running" or info.attempt > 0

    def messages_of(self, calls: Sequence[JobCall]) -> list[Outgoing]:
        """Return the messages that put jobs into the queue; delays count from now. Raises ConfigError."""
        now: int | None = None
        messages: list[Outgoing] = []
        for call in calls:
            if call.queue is not None and call.queue.name != self._name:
                raise ConfigError(
                    f"job {call.job!r} belongs to queue {call.queue.name!r} and cannot be put into {self._name!r}: "
                    "declare jobs of several queues in a pelton.Jobs()"
                )
            if call.options is PLAIN:
                # As a form makes it, in less time.
                envelope = Envelope(call.job, msgspec.Raw(call.args), meta=call.meta)
                messages.append(Outgoing(self._free, _encode(envelope)))
                continue
            form = self._form
            if form is None or form.job != call.job:
                # Mostly, many of one name follow each other.
                form = self._form = JobMessage(self.queue.names, call.job, exclusive=self.queue.exclusive)
            if now is None:
                now, new_id = self.queue.time.now(), self.queue.runtime.ids.new
            messages.append(form.message(call.args, call.options, now, new_id, call.meta))
        return messages

    def handle_of(self, call: JobCall, message: Outgoing, ack: PubAck) -> JobHandle[Any]:
        has_sequence = call.options is PLAIN or not call.options.is_later
        job_id = str(ack.seq) if has_sequence else job_id_in(message.data, ack.seq)
        return self._handle(job_id, call.results, ack.duplicate)

    def handle(self, job_id: str, job: str = "", *, duplicate: bool = False) -> JobHandle[Any]:
        """Return the handle of a job that is known by its id, and by its name if its result is to have its type."""
        known = self.queue.jobs.get(job)
        return self._handle(job_id, None if known is None else known.results, duplicate)

    def _handle(self, job_id: str, results: ResultCodec | None, duplicate: bool) -> JobHandle[Any]:
        return JobHandle(self._lookup, self._name, job_id, duplicate, None if results is None else results.decode)


def signal_message(queue: QueueContext, job_id: str, name: object, value: object, msg_id: object) -> Outgoing:
    """Return the message of a signal; one with a ``msg_id`` is refused if there is one. Raises ConfigError."""
    what = f"queue {queue.name!r}: "
    checked = checked_text(f"{what}the name of a signal", name)
    subject = queue.names.signal_subject(checked_id(queue.name, job_id), checked, "")
    try:
        data = to_json(value)
    except Exception as error:  # a value's own code may run, and raise anything
        raise ConfigError(f"{what}the value of signal {checked!r} can't be JSON: {error}") from None
    if msg_id == "":
        return Outgoing(subject + queue.runtime.ids.new(), data)
    token = token_of(checked_text(f"{what}the msg_id of a signal", msg_id))
    return Outgoing(subject + token, data, headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}))


def _chains(
    calls: Sequence[JobCall], messages: Sequence[Outgoing], answers: Sequence[PubAck | PeltonError]
) -> list[list[int]]:
    """Return the indexes of refused unique jobs: those that replace the same one follow each other, the last wins."""
    chains: list[list[int]] = []
    replacing: dict[str, list[int]] = {}
    for index, answer in enumerate(answers):
        if not isinstance(answer, WrongLastSequenceError):
            continue
        if calls[index].options.replace and (chain := replacing.get(messages[index].subject)) is not None:
            chain.append(index)
            continue
        chains.append([index])
        if calls[index].options.replace:
            replacing[messages[index].subject] = chains[-1]
    return chains


class QueueWithJobs:
    """A queue into which jobs are put."""

    jet: Streams
    name: str
    _enqueuer: Enqueuer

    @overload
    async def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...

    async def enqueue(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Put a job into the queue; returns when it is durable.

        ``job`` is one of this queue or of a `Jobs`, or the name of a job that other programs run: arguments of a job
        that this program does not know are given by name, and are checked by the worker. Options, such as ``key``,
        are given with :meth:`options`. Raises JobArgumentsError, DuplicateJobError, ConfigError.
        """
        enqueuer = self._enqueuer
        return (await enqueuer.enqueue_many((enqueuer.call_of(job, args, kwargs, PLAIN),)))[0]

    def options(self, **options: Unpack[OptionFields]) -> QueueWithOptions:
        """Return the queue with options for what is enqueued: ``await queue.options(key="car1").enqueue(repair, ...)``.

        The options are those of `JobOptions`. Raises ConfigError.
        """
        return QueueWithOptions(self._enqueuer, job_options(f"queue {self.name!r}", options))

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]:
        """Put many jobs, ``calls`` made with ``job.bind``, into the queue, durable together and in order.

        Raises ConfigError.
        """
        return await self._enqueuer.enqueue_many(calls)

    def handle(self, job_id: str, job: str = "") -> JobHandle[Any]:
        """Return the handle of a job by its id; ``job``, its name, gives the result its type. Raises ConfigError."""
        return self._enqueuer.handle(checked_id(self.name, job_id), job)


class QueueWithOptions:
    """A queue and the options to enqueue jobs with; made by ``queue.options(...)``."""

    __slots__ = ("_enqueuer", "_options")

    def __init__(self, enqueuer: Enqueuer, options: JobOptions) -> None:
        self._enqueuer = enqueuer
        self._options = options

    @overload
    async def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...

    async def enqueue(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Put a job into the queue, as :meth:`Queue.enqueue` does. Raises JobArgumentsError, ConfigError."""
        call = self._enqueuer.call_of(job, args, kwargs, self._options)
        return (await self._enqueuer.enqueue_many((call,)))[0]
