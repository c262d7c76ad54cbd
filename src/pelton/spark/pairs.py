"""Rows to the keys and values of a bucket. A null value deletes its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

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
        keys: list[str] = rows.check_filled(batch, "key").to_pylist()
        Checked(_check)(keys)
        ttl = rows.seconds(rows.optional(batch, "ttl", self._has_ttl))
        blocks = rows.blocks(len(keys), ((headers.TTL, ttl),))
        subjects = [self._prefix + key for key in keys]
        if self._rest:
            return Messages(subjects, rows.payloads(batch, "value", self._rest), blocks)
        values = rows.as_bytes(batch.column("value"))
        if batch.column("value").null_count:
            kept = blocks or [None] * len(keys)
            blocks = [_DELETED if value is None else block for value, block in zip(values, kept, strict=True)]
            values = [b"" if value is None else value for value in values]
        return Messages(subjects, values, blocks)


def _check(key: str) -> None:
    try:
        check_key(key)
    except ConfigError as error:
        raise ConfigError(f"column key: {error}") from None
