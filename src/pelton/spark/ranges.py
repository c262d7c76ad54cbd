"""What one task reads: a range of sequences of one stream. Pure, so that the same read is always cut the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

_MOST_PARTITIONS: Final = 10_000


class Range(InputPartition):
    """The sequences ``first`` to ``last`` of the stream that was made at ``created`` (RFC 3339).

    ``must_hold``: whether the loss of sequences at the stream's front is an error. ``at_front``: the range begins where
    the stream did when it was planned; what is due to go from there before it is read is not missed.
    """

    def __init__(
        self, stream: str, created: str, first: int, last: int, *, must_hold: bool, at_front: bool = False
    ) -> None:
        super().__init__((stream, first, last))
        self.stream = stream
        self.created = created
        self.first = first
        self.last = last
        self.must_hold = must_hold
        self.at_front = at_front

    @property
    def span(self) -> int:
        """How many sequences there are, stored or not."""
        return self.last - self.first + 1

    def parts(self, count: int) -> Iterator[Range]:
        """Cut into ``count`` ranges of nearly the same length; fewer where there are fewer sequences."""
        count = max(1, min(count, self.span))
        cuts = [self.first + self.span * part // count for part in range(count + 1)]
        for first, after in pairwise(cuts):
            at_front = self.at_front and first == self.first
            yield Range(self.stream, self.created, first, after - 1, must_hold=self.must_hold, at_front=at_front)


def cut(ranges: Sequence[Range], *, rows: int, at_least: int) -> list[Range]:
    """Return ranges of at most ``rows`` sequences, and ``at_least`` so many of them where that can be.

    A stream that is all gaps would make tasks without end; they grow larger from 10,000 on.
    """
    total = sum(part.span for part in ranges)
    count = min(max(at_least, _ratio(total, rows)), _MOST_PARTITIONS)
    return [piece for part in ranges for piece in part.parts(_ratio(part.span * count, total))]


def _ratio(total: int, part: int) -> int:
    return -(-total // part)
