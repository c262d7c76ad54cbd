"""What every task of a read does: one range to Arrow batches, from wherever the stream is. Pickled, so it is small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pelton.spark.batches import BatchBuilder
from pelton.spark.embedded import read_file
from pelton.spark.losses import Losses
from pelton.spark.remote import read_cluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.options import ReadOptions
    from pelton.spark.ranges import Range


def read_range(
    options: ReadOptions, schema: StructType, part: Range, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Raises DataLossError, StreamNotFoundError, CorruptMessageError."""
    builder = BatchBuilder(part.stream, schema, options.decode)
    losses = Losses(fail=options.fail_on_data_loss)
    read = read_cluster if options.place.is_cluster else read_file
    yield from read(options.place, part, filters, builder, losses)
