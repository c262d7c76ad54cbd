"""SIGTERM and SIGINT for any number of workers of one event loop.

A signal stops them all, and the handlers there were before are back at once: a second signal does what it did
before we came. The handlers are also back when the last worker has left.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Stop = Callable[[], None]


class SignalWatch:
    """What one event loop does about signals while workers run on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stops: list[Stop] = []
        self._before: dict[signal.Signals, Any] = {}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the workers run on."""
        return self._loop

    def join(self, stop: Stop) -> None:
        """Call ``stop`` on a signal."""
        self._stops.append(stop)
        if self._before:
            return
        for number in _SIGNALS:
            self._before[number] = signal.getsignal(number)
            self._loop.add_signal_handler(number, self._signalled)

    def leave(self, stop: Stop) -> None:
        """Call ``stop`` no more."""
        self._stops.remove(stop)
        if not self._stops:
            self._restore()

    def _signalled(self) -> None:
        self._restore()
        for stop in list(self._stops):
            stop()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            self._loop.remove_signal_handler(number)
            # None: it was not set from Python, and can't be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


_watches: list[SignalWatch] = []


def watch_signals(stop: Stop) -> Callable[[], None]:
    """Call ``stop`` on SIGTERM or SIGINT until the returned function is called; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    # Signals belong to the process and its main thread, which runs one loop at a time: one watch is enough.
    if not _watches or _watches[0].loop is not loop:
        _watches[:] = [SignalWatch(loop)]
    watch = _watches[0]
    watch.join(stop)
    return lambda: watch.leave(stop)
