"""Arrow data as messages: the columns that a write takes, and how each row becomes a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from pelton.api import ConfigError, Outgoing, StreamConfig
from pelton.columns.row_encoder import types_of
from pelton.columns.stream_encoder import StreamEncoder

_ROWS: Final = 4096


def reader_of(data: Any) -> pa.RecordBatchReader:
    """Return anything that Arrow can read as a reader: a table, a reader, a frame of Polars or pandas, a relation.

    Raises ConfigError.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise ConfigError(f"publish: {type(data).__name__} is no Arrow data: give a table, a reader, or a data frame")


class MessageRows:
    """Encodes rows as messages of one stream. ``subject``: a template such as ``orders.{country}``."""

    def __init__(self, schema: pa.Schema, config: StreamConfig, subject: str | None) -> None:
        self._schema = pa.schema([field.with_type(_plain(field.type)) for field in schema])
        self._encoder = StreamEncoder(types_of(self._schema), config, subject)

    def messages(self, batch: pa.RecordBatch) -> Iterator[list[Outgoing]]:
        """Yield the messages of a batch, some thousand at a time. Raises ConfigError for a row that cannot be one."""
        for start in range(0, batch.num_rows, _ROWS):
            rows = pa.Table.from_batches([batch.slice(start, _ROWS)]).cast(self._schema).combine_chunks().to_batches()
            for part in rows:
                encoded = self._encoder.messages(part)
                blocks = encoded.blocks or [None] * part.num_rows
                columns = encoded.subjects.to_pylist(), encoded.payloads.to_pylist(), blocks
                yield list(map(Outgoing, *columns))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the plain type of a text or of bytes: Polars has its own views, dictionaries hold repeated values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind
