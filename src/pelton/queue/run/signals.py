"""SIGTERM and SIGINT for any number of workers of one event loop: a signal stops them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from pelton.runtime import StopSignals

Stop = Callable[[], None]


class SignalWatch:
    """The signal handling of one event loop while workers run on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stops: list[Stop] = []
        # Also wakes the loop, which may be waiting.
        self._signals = StopSignals(lambda: loop.call_soon_threadsafe(self._stop_all))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the workers run on."""
        return self._loop

    def join(self, stop: Stop) -> None:
        """Call ``stop`` on a signal."""
        self._stops.append(stop)
        if not self._signals.taken:
            self._signals.take()

    def leave(self, stop: Stop) -> None:
        """No longer call ``stop``."""
        self._stops.remove(stop)
        if not self._stops:
            self._signals.give_back()

    def _stop_all(self) -> None:
        for stop in list(self._stops):
            stop()


_watches: list[SignalWatch] = []


def watch_signals(stop: Stop) -> Callable[[], None]:
    """Call ``stop`` on SIGTERM or SIGINT, unless the program handles them, until the returned function is called."""
    if threading.current_thread() is not threading.main_thread():
        # The loop of another thread receives no signals, and must not replace that of the main thread.
        return lambda: None
    loop = asyncio.get_running_loop()
    # Signals belong to the process and its main thread, which runs one loop at a time: one watch is enough.
    if not _watches or _watches[0].loop is not loop:
        _watches[:] = [SignalWatch(loop)]
    watch = _watches[0]
    watch.join(stop)
    return lambda: watch.leave(stop)
