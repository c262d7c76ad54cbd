"""What a queue stores, and the states of a job.

The states and what moves a job between them (goalpost's words in brackets)::

    enqueue            -> pending    [uack]   stored in the queue's stream, not started
    enqueue delay, at  -> scheduled           stored as a schedule of the queue's stream
    scheduled falls due -> pending
    pending  take late -> expired             its ttl is over: it is not started
    pending  take      -> running    [uack]   held by one worker under a lease
    running  return    -> completed  [ack]    moved to the history with its result
    running  raise     -> retrying   [nack]   given back, due after a backoff; attempts are counted
    running  raise     -> failed     [failed] permanent error, or the last attempt: dead letters and history
    running  raise JobCancelledError -> cancelled
    running  worker dies -> running           the lease expires, another worker takes it: an attempt
    running  worker stops -> pending          handed back: no attempt
    retrying backoff passes -> pending

A job's id is the sequence of its message in the queue's stream; a scheduled job, whose message is stored again when it
falls due, has an id of its own (``places.py``). What becomes of a job after an attempt is
:data:`AFTER_ATTEMPT`, by which ``decide.py`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from pelton.api import JobFailedError

JobState = Literal["pending", "scheduled", "running", "retrying", "completed", "failed", "cancelled", "expired"]
Ending = Literal["completed", "failed", "cancelled", "expired"]
ENDINGS: Final[tuple[Ending, ...]] = ("completed", "failed", "cancelled", "expired")

NOTHING: Final = msgspec.Raw(b"null")
"""The result of a job that returns none."""

AttemptEnd = Literal[
    "return", "error", "permanent error", "last attempt", "refused", "deaths", "JobCancelledError", "too late"
]
"""How an attempt ends that is not handed back.

``refused``: its messages can never be stored; ``deaths``: the workers of all its attempts died; ``too late``: it was
not started, because the job's time to live was over.
"""

AFTER_ATTEMPT: Final[Mapping[AttemptEnd, Ending | Literal["retrying"]]] = {
    "return": "completed",
    "error": "retrying",
    "permanent error": "failed",
    "last attempt": "failed",
    "refused": "failed",
    "deaths": "failed",
    "JobCancelledError": "cancelled",
    "too late": "expired",
}


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A job as stored in the queue: which function, with which arguments (JSON), under which key.

    ``id`` is set for a job whose id is not the sequence of its message. Times are wall nanoseconds, 0 if there is none:
    when a scheduled job falls ``due``, and when a job that has not started ``expires``. ``meta`` is the program's own.
    """

    job: str
    args: msgspec.Raw
    key: str = ""
    redriven_from: str = ""
    id: str = ""
    due: int = 0
    expires: int = 0
    meta: dict[str, str] = {}


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """How a job ended. Times are wall nanoseconds; ``result`` is JSON.

    ``error`` is what its last attempt raised, ``traceback`` its traceback as text, of which a long one keeps the end.
    """

    id: str
    job: str
    state: Ending
    key: str = ""
    attempt: int
    worker: str
    enqueued_at: int
    started_at: int
    finished_at: int
    result: msgspec.Raw = NOTHING
    error: str = ""
    traceback: str = ""

    def value(self) -> object:
        """Return the decoded result of a completed job. Raises JobFailedError if it ended otherwise."""
        if self.state != "completed":
            raise JobFailedError(self.id, self.job, self.state, self.error, self.traceback)
        return msgspec.json.decode(self.result)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A failed job with everything needed to run it again.

    ``subject`` and ``data`` are set for a message that could not be read as a job; its envelope is empty.
    """

    outcome: Outcome
    envelope: Envelope
    subject: str = ""
    data: bytes = b""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """What is known of a job that was tried and has not ended.

    ``returned`` deliveries do not count as attempts.
    """

    id: str
    attempt: int
    error: str = ""
    returned: int = 0
    retry_at: int = 0


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the views show it. ``last_error`` is the message of the last failed attempt.

    ``due`` is when a scheduled job is to start, or a retrying one to be tried again, in wall nanoseconds.
    """

    id: str
    job: str
    state: JobState
    key: str
    attempt: int
    enqueued_at: int
    last_error: str = ""
    outcome: Outcome | None = None
    due: int = 0


class JobCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in each state."""

    pending: int = 0
    running: int = 0
    retrying: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    scheduled: int = 0

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return self.pending + self.scheduled + self.running + self.retrying

    @property
    def finished(self) -> int:
        """Jobs that have ended, in any state."""
        return self.completed + self.failed + self.cancelled + self.expired
