"""Ranges of streams: the partitions of a read, the offsets of a query, and what is missing from one.

**Offsets of a streaming query: for each stream, the last sequence read, and the stream's creation time. Pure.** Spark
writes offsets to the checkpoint as JSON and compares the text, so keys are always sorted. The creation time
distinguishes a stream from one that was deleted and created again under the same name.

Spark does not checkpoint where a query starts: to repeat the first batch it asks for the initial offset again. By then,
limits may have removed messages, or ``latest`` may have moved. So the end of the first batch also records its start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from pelton.spark.errors import DataLossError

if TYPE_CHECKING:
    from pelton.api import CorruptMessageError

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


class StreamPosition(NamedTuple):
    """The stream created at ``created`` was read up to ``sequence``.

    ``began``: set if that was all in the first batch, which starts after this sequence; otherwise None.
    """

    sequence: int
    created: str
    began: int | None = None


Offset = dict[str, StreamPosition]


def to_json(offset: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return an offset in the form that Spark checkpoints."""
    return {name: _kept(offset[name]) for name in sorted(offset)}


def _kept(position: StreamPosition) -> dict[str, Any]:
    began = {} if position.began is None else {"began": position.began}
    return {**began, "created": position.created, "sequence": position.sequence}


def from_json(kept: Mapping[str, Any]) -> Offset:
    """Return an offset from the form that Spark checkpoints."""
    return {name: StreamPosition(int(at["sequence"]), str(at["created"]), at.get("began")) for name, at in kept.items()}


def next_end(before: Offset, ends: Offset) -> Offset:
    """Return the end offset of a batch that starts at ``before``; streams that are not in ``ends`` do not advance."""
    after: Offset = {}
    for name in before.keys() | ends.keys():
        start, end = before.get(name), ends.get(name)
        position = end or start
        assert position is not None
        is_first = start is not None and start.began == start.sequence and start.created == position.created
        after[name] = position._replace(began=start.began if start is not None and is_first else None)
    return after


def begin(end: StreamPosition, start: StreamPosition | None) -> StreamPosition | None:
    """Return where a stream's part of a batch starts, given Spark's start offset; None: at the stream's beginning."""
    return start if end.began is None else StreamPosition(end.began, end.created)


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how many sequences a streaming query was behind each stream, according to its progress.

    ``progress`` is ``query.lastProgress`` (or an item of ``recentProgress``); sources of other formats are ignored. As
    long as the query has made no progress, that is None, and nothing is known of any stream.
    """
    behind: dict[str, int] = {}
    for source in progress["sources"] if progress is not None else ():
        latest, end = (_known(source[key]) for key in ("latestOffset", "endOffset"))
        for name, position in latest.items():
            read = end[name].sequence if name in end else 0
            behind[name] = behind.get(name, 0) + position.sequence - read
    return behind


def _known(kept: str | None) -> Offset:
    """Parse an offset from a query's progress; an empty one if it is another format's."""
    try:
        return from_json(json.loads(kept or "{}"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


# --- messages missing from a range: an error, or logged and skipped (``failOnDataLoss``)

_log: Final = logging.getLogger("pelton.spark")


class DataLossPolicy:
    """Raises the errors of missing and corrupted messages (``fail``), or logs them and continues."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def check(self, part: SequenceRange, position: int, first_seq: int) -> None:
        """Compare the position of a read with the stream's first sequence. Raises DataLossError.

        A range that begins at the front of its stream takes the front at the time it is read: old messages expire
        all the time.
        """
        if part.at_front and position == part.first:
            return
        if part.fails_on_loss and first_seq > position:
            self.report(DataLossError(part.stream, position, min(first_seq - 1, part.last)))

    def report(self, error: DataLossError | CorruptMessageError) -> None:
        """Raise an error, or log it."""
        if self._fail:
            raise error
        _log.warning("skipped: %s", error)
