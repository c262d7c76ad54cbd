"""Reads a range of a store file's stream in a task: straight from the file, while others write to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pelton.columns.arrow_batches import columns_of_rows
from pelton.columns.checksums import sums_of_columns
from pelton.columns.joined_columns import split_columns
from pelton.engine import BulkReader
from pelton.spark.read.data_loss import DataLossPolicy
from pelton.spark.store_handle import encryption_key

if TYPE_CHECKING:
    from pelton.columns.arrow_batches import BatchBuilder
    from pelton.spark.options import StoreOptions
    from pelton.spark.read.ranges import SequenceRange


def read_store(
    options: StoreOptions, part: SequenceRange, filters: Sequence[str], builder: BatchBuilder, losses: DataLossPolicy
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, CorruptMessageError if losses are errors."""
    key = encryption_key(options)
    with BulkReader(
        options.address,
        part.stream,
        part.created,
        filters=filters,
        key=key,
        sums=sums_of_columns,
        split=split_columns,
    ) as reader:
        position = part.first
        while position <= part.last:
            # A portion is thousands of small objects without cycles: collecting garbage would cost a tenth.
            gc.disable()
            try:
                found = reader.read(position, part.last)
                losses.check(part, position, found.first)
                for seq in found.damaged:
                    losses.report(reader.corrupt(seq))
                batch = builder.of(columns_of_rows(found)) if found.messages else None
            finally:
                gc.enable()
            position = found.after + 1
            if batch is not None:
                yield batch
