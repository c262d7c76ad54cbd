"""Rows as JSON, one object for each row, by column name: ``decode=json`` reads it back.

Times are RFC 3339 in UTC (without a zone if Spark has none), dates ISO 8601, decimals text, bytes base64. JSON has
no NaN and no infinity: those are null. A null field is written as null.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

_encode: Final = msgspec.json.Encoder().encode


def json_rows(batch: pa.RecordBatch, columns: list[str]) -> list[bytes]:
    """Return some columns of each row as JSON."""
    chosen = batch.select(columns)
    fields = [_in_utc(field) for field in chosen.schema]
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(chosen.columns, fields, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)).to_pylist(maps_as_pydicts="strict")
    return [_encode(row) for row in rows]


def _in_utc(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return field.with_type(pa.timestamp(kind.unit, "UTC"))
    return field
