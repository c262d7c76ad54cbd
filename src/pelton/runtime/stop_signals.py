"""Handles SIGTERM and SIGINT while something runs that can be stopped, unless other handlers are there.

Python calls a signal's handler on the main thread, between two of its instructions. If the signal comes just before
the loop begins to wait, or is delivered to another thread, the wait is not interrupted, and the handler would not be
called before something else wakes the loop.

A web server, a notebook or your own program installs handlers because it runs the process: replacing them would
make it miss its signal. So a signal is handled only if it still has Python's default behaviour, and none is if SIGTERM
has another one: whoever handles it decides how the process ends. (A library that handles SIGINT alone, such as Spark,
does not.) The first one requests an orderly stop and restores all handlers: a second one does what it did before.

``signal.signal`` rather than the event loop's own handlers: these replace one another silently, and it could not be
known whether a handler is still ours when it is to be restored.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final


class SignalWakeup:
    """Wakes the ``loop`` of the main thread until closed, unless somebody else is woken by signals already."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        loop.add_reader(self._reader, self._drain)
        before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if before != -1:
            # A loop with handlers of its own; more than one can't be woken.
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def close(self) -> None:
        """Wake the loop no more. Idempotent; on the loop's thread, and not within a signal's handler."""
        if self._reader.fileno() == -1:
            return
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._writer.fileno()):
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._reader)
        self._reader.close()
        self._writer.close()

    def close_soon(self) -> None:
        """Do so when the loop goes on: for a signal's handler, which may have interrupted it anywhere."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.close)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Calls ``stop`` once, on the main thread and between two of its instructions, at the first handled signal."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._is_active = False
        self._wakeup: SignalWakeup | None = None

    @property
    def taken(self) -> bool:
        """Whether a signal would be handled."""
        return self._is_active

    def take(self) -> None:
        """Handle the signals, if nobody else decides how the process ends; only possible on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not _is_default(signal.getsignal(signal.SIGTERM)):
            return
        self._is_active = True
        with suppress(RuntimeError):
            # Without one, the main thread runs the program itself, and is interrupted.
            self._wakeup = self._wakeup or SignalWakeup(asyncio.get_running_loop())
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if _is_default(before):
                self._before[number] = before
                signal.signal(number, self._signalled)

    def give_back(self) -> None:
        """Restore the original handlers where ours are still installed. Idempotent."""
        self._is_active = False
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None
        self._restore()

    def _restore(self) -> None:
        for number, before in list(self._before.items()):
            # A later handler may have saved ours, to restore it in the end: see _signalled.
            if signal.getsignal(number) == self._signalled:
                signal.signal(number, before)
                del self._before[number]

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._is_active:
            self._is_active = False
            self._restore()
            if self._wakeup is not None:
                self._wakeup.close_soon()
            self._stop()
            return
        # We had given up the signal, but our handler was restored since.
        signal.signal(number, self._before.pop(number, signal.SIG_DFL))
        signal.raise_signal(number)


def is_interrupt(error: BaseException) -> bool:
    """Whether SIGINT may have raised an error, and not the code that was running on this thread."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if _is_of_runner(handler):
        frames = error.__traceback__
        while frames is not None and frames.tb_next is not None:
            frames = frames.tb_next
        return frames is not None and frames.tb_frame.f_code.co_name == "_on_sigint"
    # Ours raises nothing. Python's own leaves no trace.
    return callable(handler) and not isinstance(getattr(handler, "__self__", None), StopSignals)


def _is_default(handler: Any) -> bool:
    """Whether a handler is Python's own, or that of asyncio.run, which cancels the main task at a SIGINT."""
    return handler in (signal.SIG_DFL, signal.default_int_handler) or _is_of_runner(handler)


def _is_of_runner(handler: Any) -> bool:
    return isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
