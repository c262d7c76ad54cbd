"""Copies streams of one store, usually a backup, into another one that is in use, in one transaction.

The rows keep their contents and get new ids: of streams, consumers and sources. A source continues from its position
if its origin is copied too, or exists already (with the same name and creation time); otherwise it starts again.
Waiting pulls and pins belong to processes that are gone, and are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pelton.storage.backup import belonging, in_parts, tables
from pelton.storage.database import Database
from pelton.storage.rows import integer, text
from pelton.storage.schema import message_table
from pelton.storage.tokens import raise_token_floor, token_floor

Told = Callable[[int, int], object]
_LEFT_BEHIND: Final = ("pulls", "pins", "nearest")
_FIRST: Final = ("streams", "consumers", "sourcing")
_NUMBERED: Final = {"stream_state": "streams", "consumer_state": "consumers"}
_REFERENCES: Final = {"stream": "streams", "consumer": "consumers"}


class Restored(NamedTuple):
    """A stream to copy: its id in the source, its name and configuration in the target."""

    number: int
    name: str
    config: bytes


def copy_streams(
    source: Database, target: Database, streams: Sequence[Restored], names: Mapping[str, str], told: Told
) -> None:
    """Copy streams with their consumers, inside a write transaction of ``target``; ``names`` maps renamed streams.

    ``told`` is called with the rows done and the total. The caller must check that the names are free.
    """
    _Copy(source, target, streams, names, told).run()


class _Copy:
    def __init__(
        self, source: Database, target: Database, streams: Sequence[Restored], names: Mapping[str, str], told: Told
    ) -> None:
        self._source = source
        self._target = target
        self._streams = {stream.number: stream for stream in streams}
        self._names = names
        self._told = told
        self._numbers: dict[str, dict[int, int]] = {"streams": {}, "consumers": {}, "sourcing": {}}
        self._origins = self._known_origins()
        # Fencing tokens only grow, here as well, and earlier ones belong to other deliveries.
        self._floor = raise_token_floor(target, token_floor(source))
        self._done = self._total = 0

    def run(self) -> None:
        source, chosen = self._source, list(self._streams)
        found = {table: belonging(source, table, chosen) for table in tables(source) if table not in _LEFT_BEHIND}
        parts = {table: where for table, where in found.items() if where is not None}
        counts = (int(source.value(f"SELECT count(*) FROM {table} WHERE {where}")) for table, where in parts.items())
        self._total = sum(counts)
        for table in sorted(parts, key=lambda table: _FIRST.index(table) if table in _FIRST else len(_FIRST)):
            self._copy(table, parts[table])

    def _known_origins(self) -> dict[int, int]:
        sql = "SELECT name, created, id FROM streams"
        here = {(name, created): integer(number) for name, created, number in self._target.execute(sql)}
        rows = self._source.execute(sql).fetchall()
        return {integer(number): here[name, made] for name, made, number in rows if (name, made) in here}

    def _copy(self, table: str, where: str) -> None:
        into = table
        if table.startswith("m_"):
            number = self._numbers["streams"][int(table[2:])]
            self._target.execute(message_table(number))
            into = f"m_{number}"
        columns = [text(row[1]) for row in self._source.execute(f"PRAGMA table_info({table})")]
        marks = ", ".join("?" * len(columns))
        for rows in in_parts(self._source, table, where):
            if table in _FIRST:
                self._number(table, columns, marks, rows)
            else:
                mapped = rows if into != table else [self._mapped(table, columns, row) for row in rows]
                self._target.executemany(f"INSERT INTO {into} VALUES({marks})", mapped)
            self._done += len(rows)
            self._told(self._done, self._total)

    def _number(self, table: str, columns: Sequence[str], marks: str, rows: Iterable[Any]) -> None:
        for row in rows:
            values = dict(zip(columns, self._mapped(table, columns, row), strict=True))
            values["id"] = None
            if table == "consumers":
                values["token_floor"] = self._floor
            elif table == "streams":
                stream = self._streams[row[0]]
                values |= {"name": stream.name, "config": stream.config}
            elif table == "sourcing":
                origin, rest = str(values["source"]).split(" ", 1)
                values["source"] = f"{self._names.get(origin, origin)} {rest}"
                values["origin"] = (self._origins | self._numbers["streams"]).get(values["origin"], 0)
            self._target.execute(f"INSERT INTO {table} VALUES({marks})", tuple(values.values()))
            self._numbers[table][row[0]] = self._target.connection.last_insert_rowid()

    def _mapped(self, table: str, columns: Sequence[str], row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row with the ids of the target."""
        return tuple(self._value(table, column, value) for column, value in zip(columns, row, strict=True))

    def _value(self, table: str, column: str, value: Any) -> Any:
        if column == "id" and table in _NUMBERED:
            return self._numbers[_NUMBERED[table]][value]
        if column == "source" and table == "parked":
            return self._numbers["sourcing"][value]
        return self._numbers[_REFERENCES[column]][value] if column in _REFERENCES else value
