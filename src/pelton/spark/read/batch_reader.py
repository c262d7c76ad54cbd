"""Batch reads: ``spark.read.format("pelton")``.

Spark pushes filters down only if ``spark.sql.python.filterPushdown.enabled`` is set, and otherwise refuses a reader
that accepts them. The module that Spark runs us in shows which of the two is the case.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pelton.spark.read.options import PushedFilters, push_filters
from pelton.spark.read.range_reader import read_range
from pelton.spark.read.ranges import SequenceRange, split_ranges
from pelton.spark.store_handle import StoreHandle, StreamView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.read.options import ReadOptions

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class PeltonBatchReader(DataSourceReader):
    """Reads streams up to where they end when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed: PushedFilters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read, one for each task."""
        options = self.options
        with StoreHandle(options.store) as store:
            found = store.streams(options.streams)
            ranges = [self._range(store, stream) for stream in found if self.pushed.has_stream(stream.name)]
        parts = split_ranges(
            [part for part in ranges if part.span > 0],
            rows=options.rows_per_partition,
            at_least=options.min_partitions,
        )
        # Spark requires at least one partition, even for no rows.
        return parts or [InputPartition(None)]

    def _range(self, store: StoreHandle, stream: StreamView) -> SequenceRange:
        options, asked = self.options, self.pushed
        start = options.start.of(stream.name)
        first = store.sequence(stream, start)
        end = options.end.of(stream.name)
        # An ending sequence is inclusive, an ending time exclusive.
        last = end.value if end.kind == "sequence" else store.sequence(stream, end) - 1
        first = max(first, asked.first_seq)
        last = min(last, stream.last, asked.last_seq)
        if asked.from_time is not None:
            first = max(first, store.sequence(stream, asked.from_time))
        if asked.before_time is not None:
            last = min(last, store.sequence(stream, asked.before_time) - 1)
        at_front = start.kind != "sequence" and first == stream.first
        return SequenceRange(
            stream.name, stream.created, first, last, fails_on_loss=stream.drops_oldest, at_front=at_front
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        if isinstance(partition, SequenceRange):
            filters = self.pushed.filters(self.options.subjects)
            yield from read_range(self.options, self.schema, partition, filters)


class PushdownReader(PeltonBatchReader):
    """A batch reader that accepts pushed filters."""

    pushed: PushedFilters

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Accept filters on stream, sequence, time and subject; return those that Spark still has to apply."""
        self.pushed, left = push_filters(filters)
        return left


def reader(options: ReadOptions, schema: StructType) -> PeltonBatchReader:
    """Return the reader that Spark accepts with its present settings."""
    return (PushdownReader if _has_pushdown() else PeltonBatchReader)(options, schema)


def _has_pushdown() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING
