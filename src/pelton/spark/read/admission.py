"""How far the next micro-batch of a streaming query goes: at most so many messages and bytes, at least so many. Pure.

Limits count sequences. Where a stream has gaps or is filtered, fewer messages lie in a range than it has sequences;
``count_from`` tells how many, and the end is found by bisection, so that a batch is full and not just wide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Backlog(NamedTuple):
    """What one stream has for the next batch: from ``first`` to ``last``, ``messages`` of ``size`` bytes on average."""

    first: int
    last: int
    messages: int
    size: float

    @property
    def is_dense(self) -> bool:
        """Whether a sequence is as good as a message."""
        return self.messages >= self.last - self.first + 1


def allowed(max_rows: int, max_bytes: int, backlogs: dict[str, Backlog]) -> dict[str, int]:
    """Return how many messages of each stream go into the next batch; streams share in proportion to what they have.

    A stream that has something gets one at least: none is forgotten for the others' sake. 0 is no limit.
    """
    total = sum(backlog.messages for backlog in backlogs.values())
    weight = sum(backlog.messages * backlog.size for backlog in backlogs.values())
    share = 1.0
    if max_rows and total > max_rows:
        share = max_rows / total
    if max_bytes and weight > max_bytes:
        share = min(share, max_bytes / weight)
    return {
        name: backlog.messages if share >= 1 else max(int(backlog.messages * share), 1)
        for name, backlog in backlogs.items()
        if backlog.messages > 0
    }


def end_of(backlog: Backlog, rows: int, count_from: Callable[[int], int]) -> int:
    """Return the sequence with which ``rows`` messages of a backlog end; ``count_from`` counts to the stream's end."""
    if rows >= backlog.messages:
        return backlog.last
    if backlog.is_dense:
        return backlog.first + rows - 1
    # What is counted from a sequence on falls with it: the first one with so few left is behind the end.
    left = count_from(backlog.first) - rows
    low, high = backlog.first, backlog.last
    while low < high:
        middle = (low + high) // 2
        if count_from(middle + 1) <= left:
            high = middle
        else:
            low = middle + 1
    return low
