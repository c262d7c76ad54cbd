"""What happens to jobs, as events: read from what a queue stores, or told to whoever listens, and stored nowhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from pelton.api import Outgoing, PeltonError
from pelton.api.json_values import UNREADABLE
from pelton.queue.model.naming import encode_tenant
from pelton.queue.model.options import JobOptions, due_time
from pelton.queue.model.states import Attempt, Envelope, JobProgress, Outcome, decode_outcome, decode_progress

if TYPE_CHECKING:
    from pelton.api import Delivered
    from pelton.queue.define.job import JobCall, JobHandle
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.model.records import AttemptRecords

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
    """Return the event of an outcome."""
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
    """Return the event of a job's progress."""
    told = decode_progress(delivered.data)
    job_id = delivered.subject.rpartition(".progress")[0].rpartition(".")[2]
    return QueueEvent(kind="progress", id=job_id, at=told.at or delivered.time_ns, progress=told)


_log: Final = logging.getLogger("pelton.queue")
_TOGETHER: Final = 500
_MOST_RUNG: Final = 500
_encode: Final = msgspec.json.Encoder().encode
_envelope: Final = msgspec.json.Decoder(Envelope).decode


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
        now, envelopes = queue.clock.now(), [_envelope(message.data) for message in messages]
        await _announce(queue, [_stored_event(one.id, one.job, one.key, one.due, now) for one in envelopes])


def _stored_event(job_id: str, job: str, key: str, due: int, now: int) -> QueueEvent:
    kind: QueueEventKind = "scheduled" if due else "enqueued"
    return QueueEvent(kind=kind, id=job_id, at=now, job=job, key=key, due=due)


async def announce_start(queue: QueueContext, records: AttemptRecords, worker: str) -> None:
    """Tell that an attempt starts."""
    await _announce(queue, (_worker_event(queue, "started", records, worker),))


async def announce_held(queue: QueueContext, records: AttemptRecords, worker: str, limit: str) -> None:
    """Tell that a job that was taken waits for a limit."""
    await _announce(queue, (_worker_event(queue, "held", records, worker, limit),))


def _worker_event(
    queue: QueueContext, kind: QueueEventKind, records: AttemptRecords, worker: str, limit: str = ""
) -> QueueEvent:
    envelope = records.envelope
    return QueueEvent(
        kind=kind,
        id=records.id,
        at=queue.clock.now(),
        job=envelope.job,
        key=envelope.key,
        attempt=records.attempt if kind == "started" else records.begun_attempts,
        worker=worker,
        limit=limit,
    )


async def _announce(queue: QueueContext, events: Sequence[QueueEvent]) -> None:
    try:
        for first in range(0, len(events), _TOGETHER):
            await queue.backend.send(queue.names.events, encode_events(events[first : first + _TOGETHER]))
    except PeltonError as error:
        # What has happened has happened: nothing must fail because nobody could be told.
        _log.debug("events of queue %r were not told: %s", queue.name, error, extra={"queue": queue.name})
