"""What is logged of an attempt that has not completed its job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pelton.api import RetryJob
from pelton.queue.decide import Again, Finish
from pelton.queue.failure import frames_of_job

if TYPE_CHECKING:
    from pelton.queue.records import AttemptRecords

_log: Final = logging.getLogger("pelton")


def report(queue: str, records: AttemptRecords, decision: Finish | Again, error: BaseException | None = None) -> None:
    """Log an attempt with the traceback of its error, if a job has raised it; ``error`` None: it never began."""
    level, then = _consequence(decision, error)
    frames = frames_of_job(error) if error is not None and level > logging.INFO else None
    _log.log(
        level,
        "job %s (%r) of queue %r, attempt %d: %s: %s",
        records.id,
        records.envelope.job,
        queue,
        records.attempt,
        then,
        decision.error,
        exc_info=(type(error), error, frames) if error is not None and frames is not None else None,
    )


def _consequence(decision: Finish | Again, error: BaseException | None) -> tuple[int, str]:
    if isinstance(decision, Again):
        # A job that asks for another attempt has not gone wrong.
        level = logging.INFO if isinstance(error, RetryJob) else logging.WARNING
        return level, f"failed and is tried again in {decision.delay:.3g} s"
    if decision.state == "cancelled":
        return logging.INFO, "cancelled"
    return logging.ERROR, "failed for good and is a dead letter"
