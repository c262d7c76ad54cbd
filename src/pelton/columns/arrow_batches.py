"""Messages as Arrow batches: their columns, how payloads are decoded, and what a read selects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StoredMessage, headers
from pelton.api.backend import RowPortion
from pelton.subjects import compile_filter

Decode = Literal["json", "msgpack", "text"]
Decoder = Callable[[bytes], Any]
_REASON_LENGTH: Final = 200
_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], Any], ...]] = (
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_timestamp, datetime),
    (pa.types.is_date32, date),
    (pa.types.is_decimal, Decimal),
)


def decoder(decode: Decode, kind: pa.DataType) -> Decoder:
    """Return a function that decodes a payload to a value of a type, and raises ValueError if it cannot.

    A missing field is null, a field that the type does not have is ignored. Raises ConfigError for a type that no
    payload can be decoded to.
    """
    if decode == "text":
        return lambda data: data.decode()
    expected = _python_type(kind)
    read: Any = (msgspec.json if decode == "json" else msgspec.msgpack).Decoder(expected | None)
    builtins = msgspec.to_builtins
    # Arrow accepts dicts, and plain values of its own types.
    kept = (datetime, date, Decimal, bytes)
    return lambda data: builtins(read.decode(data), builtin_types=kept)


def decode_all(read: Decoder, payloads: Sequence[bytes]) -> tuple[list[Any], list[str | None]]:
    """Return the value of each payload, and the error of each that has none."""
    values: list[Any] = []
    errors: list[str | None] = []
    for data in payloads:
        try:
            values.append(read(data))
            errors.append(None)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            values.append(None)
            errors.append(f"{type(error).__name__}: {error}"[:_REASON_LENGTH])
    return values, errors


def _python_type(kind: pa.DataType) -> Any:
    """Return the Python type that msgspec validates a value against."""
    types = pa.types
    if types.is_struct(kind):
        fields = [(field.name, _python_type(field.type) | None, None) for field in kind]
        encoded = {f"f{number}": field[0] for number, field in enumerate(fields)}
        renamed = [(ours, field[1], None) for ours, field in zip(encoded, fields, strict=True)]
        return msgspec.defstruct("Value", renamed, rename=encoded)
    if types.is_list(kind) or types.is_large_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]  # a type that is made here
    if types.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]  # a type that is made here
    if types.is_integer(kind):
        span = 1 << kind.bit_width
        least = -span // 2 if types.is_signed_integer(kind) else 0
        # msgspec's bounds have 64 bits; of larger numbers Arrow says so.
        return Annotated[int, msgspec.Meta(ge=least, le=min(least + span, 1 << 63) - 1)]
    for is_kind, python in _PLAIN:
        if is_kind(kind):
            return python
    raise ConfigError(f"a payload cannot be decoded to {kind}: decode to a string, and cast it")


# --- the columns of messages in Arrow, and the types that payloads are decoded to

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


# --- messages as Arrow batches, with only the columns that the query selects

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
        values = self._values(columns.data.to_pylist()) if self._wants_values else {}
        arrays = [
            values[name] if build is None else build(columns, self._stream, kind)
            for build, name, kind in self._builders
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        assert self._read is not None
        values, errors = decode_all(self._read, payloads)
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


# --- what a read into Arrow selects, and how rows and messages become its batches. No input, no output

_FIRST_NS: Final = -(1 << 63)
_LAST_NS: Final = (1 << 63) - 1


class ReadWindow(NamedTuple):
    """The messages to read: sequences ``first`` to ``last``, times from ``from_ns`` on and before ``before_ns``."""

    first: int
    last: int
    from_ns: int = _FIRST_NS
    before_ns: int = _LAST_NS

    @property
    def has_times(self) -> bool:
        return self.from_ns != _FIRST_NS or self.before_ns != _LAST_NS


class ColumnRead:
    """Makes the batches of one read. ``filters``: none reads every subject."""

    def __init__(
        self, stream: str, schema: pa.Schema, decode: Decode | None, window: ReadWindow, filters: Sequence[str]
    ) -> None:
        self.schema = schema
        self.window = window
        self.filters = filters
        self._builder = BatchBuilder(stream, schema, decode)
        self._tests = [compile_filter(text) for text in filters]

    def reader(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return batches of this read as what Arrow's libraries read."""
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def of_rows(self, found: RowPortion) -> pa.RecordBatch | None:
        """Return the batch of a portion, which has the right subjects; None without messages."""
        return self._batch(columns_of_rows(found)) if found.messages else None

    def of_messages(self, messages: Sequence[StoredMessage]) -> pa.RecordBatch | None:
        """Return the batch of messages, of any subjects and beyond the last sequence; None if none is left."""
        last, tests = self.window.last, self._tests
        wanted = [
            message
            for message in messages
            if message.seq <= last and (not tests or any(test(message.subject) for test in tests))
        ]
        return self._batch(columns_of_messages(wanted)) if wanted else None

    def _batch(self, columns: MessageColumns) -> pa.RecordBatch | None:
        batch = self._builder.of(columns)
        if not self.window.has_times:
            return batch
        # Clocks can be set back, so sequences alone do not bound times.
        kept = (columns.time_ns >= self.window.from_ns) & (columns.time_ns < self.window.before_ns)
        return batch if np.all(kept) else batch.filter(pa.array(kept)) if np.any(kept) else None
