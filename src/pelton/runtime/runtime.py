"""The one object that carries the outside world down to whoever needs it."""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pelton.runtime.clock import Clock, SystemClock
from pelton.runtime.ids import Ids
from pelton.runtime.tasks import Tasks

_T = TypeVar("_T")


@dataclass(frozen=True)
class Runtime:
    """Clock, chance, ids and background tasks of one Pelton instance."""

    clock: Clock
    random: random.Random
    ids: Ids
    tasks: Tasks = field(default_factory=Tasks)

    def spawn(self, coro: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run `coro` in the background under `name`; it is kept alive, and its error is logged."""
        return self.tasks.spawn(coro, name)


def system_runtime() -> Runtime:
    """The machine's clock and entropy.

    The system's generator has no state of its own, so forked children do not repeat each other.
    """
    entropy = random.SystemRandom()
    return Runtime(clock=SystemClock(), random=entropy, ids=Ids(entropy))
