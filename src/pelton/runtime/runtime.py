"""The one object that carries the outside world to the code that needs it: clock, ids, randomness, background tasks.

**Ids** are unique without coordination, in the shape NATS clients use (NUID). An id is 22 characters of base 62: a
prefix of 12 drawn at random once, then a counter of 10 that starts at a random value and moves by a random step.
Uniqueness rests on the prefix (71 bits); the counter makes the next id cheap.

A forked child inherits the parent's prefix and counter and would hand out the same ids, so the process id is
compared on every call and a child draws again.

**Tasks.** The event loop holds tasks weakly: an unreferenced one can be collected in mid-flight, and its error shows,
if ever, at collection. Here a task is held until it is done, and an unobserved error is logged when it happens.
"""

import asyncio
import itertools
import logging
import os
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
        """An empty set."""
        # In the order in which they began: equal runs are equal.
        self._alive: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def spawn(self, coro: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run `coro` as a task of the running event loop, called `name` in logs and debuggers."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._alive[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._alive.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %r failed", task.get_name(), exc_info=error)


# --- the one object that carries the outside world to the code that needs it


@dataclass(frozen=True)
class Runtime:
    """Clock, randomness, ids and background tasks of one Pelton instance."""

    clock: Clock
    random: random.Random
    ids: Ids
    tasks: Tasks = field(default_factory=Tasks)

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
