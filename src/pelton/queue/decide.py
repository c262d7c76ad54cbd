"""What becomes of an attempt: pure decisions from how it ended."""

from __future__ import annotations

from typing import Final

import msgspec

from pelton.api import (
    JobArgumentsError,
    JobCancelledError,
    MessageTooLargeError,
    PeltonError,
    PermanentJobError,
    RetryJob,
)
from pelton.queue.job import JobRules
from pelton.queue.model import Ending
from pelton.runtime import Random

_LONGEST_TEXT: Final = 8192


class Finish(msgspec.Struct, frozen=True):
    """The job has ended."""

    state: Ending
    error: str = ""


class Again(msgspec.Struct, frozen=True):
    """The job is tried again after ``delay`` seconds."""

    delay: float
    error: str


def after_error(error: BaseException, attempt: int, rules: JobRules, random: Random) -> Finish | Again:
    """Decide what follows an attempt that raised ``error``; ``attempt`` counts from 1."""
    text = describe(error)
    if isinstance(error, JobCancelledError):
        return Finish("cancelled", text)
    if isinstance(error, (PermanentJobError, JobArgumentsError, *rules.permanent)):
        return Finish("failed", text)
    if attempt >= rules.max_attempts:
        return Finish("failed", f"{text} (attempt {attempt} of {rules.max_attempts})")
    if isinstance(error, RetryJob) and error.delay is not None:
        return Again(max(error.delay, 0.0), text)
    return Again(rules.backoff.delay(attempt, random), text)


def after_refusal(refused: PeltonError, attempt: int, rules: JobRules, random: Random) -> Finish | Again:
    """Decide what follows an attempt that ran to its end, and whose result or messages were refused."""
    if isinstance(refused, MessageTooLargeError):
        # Another attempt would do the same work again, and be refused again.
        what = "the job ran to its end, but its result, or a message that it emitted, is too large to be stored"
        return Finish("failed", f"{what}: {describe(refused)}")
    return after_error(refused, attempt, rules, random)


def after_deaths(attempt: int, max_attempts: int) -> Finish | None:
    """Decide, before running, about a job whose workers died during all its attempts."""
    if attempt <= max_attempts:
        return None
    return Finish("failed", f"the worker died, or lost its lease, during attempt {attempt - 1} of {max_attempts}")


def describe(error: BaseException) -> str:
    """Return an error as text that can be stored: its class and what it says, cut when it says too much."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as failed:  # an error's own code may be wrong as well
        text = f"(its text can't be had: {type(failed).__name__})"
    # Names of files may hold lone surrogates, which JSON can't.
    text = text[:_LONGEST_TEXT].encode(errors="backslashreplace").decode()
    return f"{name}: {text}" if text else name
