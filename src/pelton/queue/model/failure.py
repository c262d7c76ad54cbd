"""An error as text that can be stored: its message, and its traceback. Pure."""

from __future__ import annotations

import os
from traceback import TracebackException
from types import TracebackType
from typing import Final

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
