"""A standstill of the event loops that have threads of their own, so that a fork finds none in the middle of its work.

A forked child has only the thread that forked, and what another thread was using at that moment is in use for ever
there. So each loop is made to wait between two of its callbacks. A loop that does not come to it is not waited for
long: it may itself wait for the thread that forks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from pelton.runtime import loop_thread
from pelton.runtime.blocking import pause, stopwatch
from pelton.runtime.loop_thread import LoopThread

_PATIENCE_S: Final = 1.0
_LONGEST_S: Final = 10.0
_AGAIN_S: Final = 0.001


class Standstill:
    """Loops that wait from `begin` to `end`, called on one thread; other threads have their turn after it."""

    def __init__(self) -> None:
        self._resume: threading.Event | None = None
        self._turn = loop_thread.standing_still

    def begin(self, is_idle: Callable[[], bool]) -> None:
        """Stop all loops, at a moment when ``is_idle``; after a second in vain, go on without."""
        turn = loop_thread.standing_still
        turn.acquire()
        self._turn = turn
        resume = self._resume = threading.Event()
        began = stopwatch()
        while others := [thread for thread in loop_thread.loop_threads() if not thread.is_here]:
            arrivals = [(thread, _stop(thread, resume)) for thread in others]
            for thread, arrived in arrivals:
                while not (thread.is_blocked or arrived.wait(_AGAIN_S)) and stopwatch() - began < _PATIENCE_S:
                    pass
            if is_idle():
                return
            resume.set()
            if stopwatch() - began > _PATIENCE_S:
                return
            pause(_AGAIN_S)
            resume = self._resume = threading.Event()

    def end(self) -> None:
        """Let the loops go on."""
        if self._resume is not None:
            self._resume.set()
            self._resume = None
            self._turn.release()


def _stop(thread: LoopThread, resume: threading.Event) -> threading.Event:
    arrived = threading.Event()

    def stand_still() -> None:
        arrived.set()
        resume.wait(_LONGEST_S)

    if not thread.call_soon(stand_still):
        arrived.set()
    return arrived
