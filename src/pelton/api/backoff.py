"""How long to wait before trying again: exponential, capped, and jittered downwards.

Jitter spreads callers that failed together. It only ever shortens a wait, so `cap` is a true upper bound.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from pelton.api.errors import ConfigError


class _Chance(Protocol):
    def random(self) -> float:
        """Return a number from 0 to 1, 1 excluded."""
        ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """A retry schedule. `base` and `cap` are seconds; `jitter` is the share of a wait left to chance."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        """Raise ConfigError for a schedule that would shrink, go backwards or never wait."""
        for name in ("base", "factor", "cap", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"backoff: {name} is {value!r}; give a number")
        if not (0 < self.base <= self.cap < math.inf):
            raise ConfigError(
                f"backoff: base is {self.base!r} and cap {self.cap!r}; they need 0 < base <= cap, in seconds"
            )
        if not (1 <= self.factor < math.inf):
            raise ConfigError(f"backoff: factor is {self.factor!r}; it must be 1 or more, or waits would shrink")
        if not (0 <= self.jitter <= 1):
            raise ConfigError(f"backoff: jitter is {self.jitter!r}; it is a share from 0 to 1")

    def delay(self, attempt: int, rnd: _Chance) -> float:
        """Seconds to wait after failed attempt number `attempt` (the first is 1).

        Raises ValueError when `attempt` is below 1.
        """
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1: {attempt}")
        return self._full(attempt) * (1.0 - self.jitter * rnd.random())

    def _full(self, attempt: int) -> float:
        try:
            return min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:  # a job that has failed a thousand times is long past any cap
            return self.cap
