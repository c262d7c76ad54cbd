"""What belongs to an event loop, and to a caller.

Futures, sockets, timers and connections to SQLite belong to one event loop and its thread. Used from another loop they
mostly work, until both use them at once: so their owner first checks which loop it is on.

**The caller**, by which what belongs to it is found by it alone, is the running task, or, for the blocking API, which
runs each call in its own task, the waiting thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

# Like asyncio.get_running_loop, but returns None if no loop runs; asyncio itself uses it for this.
running_loop: Final = asyncio._get_running_loop


class Home:
    """The event loop that an object belongs to: the given one, or else the first that uses it."""

    __slots__ = ("loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Belong to ``loop``; None: to the first loop that uses it."""
        self.loop = loop

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is used on another event loop; False outside of any loop, where nothing can be awaited."""
        running = running_loop()
        if running is self.loop or running is None:
            return False
        if self.loop is None:
            self.loop = running
            return False
        return True

    @property
    def is_over(self) -> bool:
        """Whether its event loop has ended."""
        return self.loop is not None and self.loop.is_closed()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop: now if it is the running one, else soon. No effect if the loop has ended."""
        if self.loop is None or running_loop() is self.loop:
            function()
        else:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(function)


_waiting: Final[ContextVar[tuple[Hashable, object] | None]] = ContextVar("pelton_waiting", default=None)


def calls_for(waiter: Hashable) -> None:
    """Note that the running task works for a waiting thread; tasks that it spawns do not."""
    _waiting.set((waiter, asyncio.current_task()))


def this_thread() -> Hashable:
    """Return an identity of the calling thread."""
    return ("thread", threading.get_ident())


def owner() -> Hashable | None:
    """Return the identity of the caller; None outside a task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else _identity(task)


def _identity(task: asyncio.Task[Any]) -> Hashable:
    waiting = _waiting.get()
    return waiting[0] if waiting is not None and waiting[1] is task else task


class Caller:
    """Who calls now, to be recognised in later calls; ``identity`` is its `owner`."""

    __slots__ = ("_loop", "_thread", "identity")

    def __init__(self) -> None:
        self.identity: Hashable | None = owner()
        self._loop = running_loop()
        self._thread = threading.get_ident()

    @property
    def calls_again(self) -> bool:
        """Whether it is the caller."""
        # To find the running loop takes Python 3.11 a system call. A thread runs one loop at a time, so if this loop
        # runs a task, and this is its thread, the task is the caller.
        if self._loop is not None and threading.get_ident() == self._thread:
            task = asyncio.current_task(self._loop)
            if task is not None:
                return _identity(task) == self.identity
        return owner() == self.identity
