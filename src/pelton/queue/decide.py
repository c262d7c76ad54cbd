"""How a job continues after an attempt: pure decisions from how the attempt ended."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pelton.api import (
    JobArgumentsError,
    JobCancelledError,
    JobResultError,
    MessageTooLargeError,
    PermanentJobError,
    RetryJob,
)
from pelton.queue.failure import describe, trace
from pelton.queue.job import JobRules
from pelton.queue.model import Ending
from pelton.runtime import Random


class Finish(msgspec.Struct, frozen=True):
    """The job has ended. ``traceback`` is the text of the failed attempt's traceback."""

    state: Ending
    error: str = ""
    traceback: str = ""


class Again(msgspec.Struct, frozen=True):
    """The job is retried after ``delay`` seconds."""

    delay: float
    error: str


Decide = Callable[[BaseException, int, JobRules, Random], Finish | Again]


def after_error(error: BaseException, attempt: int, rules: JobRules, random: Random) -> Finish | Again:
    """Decide what follows an attempt that raised ``error``; ``attempt`` counts from 1."""
    text = describe(error)
    if isinstance(error, JobCancelledError):
        return Finish("cancelled", text)
    if isinstance(error, (PermanentJobError, JobArgumentsError, JobResultError, *rules.permanent)):
        return Finish("failed", text, trace(error))
    if attempt >= rules.max_attempts:
        return Finish("failed", f"{text} (attempt {attempt} of {rules.max_attempts})", trace(error))
    if isinstance(error, RetryJob) and error.delay is not None:
        return Again(max(error.delay, 0.0), text)
    return Again(rules.backoff.delay(attempt, random), text)


def after_refusal(refused: BaseException, attempt: int, rules: JobRules, random: Random) -> Finish | Again:
    """Decide what follows an attempt that ran to its end, but whose result or messages were refused."""
    if isinstance(refused, MessageTooLargeError):
        # Another attempt would do the same work again, and be refused again.
        what = "the job ran to its end, but its result, or a message that it emitted, is too large to be stored"
        return Finish("failed", f"{what}: {describe(refused)}")
    return after_error(refused, attempt, rules, random)


def after_deaths(attempt: int, max_attempts: int) -> Finish | None:
    """Decide, before running it, about a job whose workers died during all its attempts."""
    if attempt <= max_attempts:
        return None
    return Finish("failed", f"the worker died, or lost its lease, during attempt {attempt - 1} of {max_attempts}")
