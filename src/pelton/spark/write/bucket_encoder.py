"""Encodes rows as a bucket's keys and values. A null value deletes its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StreamConfig, headers
from pelton.buckets.entry import OPERATION_HEADER
from pelton.buckets.naming import check_key, key_prefix
from pelton.columns import row_encoder as rows
from pelton.columns.row_encoder import EncodedRows, InputColumns, RowEncoder, ValueCheck
from pelton.columns.stream_encoder import check_ttl
from pelton.spark.columns.read_schema import sql_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_DELETED: Final = headers.encode({OPERATION_HEADER: "DEL"})


class BucketEncoder(RowEncoder):
    """Encodes rows as writes to a bucket's keys."""

    def __init__(self, schema: StructType, config: StreamConfig) -> None:
        columns = InputColumns(sql_types(schema))
        columns.need("key", rows.TEXT, "a bucket's rows have one")
        self._has_ttl = columns.take("ttl", rows.INTEGERS)
        self._rest = columns.payload("value", rows.BYTES)
        check_ttl(config, self._has_ttl)
        if config.mirror is not None:
            raise ConfigError(f"bucket {config.name!r} is a mirror: write to its origin, {config.mirror.name!r}")
        self._prefix = key_prefix(config)

    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        """Return one message for each row."""
        keys = rows.text_of(rows.without_nulls(batch, "key"))
        ValueCheck(_check)(keys)
        ttl = rows.seconds(rows.optional(batch, "ttl", self._has_ttl))
        blocks = rows.blocks(len(keys), ((headers.TTL, ttl),))
        subjects = pc.binary_join_element_wise(self._prefix, keys, "")
        if self._rest:
            return EncodedRows(subjects, rows.payloads(batch, "value", self._rest), blocks)
        values = batch.column("value").cast(pa.binary())
        if values.null_count:
            kept = blocks or [None] * len(keys)
            gone = values.is_null().to_pylist()
            blocks = [_DELETED if is_gone else block for is_gone, block in zip(gone, kept, strict=True)]
            values = values.fill_null(b"")
        return EncodedRows(subjects, values, blocks)


def _check(key: str) -> None:
    try:
        check_key(key)
    except ConfigError as error:
        raise ConfigError(f"column key: {error}") from None
