"""Wakes an event loop at every signal of its process.

Python calls a signal's handler on the main thread, between two of its instructions. If the signal comes just before
the loop begins to wait, or is delivered to another thread, the wait is not interrupted, and the handler would not be
called before something else wakes the loop.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress


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
