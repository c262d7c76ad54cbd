"""Batch reads: ``spark.read.format("pelton")``.

Filters reach us only where the session says ``spark.sql.python.filterPushdown.enabled``, and where it does not, a
reader that could take them is refused. Which of the two is asked for is told by the program that Spark runs us in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pelton.spark.read.pushdown import PushedFilters, push_filters
from pelton.spark.read.range_reader import read_range
from pelton.spark.read.ranges import SequenceRange, split_ranges
from pelton.spark.store_handle import StoreHandle, StreamView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.read.options import ReadOptions

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class PeltonBatchReader(DataSourceReader):
    """Reads streams as they are when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read, one a task."""
        options = self.options
        with StoreHandle(options.store) as store:
            found = store.streams(options.streams)
            ranges = [self._range(store, stream) for stream in found if self.pushed.has_stream(stream.name)]
        parts = split_ranges(
            [part for part in ranges if part.span > 0],
            rows=options.rows_per_partition,
            at_least=options.min_partitions,
        )
        # Spark wants a partition, also of nothing.
        return parts or [InputPartition(None)]

    def _range(self, store: StoreHandle, stream: StreamView) -> SequenceRange:
        options, asked = self.options, self.pushed
        start = options.start.of(stream.name)
        first = store.sequence(stream, start)
        end = options.end.of(stream.name)
        # An ending sequence is read too, an ending time is not.
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
    """The same, told what the query filters by."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take what narrows streams, sequences, times and subjects; return what Spark has to look at still."""
        self.pushed, left = push_filters(filters)
        return left


def reader(options: ReadOptions, schema: StructType) -> PeltonBatchReader:
    """Return a reader that Spark, as it is set, takes."""
    return (PushdownReader if _has_pushdown() else PeltonBatchReader)(options, schema)


def _has_pushdown() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING
