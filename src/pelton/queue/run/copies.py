"""Copies of a process that a job makes with ``os.fork()``: each ends where it would come back from the job.

It has everything that the process has: its jobs, its connections, its event loop. What it did with them, it would do
in the name of the other.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import Final
from weakref import WeakSet


class Copies:
    """Tells the process in which it was made from its copies. ``is_one``: this is a copy, which is to :meth:`end`."""

    def __init__(self) -> None:
        self.is_one: bool = False
        _all.add(self)

    def end(self, error: BaseException | None) -> None:
        """End a copy, as its program would that has returned, or raised ``error``."""
        if not self.is_one:
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


_all: Final[WeakSet[Copies]] = WeakSet()


def _copied() -> None:
    for copies in list(_all):
        copies.is_one = True


os.register_at_fork(after_in_child=_copied)


def flush() -> None:
    """Write what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # A job may have closed or replaced it.
        with suppress(Exception):
            stream.flush()
