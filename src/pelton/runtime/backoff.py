"""How long to wait before trying again: exponential, capped, and jittered downwards.

Jitter spreads callers that failed together. It only ever shortens a wait, so `cap` is a true upper bound.
"""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A retry schedule. `base` and `cap` are seconds; `jitter` is the share of a wait left to chance."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        """Raise ValueError for a schedule that would shrink, go backwards or never wait."""
        if not (0 < self.base <= self.cap < math.inf):
            raise ValueError(f"backoff needs 0 < base <= cap, both finite: base={self.base}, cap={self.cap}")
        if not (1 <= self.factor < math.inf):
            raise ValueError(f"backoff factor must be finite and at least 1: {self.factor}")
        if not (0 <= self.jitter <= 1):
            raise ValueError(f"backoff jitter is a share from 0 to 1: {self.jitter}")

    def delay(self, attempt: int, rnd: random.Random) -> float:
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
