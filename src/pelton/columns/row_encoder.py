"""Rows as messages: the columns that a write accepts, their JSON, and the messages that they become.

**Rows as JSON, one object for each row, by column name: ``decode=json`` reads it back.** Times are RFC 3339 in UTC
(without a zone if Spark has none), dates ISO 8601, decimals text, bytes base64. JSON has no NaN and no infinity: those
are null. A null field is written as null.

**Row encoders: the columns that a write accepts, and the messages that they become.** Columns are matched by name. A
stream takes ``subject`` (unless the option of that name makes it from others), ``data``, ``headers``, ``msg_id``,
``ttl``; a bucket ``key``, ``value``, ``ttl``; a queue the job's arguments, ``key``, ``idempotency_key``. Without
``data`` (``value``), the other columns together are the payload, as JSON. Types are checked before anything is written;
values that no message can have (null, an invalid subject) fail their task, with the column's name in the error.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StreamConfig, headers
from pelton.subjects import compile_filter, is_subject

_encode: Final = msgspec.json.Encoder().encode


def json_rows(batch: pa.RecordBatch, columns: list[str]) -> list[bytes]:
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


ColumnTypes = Sequence[tuple[str, str]]
"""Columns by name, and the types of their values in SQL's words, as Spark writes them: ``bigint``, ``string``."""
TEXT: Final = ("string",)
BYTES: Final = ("binary", "string")
INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
HEADERS: Final = ("map<string,string>", "map<string,array<string>>")
# Further columns of a read, which a write ignores.
_READ: Final = frozenset({"stream", "sequence", "time", "size", "value", "error"})


_SQL_WORDS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "tinyint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_date32, "date"),
)


def types_of(schema: pa.Schema) -> ColumnTypes:
    """Return an Arrow schema's columns and types."""
    return [(field.name, _sql_word(field.type)) for field in schema]


def _sql_word(kind: pa.DataType) -> str:
    for is_kind, word in _SQL_WORDS:
        if is_kind(kind):
            return word
    if pa.types.is_map(kind):
        return f"map<{_sql_word(kind.key_type)},{_sql_word(kind.item_type)}>"
    return f"array<{_sql_word(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


class EncodedRows(NamedTuple):
    """A message for each row, by column; ``blocks`` are header blocks, None if no message has headers."""

    subjects: pa.StringArray
    payloads: pa.BinaryArray
    blocks: list[bytes | None] | None


class RowEncoder(ABC):
    """Encodes rows as messages. Pickled, and used by one task after another."""

    @abstractmethod
    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        """Return one message for each row. Raises ConfigError for a row that cannot be encoded."""


class InputColumns:
    """The columns of a write; an encoder takes those that it knows, the others are the rest."""

    def __init__(self, types: ColumnTypes) -> None:
        self._types = dict(types)
        if len(self._types) < len(types):
            raise ConfigError("two columns have the same name: rename one")
        self._taken: set[str] = set()

    def take(self, name: str, types: Sequence[str]) -> bool:
        """Take a column if it exists, and return whether it does. Raises ConfigError for another type."""
        found = self._types.get(name)
        if found is None:
            return False
        if not any(found == kind for kind in types):
            raise ConfigError(f"column {name} is {found}; it must be {' or '.join(types)}: cast it, or rename it")
        self._taken.add(name)
        return True

    def need(self, name: str, types: Sequence[str], why: str) -> None:
        """Take a required column. Raises ConfigError if it is missing or of another type."""
        if not self.take(name, types):
            raise ConfigError(f"there is no column {name}: {why}")

    def rest(self) -> list[str]:
        return [name for name in self._types if name not in self._taken]

    def payload(self, name: str, types: Sequence[str], used: Sequence[str] = ()) -> list[str]:
        """Take the payload's column and return an empty list, or, if there is none, the columns that make the payload.

        Raises ConfigError for further columns that would be lost (except those ``used`` otherwise), and if no columns
        are left for the payload.
        """
        if self.take(name, types):
            lost = [column for column in self.rest() if column not in _READ and column not in used]
            if lost:
                raise ConfigError(f"columns {', '.join(lost)} would be lost, because {name} is the payload: drop them")
            return []
        rest = self.rest()
        if not rest:
            raise ConfigError(f"there is nothing to write: no column {name}, and no others to encode as JSON")
        return rest


def without_nulls(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column that has no nulls. Raises ConfigError if it has any."""
    column = batch.column(name)
    if column.null_count:
        raise ConfigError(f"column {name} is null in {column.null_count} of {len(column)} rows: fill or filter them")
    return column


def payloads(batch: pa.RecordBatch, name: str, rest: list[str]) -> pa.BinaryArray:
    """Return each row's payload: the named column, or the ``rest`` as JSON."""
    if rest:
        return pa.array(json_rows(batch, rest), pa.binary())
    return without_nulls(batch, name).cast(pa.binary())


class ValueCheck:
    """Checks each distinct value once, across all batches; ``check`` raises ConfigError."""

    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check
        self._known: set[str] = set()

    def __call__(self, column: pa.Array) -> None:
        new = set(pc.unique(column).to_pylist()) - self._known
        for value in new:
            self._check(value)
        if len(self._known) > _KNOWN:
            self._known.clear()
        self._known |= new


_KNOWN: Final = 100_000


def optional(batch: pa.RecordBatch, name: str, has: bool) -> list[Any] | None:
    """Return an optional column, which may hold nulls; None if it is missing or all null."""
    if not has or batch.column(name).null_count == batch.num_rows:
        return None
    found: list[Any] = batch.column(name).to_pylist()
    return found


def blocks(
    rows: int, named: Sequence[tuple[str, list[Any] | None]], given: list[Any] | None = None
) -> list[bytes | None] | None:
    """Return the header block of each row, made from the ``named`` headers and from the user's own (``given``)."""
    columns = [(name, values) for name, values in named if values is not None]
    if given is None and not columns:
        return None
    made: list[bytes | None] = []
    for row in range(rows):
        found: dict[str, Any] = {}
        for name, value in (given[row] if given is not None else None) or ():
            found[name] = value if value is not None else ""
        for name, values in columns:
            if values[row] is not None:
                found[name] = str(values[row])
        made.append(headers.encode(found) if found else None)
    return made


def seconds(values: list[Any] | None) -> list[str | None] | None:
    """Return TTLs in NATS's notation, None for a null. Raises ConfigError for less than 1 second."""
    if values is None:
        return None
    for value in values:
        if value is not None and value < 1:
            raise ConfigError(f"column ttl is {value}: give 1 second or more, or null for none")
    return [None if value is None else f"{value}s" for value in values]


def text_of(column: pa.Array) -> pa.Array:
    return pc.cast(column, pa.string())


# --- encodes rows as a stream's messages

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_TOKEN: Final = re.compile(r"[^\s.*>\x00]+")
_IN_TEMPLATE: Final = (*TEXT, *INTEGERS, "date", "boolean")


class StreamEncoder(RowEncoder):
    """Encodes rows as messages of one stream. ``template`` makes subjects from other columns."""

    def __init__(self, types: ColumnTypes, config: StreamConfig, template: str | None) -> None:
        columns = InputColumns(types)
        if template is None:
            why = "add one, or set option subject to make it, such as 'flights.{carrier}'"
            columns.need("subject", TEXT, why)
        self._parts = None if template is None else _parts(template, dict(types))
        self._has_headers = columns.take("headers", HEADERS)
        self._has_id = columns.take("msg_id", TEXT)
        self._has_ttl = columns.take("ttl", INTEGERS)
        used = [text for text, is_column in self._parts or () if is_column]
        self._rest = columns.payload("data", BYTES, used)
        check_ttl(config, self._has_ttl)
        if config.mirror is not None:
            raise ConfigError(f"stream {config.name!r} is a mirror: write to its origin, {config.mirror.name!r}")
        self._stream, self._filters = config.name, list(config.subjects)

    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        subjects = self._subjects(batch)
        ttl = seconds(optional(batch, "ttl", self._has_ttl))
        ids = optional(batch, "msg_id", self._has_id)
        given = optional(batch, "headers", self._has_headers)
        heads = blocks(len(subjects), ((headers.MSG_ID, ids), (headers.TTL, ttl)), given)
        return EncodedRows(subjects, payloads(batch, "data", self._rest), heads)

    def _subjects(self, batch: pa.RecordBatch) -> pa.StringArray:
        if self._parts is None:
            column = text_of(without_nulls(batch, "subject"))
        else:
            column = pc.binary_join_element_wise(*[self._part(batch, *part) for part in self._parts], "")
        if isinstance(column, pa.Scalar):
            column = pa.repeat(column, batch.num_rows)
        self._checked(column)
        return column

    def _part(self, batch: pa.RecordBatch, text: str, is_column: bool) -> pa.Array | pa.Scalar:
        if not is_column:
            return pa.scalar(text)
        column = text_of(without_nulls(batch, text))
        for value in pc.unique(column).to_pylist():
            if not _TOKEN.fullmatch(value):
                raise ConfigError(
                    f"column {text} is {value[:60]!r}, which cannot be one part of a subject: use no blanks, dots, "
                    "* and >, and not empty; make a column subject yourself to write it otherwise"
                )
        return column

    @cached_property
    def _checked(self) -> ValueCheck:
        # Each task makes its own, because it cannot be pickled.
        where = "column subject" if self._parts is None else "option subject"
        return ValueCheck(_Check(self._stream, self._filters, where))


class _Check:
    """Raises ConfigError for a subject that is invalid, or that the stream does not accept."""

    def __init__(self, stream: str, filters: Sequence[str], where: str) -> None:
        self._stream, self._filters, self._where = stream, filters, where
        self._tests = [compile_filter(text) for text in filters]

    def __call__(self, subject: str) -> None:
        if not is_subject(subject):
            raise ConfigError(f"{self._where} makes {subject[:60]!r}, not a subject: write it like orders.eu.1")
        if not any(test(subject) for test in self._tests):
            taken = ", ".join(self._filters) or "none"
            raise ConfigError(
                f"{self._where} makes {subject!r}, which stream {self._stream!r} does not take (it takes {taken})"
            )


def check_ttl(config: StreamConfig, wanted: bool) -> None:
    """Raise ConfigError if messages should have a TTL but the stream does not allow one."""
    if wanted and not config.allow_msg_ttl:
        raise ConfigError(f"column ttl: stream {config.name!r} has no allow_msg_ttl; update it, or drop the column")


def _parts(template: str, types: Mapping[str, str]) -> list[tuple[str, bool]]:
    """Return a template's parts: texts and column names, distinguished by the flag. Raises ConfigError."""
    parts: list[tuple[str, bool]] = []
    for index, piece in enumerate(_FIELD.split(template)):
        if index % 2 == 0:
            if "{" in piece or "}" in piece:
                raise ConfigError(f"option subject is {template!r}: write columns as {{name}}")
            parts += [(piece, False)] if piece else []
            continue
        if piece not in types:
            raise ConfigError(f"option subject is {template!r}: there is no column {piece!r}")
        if types[piece] not in _IN_TEMPLATE:
            raise ConfigError(f"option subject: column {piece} is {types[piece]}; cast it to string")
        parts.append((piece, True))
    if not is_subject("".join("x" if is_column else text for text, is_column in parts)):
        raise ConfigError(f"option subject is {template!r}: write it like 'orders.{{country}}.{{id}}'")
    return parts
