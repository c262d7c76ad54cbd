"""Partitions of a read: ranges of stream sequences. Pure: the same read is always partitioned in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

_MOST_PARTITIONS: Final = 10_000


class SequenceRange(InputPartition):
    """The sequences ``first`` to ``last`` of the stream that was created at ``created`` (RFC 3339).

    ``fails_on_loss``: losing sequences at the stream's front is an error. ``at_front``: the range begins at what was
    the stream's first message when the read was planned, so messages that expire there before they are read are not
    missing.
    """

    def __init__(
        self, stream: str, created: str, first: int, last: int, *, fails_on_loss: bool, at_front: bool = False
    ) -> None:
        super().__init__((stream, first, last))
        self.stream = stream
        self.created = created
        self.first = first
        self.last = last
        self.fails_on_loss = fails_on_loss
        self.at_front = at_front

    @property
    def span(self) -> int:
        """The number of sequences, stored or not."""
        return self.last - self.first + 1

    def parts(self, count: int) -> Iterator[SequenceRange]:
        """Split into ``count`` ranges of nearly equal length, or fewer if there are fewer sequences."""
        count = max(1, min(count, self.span))
        cuts = [self.first + self.span * part // count for part in range(count + 1)]
        for first, after in pairwise(cuts):
            at_front = self.at_front and first == self.first
            yield SequenceRange(
                self.stream, self.created, first, after - 1, fails_on_loss=self.fails_on_loss, at_front=at_front
            )


def split_ranges(ranges: Sequence[SequenceRange], *, rows: int, at_least: int) -> list[SequenceRange]:
    """Return ranges of at most ``rows`` sequences, and ``at_least`` that many of them if possible.

    A sparse stream would otherwise make far too many tasks: from 10,000 on, the ranges grow instead.
    """
    total = sum(part.span for part in ranges)
    count = min(max(at_least, _ratio(total, rows)), _MOST_PARTITIONS)
    return [piece for part in ranges for piece in part.parts(_ratio(part.span * count, total))]


def _ratio(total: int, part: int) -> int:
    return -(-total // part)
