"""An event loop on its own thread, for work that must continue while other threads are busy or blocked.

    new -> running -> ended

The loop runs one coroutine function and ends with it, after cancelling all remaining tasks. That function defines how
it is asked to return. Calls from other threads are accepted from ``start`` on, even before the
thread runs, and refused once the loop has ended. The thread is a daemon: a program that forgot to end it can
exit. After ``fork`` the child has no such thread: calls are refused there, and there is nothing to wait for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
_log: Final = logging.getLogger("pelton.runtime")
_threads: Final = weakref.WeakSet["LoopThread"]()
# Held during a standstill: a loop that was blocked before stays so.
standing_still: threading.RLock = threading.RLock()


class LoopThread:
    """Runs ``main`` on its own event loop; ``name`` is the thread's. An error that ends it is logged."""

    is_blocked: bool

    def __init__(self, main: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        self._main = main
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_blocked = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; call it once."""
        loop = asyncio.new_event_loop()
        self._loop = loop
        _threads.add(self)
        try:
            self._thread.start()
        except BaseException:
            self._loop = None
            loop.close()
            raise

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.get_ident() == self._thread.ident

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy, whose thread is the parent's."""
        return os.getpid() != self._pid

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return not self.is_inherited and self._thread.is_alive()

    def call_soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Schedule a function on the loop, from any thread; return False if the loop is not running."""
        if self._loop is None or self.is_inherited:
            return False
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it has ended
            return False
        return True

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` on the loop, from another one. Raises RuntimeError if the loop is not running."""
        if self._loop is None or not self.is_alive:
            work.close()
            raise RuntimeError(f"the event loop of thread {self._thread.name!r} is not running")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def block(self, event: threading.Event, timeout: float) -> bool:
        """Block the loop, on its own thread, until an event or for so many seconds; return whether it was the event."""
        self.is_blocked = True
        try:
            return event.wait(timeout)
        finally:
            with standing_still:
                self.is_blocked = False

    def join(self) -> None:
        """Wait until the loop has ended; returns at once on its own thread, which would wait for ever."""
        if self.is_alive and not self.is_here:
            self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._main())
        except Exception:  # no one could catch it
            _log.exception("the event loop of thread %r ended", self._thread.name)
        finally:
            loop.close()


def _after_fork_in_child() -> None:
    global standing_still
    standing_still = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def loop_threads() -> list[LoopThread]:
    """Return those that run in this process."""
    while True:
        try:
            return [thread for thread in _threads if thread.is_alive]
        except RuntimeError:  # another thread has just started one
            continue
