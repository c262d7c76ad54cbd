"""Reads one range in a task: from a store file or a cluster to Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pelton.columns.arrow_batches import BatchBuilder
from pelton.spark.columns.read_schema import arrow_schema
from pelton.spark.read.cluster_reader import read_cluster
from pelton.spark.read.data_loss import DataLossPolicy
from pelton.spark.read.store_reader import read_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.read.options import ReadOptions
    from pelton.spark.read.ranges import SequenceRange


def read_range(
    options: ReadOptions, schema: StructType, part: SequenceRange, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, StreamNotFoundError, CorruptMessageError."""
    builder = BatchBuilder(part.stream, arrow_schema(schema), options.decode)
    losses = DataLossPolicy(fail=options.fail_on_data_loss)
    read = read_cluster if options.store.is_cluster else read_store
    yield from read(options.store, part, filters, builder, losses)
