"""Event loops: what belongs to one, loops on threads of their own, and their standstill before a fork.

**An event loop on its own thread, for work that must continue while other threads are busy or blocked.**

    new -> running -> ended

The loop runs one coroutine function and ends with it, after cancelling all remaining tasks. That function defines how
it is asked to return. Calls from other threads are accepted from ``start`` on, even before the
thread runs, and refused once the loop has ended. The thread is a daemon: a program that forgot to end it can
exit. After ``fork`` the child has no such thread: calls are refused there, and there is nothing to wait for.

**A standstill of the event loops that have threads of their own, so that a fork finds none in the middle of its work.**
A forked child has only the thread that forked, and what another thread was using at that moment is in use for ever
there. So each loop is made to wait between two of its callbacks. A loop that does not come to it is not waited for
long: it may itself wait for the thread that forks.

**What belongs to an event loop, and to a caller.** Futures, sockets, timers and connections to SQLite belong to one
event loop and its thread. Used from another loop they mostly work, until both use them at once: so their owner first
checks which loop it is on.

**The caller**, by which what belongs to it is found by it alone, is the running task, or, for the blocking API, which
runs each call in its own task, the waiting thread.

**Async iterations that stay on the event loop of their source.** An error raised inside an async generator ends it. But
use on a foreign event loop must not end it: its prefetched items belong to the loop that continues with it. So the loop
is checked before each step, outside of the generator.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, TypeVar, cast

from pelton.runtime.clock import pause, stopwatch

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
        return threading.get_ident() == self._thread.ident

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy, whose thread is the parent's."""
        return os.getpid() != self._pid

    @property
    def is_alive(self) -> bool:
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

    async def block(self, event: threading.Event, timeout: float) -> bool:
        """Block the loop, on its own thread, for ``timeout`` seconds at most; return whether ``event`` came.

        It never suspends. Awaited all the same: in a simulation all threads share one loop.
        """
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


_PATIENCE_S: Final = 1.0
_LONGEST_S: Final = 10.0
_AGAIN_S: Final = 0.001


class Standstill:
    """Loops that wait from `begin` to `end`, called on one thread; other threads have their turn after it."""

    def __init__(self) -> None:
        self._resume: threading.Event | None = None
        self._turn = standing_still

    def begin(self, is_idle: Callable[[], bool]) -> None:
        """Stop all loops, at a moment when ``is_idle``; after a second in vain, go on without."""
        turn = standing_still
        turn.acquire()
        self._turn = turn
        resume = self._resume = threading.Event()
        began = stopwatch()
        while others := [thread for thread in loop_threads() if not thread.is_here]:
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
        # To find the running loop takes Python 3.11 a system call. A thread runs one loop at a time, so if this loop
        # runs a task, and this is its thread, the task is the caller.
        if self._loop is not None and threading.get_ident() == self._thread:
            task = asyncio.current_task(self._loop)
            if task is not None:
                return task is self.identity or _identity(task) == self.identity
        return owner() == self.identity


F = TypeVar("F", bound=Callable[..., Any])


class Iteration(AsyncGenerator[T, None]):
    """An async generator whose steps ``check`` may refuse, without affecting the generator."""

    __slots__ = ("_check", "_source")

    def __init__(self, source: AsyncGenerator[T, None], check: Callable[[], None]) -> None:
        self._source = source
        self._check = check

    def __anext__(self) -> Coroutine[Any, Any, T]:
        self._check()
        return self._source.__anext__()

    def asend(self, value: None, /) -> Coroutine[Any, Any, T]:
        self._check()
        return self._source.asend(value)

    def athrow(self, *raised: Any) -> Coroutine[Any, Any, T]:
        """Continue with an error."""
        self._check()
        return self._source.athrow(*raised)

    def aclose(self) -> Coroutine[Any, Any, None]:
        self._check()
        return self._source.aclose()


def at_home(method: F) -> F:
    """Make the async generators of a method check the event loop at each step, with its object's ``_check_loop``."""

    @wraps(method)
    def iterate(self: Any, *args: Any, **kwargs: Any) -> Iteration[Any]:
        return Iteration(method(self, *args, **kwargs), self._check_loop)

    return cast(F, iterate)
