"""What a task does for a range of an embedded stream: reads the rows where they lie in the file, beside all writers."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pelton.engine import BulkReader
from pelton.spark.batches import Columns, joined, numbers
from pelton.spark.losses import Losses
from pelton.spark.place import key_of
from pelton.spark.splitting import split_columns
from pelton.spark.sums import sums_of_columns

if TYPE_CHECKING:
    from pelton.spark.batches import BatchBuilder
    from pelton.spark.options import PlaceOptions
    from pelton.spark.ranges import Range
    from pelton.storage import Portion


def read_file(
    options: PlaceOptions, part: Range, filters: Sequence[str], builder: BatchBuilder, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, CorruptMessageError, where they matter."""
    key = key_of(options)
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
            # A portion is thousands of small objects that hold no cycles: looking for some costs a tenth.
            gc.disable()
            try:
                found = reader.read(position, part.last)
                losses.look(part, position, found.first)
                for seq in found.damaged:
                    losses.damaged(reader.corrupt(seq))
                batch = builder.of(_columns(found)) if found.messages else None
            finally:
                gc.enable()
            position = found.after + 1
            if batch is not None:
                yield batch


def _columns(found: Portion) -> Columns:
    return Columns(
        numbers(found.seqs),
        numbers(found.times),
        joined(pa.string(), found.subjects, found.subject_lengths),
        found.headers,
        joined(pa.binary(), found.payloads, found.payload_lengths),
    )
