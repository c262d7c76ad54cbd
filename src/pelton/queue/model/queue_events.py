"""What happens to jobs, as events, and how they are read from what a queue stores. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from pelton.api.json_values import UNREADABLE
from pelton.queue.model.states import Attempt, JobProgress, Outcome

if TYPE_CHECKING:
    from pelton.api import Delivered

QueueEventKind = Literal[
    "enqueued", "scheduled", "held", "started", "progress", "retrying", "completed", "failed", "cancelled", "expired"
]
EVENT_KINDS: Final[tuple[QueueEventKind, ...]] = get_args(QueueEventKind)
ANNOUNCED: Final[frozenset[QueueEventKind]] = frozenset(("enqueued", "scheduled", "held", "started"))
"""Those that are told to whoever listens, and are not stored."""

_attempt: Final = msgspec.json.Decoder(Attempt).decode
_outcome: Final = msgspec.json.Decoder(Outcome).decode
_progress: Final = msgspec.json.Decoder(JobProgress).decode


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


def announced(data: bytes) -> Sequence[QueueEvent]:
    """Return the events of an announcement; empty if it cannot be read, because another version wrote it."""
    try:
        return _told(data)
    except UNREADABLE:
        return ()


def ending_event(delivered: Delivered) -> QueueEvent | None:
    """Return the event of an outcome."""
    outcome = _outcome(delivered.data)
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
    told = _progress(delivered.data)
    job_id = delivered.subject.rpartition(".progress")[0].rpartition(".")[2]
    return QueueEvent(kind="progress", id=job_id, at=told.at or delivered.time_ns, progress=told)
