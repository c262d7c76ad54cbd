"""How a job continues after an attempt: pure decisions from how the attempt ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from traceback import TracebackException
from types import TracebackType
from typing import Final

import msgspec

from pelton.api import (
    Cancel,
    Discard,
    JobArgumentsError,
    JobCancelledError,
    JobResultError,
    MessageTooLargeError,
    PermanentJobError,
    RetryJob,
    Snooze,
    UnknownJobError,
)
from pelton.queue.model.limits import JobLimit
from pelton.queue.model.options import JobRules
from pelton.queue.model.states import AFTER_ATTEMPT, AttemptEnd, Ending
from pelton.runtime import Random

_QUEUE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_LONGEST_TEXT: Final = 8192
_LONGEST_TRACE: Final = 8192
_LONGEST_LINE: Final = 1024
_MOST_FRAMES: Final = 50
_CUT: Final = "[...]\n"


def frames_of_job(error: BaseException) -> TracebackType | None:
    """Return where a job raised an error, without the worker's own frames; None for an error of the worker itself."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_QUEUE):
        frames = frames.tb_next
    return frames


def is_raised(error: BaseException) -> bool:
    """Whether a traceback would show where a job raised an error, or its cause."""
    return frames_of_job(error) is not None or error.__cause__ is not None


def describe(error: BaseException) -> str:
    """Return an error as text that can be stored: its class and its message, truncated if it is too long."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as failed:  # an error's own code may be wrong as well
        text = f"(its message can't be read: {type(failed).__name__})"
    text = _storable(text[:_LONGEST_TEXT])
    return f"{name}: {text}" if text else name


def trace(error: BaseException) -> str:
    """Return an error's traceback as text that can be stored, with its causes, starting at the job's own function.

    A long one keeps its end, where the error is. Empty for an error that was never raised.
    """
    if not is_raised(error):
        return ""
    try:
        # A negative limit keeps the innermost frames.
        lines = TracebackException(type(error), error, frames_of_job(error), limit=-_MOST_FRAMES, compact=True).format()
        cut = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}{_CUT}" for line in lines]
    except BaseException:  # an error's own code may be wrong as well
        return ""
    text = "".join(cut)
    return _storable(text if len(text) <= _LONGEST_TRACE else _CUT + text[len(_CUT) - _LONGEST_TRACE :])


def _storable(text: str) -> str:
    """Escape lone surrogates, which names of files may hold and JSON can't."""
    return text.encode(errors="backslashreplace").decode()


# --- how a job continues after an attempt: pure decisions from how the attempt ended

_LONGEST_DELAY_S: Final = 100 * 365 * 86_400.0


class Finish(msgspec.Struct, frozen=True):
    """The job has ended. ``traceback`` is the text of the failed attempt's traceback.

    ``by_order``: an order that cancels it has ended it, which is then carried out.
    """

    state: Ending
    error: str = ""
    traceback: str = ""
    by_order: bool = False


class Again(msgspec.Struct, frozen=True):
    """The job is retried after ``delay`` seconds."""

    delay: float
    error: str


class PutOff(msgspec.Struct, frozen=True):
    """The job is given back for ``delay`` seconds, and the attempt is not counted.

    None: for longer each time. ``began``: its function has run. ``limit``: it is held, for that limit. ``pause``: the
    scope that is paused.
    """

    delay: float | None
    reason: str
    began: bool = False
    limit: JobLimit | None = None
    pause: str = ""


AfterAttempt = Finish | Again | PutOff
Decide = Callable[[BaseException, int, JobRules, Random], AfterAttempt]


def after_error(error: BaseException, attempt: int, rules: JobRules, random: Random) -> AfterAttempt:
    """Decide what follows an attempt that raised ``error``; ``attempt`` counts from 1."""
    if isinstance(error, UnknownJobError) or (isinstance(error, JobArgumentsError) and error.is_stored):
        # Another worker may know it, or this one after its next start.
        return PutOff(None, describe(error))
    if isinstance(error, Snooze):
        return PutOff(_whole_delay(error.delay), error.reason or describe(error), began=True)
    end, text = _end_by(error, attempt, rules), describe(error)
    state = AFTER_ATTEMPT[end]
    if state == "retrying":
        asked = error.delay if isinstance(error, RetryJob) else None
        if asked is not None:
            return Again(_whole_delay(asked), text)
        delay, wrong = rules.delay_after(attempt, error, random)
        return Again(delay, f"{text} ({wrong})" if wrong else text)
    if end == "last attempt":
        text = f"{text} (attempt {attempt} of {rules.max_attempts})"
    traceback = trace(error) if end == "Discard" or state == "failed" else ""
    return Finish(state, text, traceback, by_order=isinstance(error, JobCancelledError))


def _whole_delay(asked: float) -> float:
    """Return a delay that can be kept: what a job asks for may be anything."""
    return min(max(asked, 0.0), _LONGEST_DELAY_S) if asked == asked else 0.0


def _end_by(error: BaseException, attempt: int, rules: JobRules) -> AttemptEnd:
    """Return how an attempt ends that raised ``error``."""
    if isinstance(error, (JobCancelledError, Cancel)):
        return "Cancel"
    if isinstance(error, Discard):
        return "Discard"
    if isinstance(error, (PermanentJobError, JobArgumentsError, JobResultError, *rules.permanent)):
        return "permanent error"
    return "last attempt" if attempt >= rules.max_attempts else "error"


def after_refusal(refused: BaseException, attempt: int, rules: JobRules, random: Random) -> AfterAttempt:
    """Decide what follows an attempt that ran to its end, but whose result or messages were refused."""
    if isinstance(refused, MessageTooLargeError):
        # Another attempt would do the same work again, and be refused again.
        what = "the job ran to its end, but its result, or a message that it emitted, is too large to be stored"
        return _finished("refused", f"{what}: {describe(refused)}")
    return after_error(refused, attempt, rules, random)


def after_deaths(attempt: int, max_attempts: int) -> Finish | None:
    """Decide, before running it, about a job whose workers died during all its attempts."""
    if attempt <= max_attempts:
        return None
    return _finished("deaths", f"the worker died, or lost its lease, during attempt {attempt - 1} of {max_attempts}")


def _finished(end: AttemptEnd, error: str = "") -> Finish:
    state = AFTER_ATTEMPT[end]
    assert state != "retrying", f"{end}: the job has ended"
    return Finish(state, error)


COMPLETED: Final = _finished("return")
"""What follows an attempt that ran to its end, and whose result and messages are stored."""

SKIPPED: Final = _finished("skipped", "skipped: an earlier run of its schedule had not ended when it was due")
"""What becomes of a job of a schedule that is not to run beside another one."""

TOO_LATE: Final = _finished("too late", "its time to live was over before a worker had started it")
"""What becomes of a job that nobody has started in time."""
