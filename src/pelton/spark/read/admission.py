"""Admission: how far the next micro-batch of a streaming query goes, given its limits of messages and bytes. Pure.

If a stream has gaps or is filtered, a range holds fewer messages than sequences; ``count_from`` counts them, and a
bisection finds the end, so that a batch holds as many messages as the limits allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Backlog(NamedTuple):
    """What one stream has for the next batch: ``messages`` from ``first`` to ``last``, of ``size`` bytes on average."""

    first: int
    last: int
    messages: int
    size: float

    @property
    def is_dense(self) -> bool:
        """Whether every sequence of the range is a message."""
        return self.messages >= self.last - self.first + 1


def allowed(max_rows: int, max_bytes: int, backlogs: dict[str, Backlog]) -> dict[str, int]:
    """Return how many messages of each stream go into the next batch, in proportion to the streams' backlogs.

    Every stream with a backlog gets at least one message, so that none starves. A limit of 0 means no limit.
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
    """Return the sequence of the last of ``rows`` messages; ``count_from`` counts from a sequence to the end."""
    if rows >= backlog.messages:
        return backlog.last
    if backlog.is_dense:
        return backlog.first + rows - 1
    # The count falls as the sequence grows: the first sequence with so few messages after it is the end.
    left = count_from(backlog.first) - rows
    low, high = backlog.first, backlog.last
    while low < high:
        middle = (low + high) // 2
        if count_from(middle + 1) <= left:
            high = middle
        else:
            low = middle + 1
    return low
