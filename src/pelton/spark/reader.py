"""Batch reads: ``spark.read.format("pelton")``.

Filters reach us only where the session says ``spark.sql.python.filterPushdown.enabled``, and where it does not, a
reader that could take them is refused. Which of the two is asked for is told by the program that Spark runs us in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pelton.spark.place import Place, StreamView
from pelton.spark.pushdown import Narrowing, narrow
from pelton.spark.ranges import Range, cut
from pelton.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.options import ReadOptions

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class PeltonReader(DataSourceReader):
    """Reads streams as they are when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read, one a task."""
        options = self.options
        with Place(options.place) as place:
            found = place.streams(options.streams)
            ranges = [self._range(place, stream) for stream in found if self.narrowing.has_stream(stream.name)]
        parts = cut(
            [part for part in ranges if part.span > 0],
            rows=options.rows_per_partition,
            at_least=options.min_partitions,
        )
        # Spark wants a partition, also of nothing.
        return parts or [InputPartition(None)]

    def _range(self, place: Place, stream: StreamView) -> Range:
        options, asked = self.options, self.narrowing
        start = options.start.of(stream.name)
        first = place.sequence(stream, start)
        end = options.end.of(stream.name)
        # An ending sequence is read too, an ending time is not.
        last = end.value if end.kind == "sequence" else place.sequence(stream, end) - 1
        first = max(first, asked.first_seq)
        last = min(last, stream.last, asked.last_seq)
        if asked.from_time is not None:
            first = max(first, place.sequence(stream, asked.from_time))
        if asked.before_time is not None:
            last = min(last, place.sequence(stream, asked.before_time) - 1)
        at_front = start.kind != "sequence" and first == stream.first
        return Range(stream.name, stream.created, first, last, must_hold=stream.loses_front, at_front=at_front)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        if isinstance(partition, Range):
            filters = self.narrowing.filters(self.options.subjects)
            yield from read_range(self.options, self.schema, partition, filters)


class PushingReader(PeltonReader):
    """The same, told what the query filters by."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take what narrows streams, sequences, times and subjects; return what Spark has to look at still."""
        self.narrowing, left = narrow(filters)
        return left


def reader(options: ReadOptions, schema: StructType) -> PeltonReader:
    """Return a reader that Spark, as it is set, takes."""
    return (PushingReader if _is_pushing() else PeltonReader)(options, schema)


def _is_pushing() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING
