"""The one object that carries the outside world to the code that needs it."""

import asyncio
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pelton.runtime.clock import Clock, SystemClock
from pelton.runtime.ids import Ids
from pelton.runtime.tasks import Tasks

_T = TypeVar("_T")
_log = logging.getLogger("pelton.runtime")


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
