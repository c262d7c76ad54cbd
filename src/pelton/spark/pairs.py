"""Rows to the keys and values of a bucket. A null value deletes its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StreamConfig, headers
from pelton.buckets.entry import OPERATION_HEADER
from pelton.buckets.naming import check_key, key_prefix
from pelton.spark import rows
from pelton.spark.rows import Checked, Columns, Messages, Shape
from pelton.spark.subjects import check_ttl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_DELETED: Final = headers.encode({OPERATION_HEADER: "DEL"})


class BucketShape(Shape):
    """Messages that write a bucket's keys."""

    def __init__(self, schema: StructType, config: StreamConfig) -> None:
        columns = Columns(schema)
        columns.need("key", rows.TEXT, "a bucket's rows have one")
        self._has_ttl = columns.take("ttl", rows.WHOLE)
        self._rest = columns.payload("value", rows.BYTES)
        check_ttl(config, self._has_ttl)
        if config.mirror is not None:
            raise ConfigError(f"bucket {config.name!r} is a mirror: write to its origin, {config.mirror.name!r}")
        self._prefix = key_prefix(config)

    def messages(self, batch: pa.RecordBatch) -> Messages:
        """Return a message a row."""
        keys = rows.text_of(rows.check_filled(batch, "key"))
        Checked(_check)(keys)
        ttl = rows.seconds(rows.optional(batch, "ttl", self._has_ttl))
        blocks = rows.blocks(len(keys), ((headers.TTL, ttl),))
        subjects = pc.binary_join_element_wise(self._prefix, keys, "")
        if self._rest:
            return Messages(subjects, rows.payloads(batch, "value", self._rest), blocks)
        values = batch.column("value").cast(pa.binary())
        if values.null_count:
            kept = blocks or [None] * len(keys)
            gone = values.is_null().to_pylist()
            blocks = [_DELETED if is_gone else block for is_gone, block in zip(gone, kept, strict=True)]
            values = values.fill_null(b"")
        return Messages(subjects, values, blocks)


def _check(key: str) -> None:
    try:
        check_key(key)
    except ConfigError as error:
        raise ConfigError(f"column key: {error}") from None
