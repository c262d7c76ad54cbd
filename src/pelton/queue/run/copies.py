"""Copies of a process that a job makes with ``os.fork()``: each ends where it would come back from the job.

It has everything that the process has: its jobs, its connections, its event loop. What it did with them, it would do
in the name of the other.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress

# How many forks lie between the first process and this one: a look at it costs less than asking for a pid.
_depth = 0


def _deeper() -> None:
    global _depth
    _depth += 1


os.register_at_fork(after_in_child=_deeper)


class Copies:
    """Tells the process in which it was made from its copies."""

    def __init__(self) -> None:
        self._depth = _depth

    @property
    def is_one(self) -> bool:
        """Whether this is a copy."""
        return _depth != self._depth

    def end(self, error: BaseException | None) -> None:
        """End a copy, as its program would that has returned, or raised ``error``."""
        if _depth == self._depth:
            return
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            with suppress(BaseException):
                traceback.print_exception(error)
        flush()
        os._exit(code & 0xFF)


def flush() -> None:
    """Write what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # A job may have closed or replaced it.
        with suppress(Exception):
            stream.flush()
