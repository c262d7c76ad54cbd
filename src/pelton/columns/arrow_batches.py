"""Messages as Arrow batches, with only the columns that the query selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StoredMessage, headers
from pelton.api.backend import RowPortion
from pelton.columns.decoder import Decode, decoded, decoder
from pelton.columns.message_schema import ERROR, VALUE

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class MessageColumns(NamedTuple):
    """Messages, column by column."""

    sequence: Numbers
    time_ns: Numbers
    subject: pa.Array
    headers: Sequence[bytes | None]
    data: pa.Array


def columns_of_rows(found: RowPortion) -> MessageColumns:
    """Return the messages of a portion as columns, without copying texts and payloads."""
    return MessageColumns(
        int64s(found.seqs),
        int64s(found.times),
        array_of(pa.string(), found.subjects, found.subject_lengths),
        found.headers,
        array_of(pa.binary(), found.payloads, found.payload_lengths),
    )


def columns_of_messages(messages: Sequence[StoredMessage]) -> MessageColumns:
    """Return messages as columns."""
    return MessageColumns(
        np.array([message.seq for message in messages], np.int64),
        np.array([message.time_ns for message in messages], np.int64),
        pa.array([message.subject for message in messages], pa.string()),
        [message.hdrs or None for message in messages],
        pa.array([message.data for message in messages], pa.binary()),
    )


def int64s(column: bytes) -> Numbers:
    """Return an int64 array over bytes, without a copy."""
    return np.frombuffer(column, np.int64)


def array_of(kind: pa.DataType, values: bytes, lengths: bytes) -> pa.Array:
    """Return a string or binary array over concatenated values with int32 ``lengths``, without copying the values."""
    offsets = np.zeros(len(lengths) // 4 + 1, np.int32)
    np.cumsum(np.frombuffer(lengths, np.int32), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def _time(columns: MessageColumns, stream: str, kind: pa.DataType) -> pa.Array:
    return pa.array(columns.time_ns if kind.unit == "ns" else columns.time_ns // 1000).view(kind)


def _stream(columns: MessageColumns, stream: str, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(stream, kind), len(columns.sequence))


def _headers(columns: MessageColumns, stream: str, kind: pa.DataType) -> pa.Array:
    if columns.headers.count(None) == len(columns.headers):
        return pa.nulls(len(columns.headers), kind)
    return pa.array([_decoded_headers(block) if block else None for block in columns.headers], kind)


def _decoded_headers(block: bytes) -> list[tuple[str, list[str]]]:
    found = headers.decode(block)
    return [(_text(name), [_text(value) for value in found.get_all(name)]) for name in found]


def _text(value: str) -> str:
    # Python keeps bytes that are not UTF-8 as surrogates, which Arrow refuses.
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_BUILDERS: Final[dict[str, Callable[[MessageColumns, str, pa.DataType], pa.Array]]] = {
    "stream": _stream,
    "subject": lambda columns, stream, kind: columns.subject,
    "sequence": lambda columns, stream, kind: pa.array(columns.sequence),
    "time": _time,
    "headers": _headers,
    "data": lambda columns, stream, kind: columns.data,
    "size": lambda columns, stream, kind: pc.binary_length(columns.data).cast(kind),
}


class BatchBuilder:
    """Builds the batches of one stream, with the columns of ``schema`` in its order."""

    def __init__(self, stream: str, schema: pa.Schema, decode: Decode | None) -> None:
        self._stream = stream
        self._schema = schema
        self._builders = [(_BUILDERS.get(field.name), field.name, field.type) for field in self._schema]
        self._wants_values = any(builder is None for builder, _, _ in self._builders)
        self._read = None
        if decode is not None and self._wants_values:
            if VALUE not in schema.names:
                raise ConfigError(f"column {ERROR} holds the reason for a missing {VALUE}: select both")
            self._value_kind = schema.field(VALUE).type
            self._read = decoder(decode, self._value_kind)

    def of(self, columns: MessageColumns) -> pa.RecordBatch:
        """Return the messages as a batch."""
        values = self._values(columns.data.to_pylist()) if self._wants_values else {}
        arrays = [
            values[name] if build is None else build(columns, self._stream, kind)
            for build, name, kind in self._builders
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        assert self._read is not None
        values, errors = decoded(self._read, payloads)
        try:
            array = pa.array(values, self._value_kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            array = self._fitting(values, errors)
        return {VALUE: array, ERROR: pa.array(errors, pa.string())}

    def _fitting(self, values: list[Any], errors: list[str | None]) -> pa.Array:
        """Return the values, None for each that does not fit the type, such as a number too long for its decimal."""
        for index, value in enumerate(values):
            try:
                pa.scalar(value, self._value_kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[index] = None
                errors[index] = f"{type(error).__name__}: {error}"
        return pa.array(values, self._value_kind)
