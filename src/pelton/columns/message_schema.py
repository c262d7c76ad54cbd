"""The columns of messages in Arrow, and the types that payloads are decoded to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pelton.api import ConfigError
from pelton.columns.decoder import Decode

VALUE: Final = "value"
ERROR: Final = "error"
_FIELDS: Final = (
    pa.field("stream", pa.string(), nullable=False),
    pa.field("subject", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("time", pa.timestamp("ns", "UTC"), nullable=False),
    # A header can occur several times, and every value counts.
    pa.field("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
    pa.field("data", pa.binary(), nullable=False),
    pa.field("size", pa.int64(), nullable=False),
)


def message_schema(
    decode: Decode | None, value: pa.Schema | pa.DataType | None, columns: Sequence[str] | None
) -> pa.Schema:
    """Return the schema of a read: all columns or the named ones, with ``value`` and ``error`` if payloads are decoded.

    ``value`` is the type of a payload, or the schema of its fields. Raises ConfigError.
    """
    fields = {field.name: field for field in _FIELDS}
    if decode is not None:
        fields[VALUE] = pa.field(VALUE, _value_type(decode, value))
        fields[ERROR] = pa.field(ERROR, pa.string())
    elif value is not None:
        raise ConfigError("to_arrow: schema needs decode: give decode='json' or 'msgpack' too")
    if columns is None:
        return pa.schema(list(fields.values()))
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise ConfigError("to_arrow: columns are a list of names, such as ['subject', 'data']")
    for name in columns:
        if name not in fields:
            also = "" if decode else "; value and error need decode="
            raise ConfigError(f"to_arrow: there is no column {name!r}: a message has {', '.join(fields)}{also}")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"to_arrow: a column is named twice: {', '.join(columns)}")
    return pa.schema([fields[name] for name in columns])


def _value_type(decode: Decode, value: pa.Schema | pa.DataType | None) -> pa.DataType:
    if decode not in ("json", "msgpack", "text"):
        raise ConfigError(f"to_arrow: decode is {decode!r}: choose json, msgpack or text, or leave it out for bytes")
    if decode == "text":
        if value is not None:
            raise ConfigError("to_arrow: decode='text' gives strings: leave schema out")
        return pa.string()
    if isinstance(value, pa.Schema):
        return pa.struct(list(value))
    if isinstance(value, pa.DataType):
        return value
    raise ConfigError(f"to_arrow: decode={decode!r} needs schema=, such as pa.schema([('id', pa.int64())])")
