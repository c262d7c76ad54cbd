"""Telling whoever listens, in any process, what is not stored: that jobs were enqueued, and that one has started."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import Outgoing, PeltonError
from pelton.queue.model.naming import encode_tenant
from pelton.queue.model.options import JobOptions, due_time
from pelton.queue.model.queue_events import QueueEvent, QueueEventKind, encode_events
from pelton.queue.model.states import Envelope

if TYPE_CHECKING:
    from pelton.queue.define.job import JobCall, JobHandle
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.model.records import AttemptRecords

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
        _stored(handle.id, call.job, call.options.key, due_time(call.options, now), now)
        for call, handle in zip(calls, handles, strict=True)
        if not handle.duplicate
    ]
    await _announce(queue, events)


async def announce_again(queue: QueueContext, handle: JobHandle[Any], job: str, key: str, due: int = 0) -> None:
    """Tell that a job was stored that has been elsewhere: among the dead letters, or in another queue."""
    if has_listeners(queue) and not handle.duplicate:
        await _announce(queue, [_stored(handle.id, job, key, due, queue.clock.now())])


async def announce_messages(queue: QueueContext, messages: Sequence[Outgoing]) -> None:
    """Tell that the jobs of these messages were stored; each has its own id."""
    if messages and has_listeners(queue):
        now, envelopes = queue.clock.now(), [_envelope(message.data) for message in messages]
        await _announce(queue, [_stored(one.id, one.job, one.key, one.due, now) for one in envelopes])


def _stored(job_id: str, job: str, key: str, due: int, now: int) -> QueueEvent:
    kind: QueueEventKind = "scheduled" if due else "enqueued"
    return QueueEvent(kind=kind, id=job_id, at=now, job=job, key=key, due=due)


async def announce_start(queue: QueueContext, records: AttemptRecords, worker: str) -> None:
    """Tell that an attempt starts."""
    await _announce(queue, (_taken(queue, "started", records, worker),))


async def announce_held(queue: QueueContext, records: AttemptRecords, worker: str, limit: str) -> None:
    """Tell that a job that was taken waits for a limit."""
    await _announce(queue, (_taken(queue, "held", records, worker, limit),))


def _taken(
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
