"""The one object that carries the outside world to the code that needs it, and the life of what starts and stops.

**The one object that carries the outside world to the code that needs it: clock, ids, randomness, background tasks.**
**Ids** are unique without coordination, in the shape NATS clients use (NUID). An id is 22 characters of base 62: a
prefix of 12 drawn at random once, then a counter of 10 that starts at a random value and moves by a random step.
Uniqueness rests on the prefix (71 bits); the counter makes the next id cheap.

A forked child inherits the parent's prefix and counter and would hand out the same ids, so the process id is
compared on every call and a child draws again.

**Tasks.** The event loop holds tasks weakly: an unreferenced one can be collected in mid-flight, and its error shows,
if ever, at collection. Here a task is held until it is done, and an unobserved error is logged when it happens.

**One lifecycle for everything that starts and stops.**

    new -> running -> stopped
      `----------------^

`start` and `stop` may be called any number of times, also at once from several tasks: the work is done once
and all callers return when it is done. A service that stopped stays stopped; to run again, build another.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import os
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Self, TypeVar

import msgspec

from pelton.runtime.clock import Clock, SystemClock

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_BASE = len(_PAIRS)
_PREFIX_LENGTH = 12
_COUNTER_PAIRS = 5
_COUNTER_LIMIT = _BASE**_COUNTER_PAIRS
_STEP_FROM, _STEP_BELOW = 33, 333


class Ids:
    """A generator of unique ids; safe to share between threads and across `fork`."""

    def __init__(self, entropy: random.Random) -> None:
        """Draw prefix, start and step from `entropy`: the system's, or a seeded one in tests."""
        self._entropy = entropy
        self._draw()

    def new(self) -> str:
        """Return an id of 22 characters from `0-9A-Za-z` that this generator has not returned before."""
        if self._pid != os.getpid():
            self._draw()
        prefix, counter = self._sequence
        return prefix + _encode(next(counter) % _COUNTER_LIMIT)

    def _draw(self) -> None:
        prefix = "".join(self._entropy.choices(_DIGITS, k=_PREFIX_LENGTH))
        start = self._entropy.randrange(_COUNTER_LIMIT)
        step = self._entropy.randrange(_STEP_FROM, _STEP_BELOW)
        # One attribute, so that another thread never sees the new prefix with the old counter.
        # `next` on a count is a single step of the interpreter: threads never share a value.
        self._sequence: tuple[str, Iterator[int]] = (prefix, itertools.count(start, step))
        self._pid = os.getpid()


def _encode(value: int) -> str:
    parts = []
    for _ in range(_COUNTER_PAIRS):
        value, pair = divmod(value, _BASE)
        parts.append(_PAIRS[pair])
    parts.reverse()
    return "".join(parts)


_T = TypeVar("_T")
_log = logging.getLogger("pelton.runtime")


class Tasks:
    """The live background tasks."""

    def __init__(self) -> None:
        # In the order in which they began: equal runs are equal.
        self._alive: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def spawn(self, coro: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run `coro` as a task of the running event loop, called `name` in logs and debuggers."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._alive[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._alive.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %r failed", task.get_name(), exc_info=error)


# --- the one object that carries the outside world to the code that needs it


class Runtime(msgspec.Struct, frozen=True):
    """Clock, randomness, ids and background tasks of one Pelton instance."""

    clock: Clock
    random: random.Random
    ids: Ids
    tasks: Tasks = msgspec.field(default_factory=Tasks)

    def spawn(self, coro: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run `coro` in the background under `name`; it is kept alive, and its error is logged."""
        return self.tasks.spawn(coro, name)

    async def finish(self, coro: Coroutine[Any, Any, _T], name: str) -> _T:
        """Await `coro`, which finishes in the background if the caller is cancelled.

        For work that must not be left half done, such as releasing something that others wait for.
        """
        done = self.spawn(_outcome(coro), name)
        try:
            value, error = await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(_tell)
            raise
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # no error: there is a value


async def _outcome(coro: Coroutine[Any, Any, _T]) -> tuple[_T | None, Exception | None]:
    # A task that fails is logged; here the error is raised to the caller, if it still waits.
    try:
        return await coro, None
    except Exception as error:
        return None, error


def _tell(done: asyncio.Task[tuple[object, Exception | None]]) -> None:
    if not done.cancelled() and (error := done.result()[1]) is not None:
        _log.debug("%s failed after its caller was cancelled: %s", done.get_name(), error)


def system_runtime() -> Runtime:
    """Return a runtime with the machine's clock and entropy.

    The system's generator has no state of its own, so forked children do not repeat each other.
    """
    entropy = random.SystemRandom()
    return Runtime(clock=SystemClock(), random=entropy, ids=Ids(entropy))


class ServiceState(enum.Enum):
    """Where a service is in its life."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Service(ABC):
    """A base for objects that hold tasks, files or connections between `start` and `stop`."""

    def __init__(self) -> None:
        """A service in state `new`; nothing is acquired before `start`."""
        self._state = ServiceState.NEW
        self._transition = asyncio.Lock()

    @property
    def state(self) -> ServiceState:
        """The state after the last finished transition."""
        return self._state

    async def start(self) -> None:
        """Acquire what the service needs; no effect when it is running.

        Raises RuntimeError after `stop`. When acquiring fails the error passes through and the service is
        stopped.
        """
        async with self._transition:
            if self._state is ServiceState.RUNNING:
                return
            if self._state is ServiceState.STOPPED:
                raise RuntimeError(f"{type(self).__name__} was stopped; build a new one to start again")
            await self._acquire()

    async def stop(self) -> None:
        """Release everything, and return when that is done; no effect when the service is not running."""
        async with self._transition:
            was, self._state = self._state, ServiceState.STOPPED
            if was is ServiceState.RUNNING:
                await self._on_stop()

    async def _acquire(self) -> None:
        try:
            await self._on_start()
        except BaseException:
            # A start that failed half way still owns its first half.
            self._state = ServiceState.STOPPED
            await self._on_stop()
            raise
        self._state = ServiceState.RUNNING

    @abstractmethod
    async def _on_start(self) -> None:
        """Acquire; called at most once."""

    @abstractmethod
    async def _on_stop(self) -> None:
        """Release; called at most once, and also after a start that failed half way."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


# --- long work on a thread that ends soon after its caller is cancelled, and before the caller continues

T = TypeVar("T")


class Halted(Exception):  # noqa: N818  # never seen: its caller was cancelled
    """The work was abandoned because its caller was cancelled."""


class Halt:
    """A request to end work on a thread; the work checks it periodically."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_asked_for(self) -> bool:
        """Whether the work should end now."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask the work to end; from any thread."""
        self._event.set()

    def check(self) -> None:
        """Raise Halted if the work should end."""
        if self._event.is_set():
            raise Halted


async def on_thread(work: Callable[[Halt], T], undo: Callable[[T], object] | None = None) -> T:
    """Run ``work`` on a thread and return its result.

    If the caller is cancelled, the work is asked to halt, and this returns only after it has ended and undone its
    incomplete steps. If it was complete all the same, ``undo`` is called with its result, which nobody gets.
    """
    halt = Halt()
    # Not a task, which the end of asyncio.run() would cancel while the thread runs on.
    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work, halt)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        halt.ask()
        await until_ended(running)
        if undo is not None and not running.cancelled() and running.exception() is None:
            undo(running.result())
        raise


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and return when they have ended, in whatever way; None is no task."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def until_ended(running: asyncio.Future[Any]) -> None:
    """Wait for the end of what must not be left behind, however often the caller is cancelled meanwhile."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        # Retrieve the error, which no one awaits any more, so that asyncio does not log it.
        running.exception()
