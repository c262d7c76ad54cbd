"""Which rank is next: the highest that waits, and sometimes a lower one. Pure.

Seven of eight are of the highest rank that waits, one is of a lower one; if several lower ones wait, they take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

BYPASS: Final = 8
"""One in this many is taken from a lower rank."""


class RankBypass(msgspec.Struct, frozen=True):
    """How many of the highest rank were next since a lower one was, and which lower one that was."""

    passed: int = 0
    below: int = 0

    @classmethod
    def of_number(cls, number: int) -> RankBypass:
        """Return what was given to :attr:`number`."""
        return cls(number % BYPASS, number // BYPASS)

    @property
    def number(self) -> int:
        """The whole state as one number."""
        return self.passed + BYPASS * self.below

    def after(self, rank: int, waiting: Mapping[int, int]) -> RankBypass:
        """Return what follows once ``rank`` was served; ``waiting`` are the numbers of those that waited, by rank."""
        if rank < _highest(waiting):
            return RankBypass(0, rank)
        return RankBypass(min(self.passed + 1, BYPASS - 1) if _lower(waiting) else 0, self.below)

    def next(self, waiting: Mapping[int, int]) -> int:
        """Return the rank that is next; at least one waits."""
        lower = _lower(waiting)
        if not lower or self.passed < BYPASS - 1:
            return _highest(waiting)
        return max((rank for rank in lower if rank < self.below), default=max(lower))


def _highest(waiting: Mapping[int, int]) -> int:
    return max(rank for rank, number in waiting.items() if number)


def _lower(waiting: Mapping[int, int]) -> list[int]:
    highest = _highest(waiting)
    return [rank for rank, number in waiting.items() if number and rank < highest]
