"""The log entry for an attempt that did not complete its job."""

from __future__ import annotations

import logging
from traceback import format_exception
from typing import TYPE_CHECKING, Final

from pelton.api import Discard, RetryJob
from pelton.queue.model.decide import AfterAttempt, Again, PutOff
from pelton.queue.model.failure import frames_of_job, is_raised, trace

if TYPE_CHECKING:
    from pelton.queue.model.records import AttemptRecords

_log: Final = logging.getLogger("pelton.queue")


def report(queue: str, records: AttemptRecords, decision: AfterAttempt, error: BaseException | None = None) -> None:
    """Log an attempt with the traceback of its error, if the job raised it; ``error`` None: it never started."""
    level, then = _consequence(decision, error)
    shown = error if error is not None and level > logging.INFO and is_raised(error) else None
    written = "" if shown is None or _can_be_written(shown) else f"\n{trace(shown)}"
    if written:
        # A handler that writes UTF-8 would fail on the exception itself, and log nothing.
        shown = None
    _log.log(
        level,
        "job %s (%r) of queue %r, attempt %d: %s: %s%s",
        records.id,
        records.envelope.job,
        queue,
        records.attempt,
        then,
        decision.reason if isinstance(decision, PutOff) else decision.error,
        written,
        exc_info=None if shown is None else (type(shown), shown, frames_of_job(shown)),
        extra={**log_fields(queue, records), "traceback": "" if error is None else trace(error)},
    )


def log_fields(queue: str, records: AttemptRecords) -> dict[str, object]:
    """Return what a handler that stores fields, and not text, wants to have."""
    return {
        "queue": queue,
        "job": records.envelope.job,
        "id": records.id,
        "key": records.envelope.key,
        "attempt": records.attempt,
    }


def _can_be_written(error: BaseException) -> bool:
    """Whether an error's traceback has a UTF-8 form: names of files may hold lone surrogates."""
    lines = format_exception(error)
    try:
        "".join(lines).encode()
    except UnicodeEncodeError:
        return False
    return True


def _consequence(decision: AfterAttempt, error: BaseException | None) -> tuple[int, str]:
    if isinstance(decision, PutOff):
        return logging.INFO, "is given back" if decision.delay is None else f"starts again in {decision.delay:.3g} s"
    if isinstance(decision, Again):
        # A job that asks for a retry has not gone wrong.
        level = logging.INFO if isinstance(error, RetryJob) else logging.WARNING
        return level, f"failed and is tried again in {decision.delay:.3g} s"
    if decision.state == "cancelled":
        return logging.WARNING if isinstance(error, Discard) else logging.INFO, "cancelled"
    if decision.state == "expired":
        return logging.WARNING, "expired"
    return logging.ERROR, "failed for good and is a dead letter"
