"""The schema of a read: all columns, the check of a user's schema, and its Arrow form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pelton.api import ConfigError
from pelton.columns.decoder import Decode
from pelton.columns.message_schema import ERROR, VALUE
from pelton.columns.row_encoder import ColumnTypes

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A header can occur several times, and every value counts.
_COLUMNS: Final = {
    "stream": "string",
    "subject": "string",
    "sequence": "bigint",
    "time": "timestamp",
    "headers": "map<string,array<string>>",
    "data": "binary",
    "size": "bigint",
}
_WHOLE_TYPE: Final = re.compile(r"\s*(\w+|(struct|array|map)\s*<.*|\w+\s*\([\d\s,]+\))\s*", re.IGNORECASE | re.DOTALL)


def read_schema(decode: Decode | None, value_schema: str | None) -> str:
    """Return all columns: those of every message and, if payloads are decoded, ``value`` and ``error``.

    As DDL text, which Spark parses, because the process that asks has no session for that; and as one type, so that
    Spark's parser names what is wrong in ``value_schema``. Raises ConfigError.
    """
    columns = [f"{name}: {kind}{'' if name == 'headers' else ' NOT NULL'}" for name, kind in _COLUMNS.items()]
    if decode is not None:
        columns += [f"{VALUE}: {_value_type(decode, value_schema)}", f"{ERROR}: string"]
    elif value_schema is not None:
        raise ConfigError("valueSchema needs decode: set decode=json or msgpack too")
    return f"struct<{', '.join(columns)}>"


def _value_type(decode: Decode, value_schema: str | None) -> str:
    if decode == "text":
        return "string"
    if value_schema is None:
        raise ConfigError(f"decode={decode} needs valueSchema, such as 'id BIGINT, amount DOUBLE', or a schema")
    return value_schema if _WHOLE_TYPE.fullmatch(value_schema) else f"struct<{value_schema}>"


def checked_schema(schema: StructType, decode: Decode | None) -> StructType:
    """Return a user's schema unchanged. Raises ConfigError for an unknown column or a wrong type."""
    for field in schema:
        kind = field.dataType.simpleString()
        if decode is not None and field.name in (VALUE, ERROR):
            continue
        if field.name not in _COLUMNS:
            known = ", ".join([*_COLUMNS, *([VALUE, ERROR] if decode else [])])
            raise ConfigError(f"there is no column {field.name!r}: a message has {known}")
        if kind != _COLUMNS[field.name]:
            raise ConfigError(f"column {field.name} is {_COLUMNS[field.name]}, not {kind}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares our batches with."""
    return to_arrow_schema(schema, timezone="UTC")


def sql_types(schema: StructType) -> ColumnTypes:
    """Return a schema's columns and their types, for an encoder."""
    return [(field.name, field.dataType.simpleString()) for field in schema]
