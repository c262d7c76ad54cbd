"""From rows to messages: which columns a write takes, and what becomes of them.

Columns go by name. A stream takes ``subject`` (or the option of that name makes it of others), ``data``, ``headers``,
``msg_id``, ``ttl``; a bucket ``key``, ``value``, ``ttl``; a queue the job's arguments, ``key``, ``idempotency_key``.
Where there is no ``data`` (``value``), the other columns together are the payload, as JSON. Types are checked before
anything is written; what only a row can show (null, a bad subject) fails its task, with the column's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, headers
from pelton.spark.row_json import json_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TEXT: Final = ("string",)
BYTES: Final = ("binary", "string")
WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
HEADERS: Final = ("map<string,string>", "map<string,array<string>>")
# What a read has beside these, and nobody wants to write.
_READ: Final = frozenset({"stream", "sequence", "time", "size", "value", "error"})


class Messages(NamedTuple):
    """Messages, by columns (Arrow's string and binary); ``blocks`` None where none has headers."""

    subjects: pa.StringArray
    payloads: pa.BinaryArray
    blocks: list[bytes | None] | None


class Shape(ABC):
    """What a write makes of rows. Pickled, and used by one task after another."""

    @abstractmethod
    def messages(self, batch: pa.RecordBatch) -> Messages:
        """Return a message a row. Raises ConfigError for a row that cannot be one."""


class Columns:
    """The columns of a write, taken one after another; what nobody took is the rest."""

    def __init__(self, schema: StructType) -> None:
        self._types = {field.name: field.dataType.simpleString() for field in schema}
        if len(self._types) < len(schema.fields):
            raise ConfigError("two columns have the same name: rename one")
        self._taken: set[str] = set()

    def take(self, name: str, types: Sequence[str]) -> bool:
        """Whether there is a column of this name; raises ConfigError where its type is another."""
        found = self._types.get(name)
        if found is None:
            return False
        if not any(found == kind for kind in types):
            raise ConfigError(f"column {name} is {found}; it must be {' or '.join(types)}: cast it, or rename it")
        self._taken.add(name)
        return True

    def need(self, name: str, types: Sequence[str], why: str) -> None:
        """Take a column that must be there. Raises ConfigError."""
        if not self.take(name, types):
            raise ConfigError(f"there is no column {name}: {why}")

    def rest(self) -> list[str]:
        """Return the columns that are not taken."""
        return [name for name in self._types if name not in self._taken]

    def payload(self, name: str, types: Sequence[str], used: Sequence[str] = ()) -> list[str]:
        """Take a payload's column, and return what makes the payload where there is none: the rest.

        Raises ConfigError for columns beside it that would be lost (but those ``used`` otherwise), and where nothing is
        left.
        """
        if self.take(name, types):
            lost = [column for column in self.rest() if column not in _READ and column not in used]
            if lost:
                raise ConfigError(f"columns {', '.join(lost)} would be lost beside {name}: drop them or put them in it")
            return []
        rest = self.rest()
        if not rest:
            raise ConfigError(f"there is nothing to write: no column {name}, and no others to make JSON of")
        return rest


def check_filled(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column without nulls. Raises ConfigError where it has some."""
    column = batch.column(name)
    if column.null_count:
        raise ConfigError(f"column {name} is null in {column.null_count} of {len(column)} rows: fill or filter them")
    return column


def payloads(batch: pa.RecordBatch, name: str, rest: list[str]) -> pa.BinaryArray:
    """Return each row's payload: its column, or the rest as JSON."""
    if rest:
        return pa.array(json_rows(batch, rest), pa.binary())
    return check_filled(batch, name).cast(pa.binary())


class Checked:
    """Runs a check once a value, in as many batches as there are; ``check`` raises ConfigError."""

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
    """Return a column that may be missing, and may hold nulls; None where there is nothing."""
    if not has or batch.column(name).null_count == batch.num_rows:
        return None
    found: list[Any] = batch.column(name).to_pylist()
    return found


def blocks(
    rows: int, named: Sequence[tuple[str, list[Any] | None]], given: list[Any] | None = None
) -> list[bytes | None] | None:
    """Return the header block of each row: named headers that are not None, and maps of the user's own."""
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
    """Return times to live as NATS writes them; null for none. Raises ConfigError."""
    if values is None:
        return None
    for value in values:
        if value is not None and value < 1:
            raise ConfigError(f"column ttl is {value}: give 1 second or more, or null for none")
    return [None if value is None else f"{value}s" for value in values]


def text_of(column: pa.Array) -> pa.Array:
    """Return values as texts."""
    return pc.cast(column, pa.string())
