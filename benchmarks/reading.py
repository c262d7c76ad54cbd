"""What every contender reads: the same messages, in the same order."""

from __future__ import annotations

STREAM = "bench"
STORED = 100_000
SUBJECTS = 1_000
_STEP = 7_919


def subject(place: int) -> str:
    """Return the subject of the message at a place; the subjects take turns."""
    return f"bench.{place % SUBJECTS}"


class Places:
    """Places below `count`, far apart and each equally often."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._place = 0

    def next(self) -> int:
        self._place = (self._place + _STEP) % self._count
        return self._place


def checked(right: bool) -> None:
    """Stop the measurement if an answer is wrong."""
    if not right:
        raise RuntimeError("a read gave another message than the one asked for")
