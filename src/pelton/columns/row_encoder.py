"""Row encoders: the columns that a write accepts, and the messages that they become.

Columns are matched by name. A stream takes ``subject`` (unless the option of that name makes it from others), ``data``,
``headers``, ``msg_id``, ``ttl``; a bucket ``key``, ``value``, ``ttl``; a queue the job's arguments, ``key``,
``idempotency_key``. Without ``data`` (``value``), the other columns together are the payload, as JSON. Types are
checked before anything is written; values that no message can have (null, an invalid subject) fail their task, with
the column's name in the error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, headers
from pelton.columns.row_json import json_rows

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
        """Return the columns that were not taken."""
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
        """Check the values of a column."""
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
    """Return a column cast to strings."""
    return pc.cast(column, pa.string())
