"""Reading what a damaged store still holds, row by row, into a new one.

A damaged page makes SQLite refuse every row on it. Message rows are asked for by ranges of sequences, which are halved
around what cannot be read until single sequences are left; small tables are read from both ends. What does not meet
its checksum is left out. The sums of the new store are for the caller to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import apsw

from pelton.storage.database import Database
from pelton.storage.messages import DAMAGED_COLUMNS, intact
from pelton.storage.packing import Row, unpack
from pelton.storage.schema import message_table

_CHUNK: Final = 4096
_HIGHEST: Final = 1 << 40
# Of processes that are gone.
_OF_THE_MOMENT: Final = ("meta", "listeners", "openers", "told", "pulls", "nearest")


def copy_readable(source: Database, copy: Database, note: Callable[[str], None]) -> None:
    """Copy every row that can be read; ``note`` is told of what could not be, in words."""
    known = {name for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()}
    for table in sorted(str(name) for name in known):
        if not table.startswith("sqlite_") and table not in _OF_THE_MOMENT:
            _copy_small(source, copy, table, note)
    with suppress(apsw.CorruptError):
        for name, value in source.execute("SELECT key, value FROM meta WHERE key IN ('epoch', 'boot')").fetchall():
            copy.execute("UPDATE meta SET value=? WHERE key=?", (value, name))
    for (stream,) in copy.execute("SELECT id FROM streams").fetchall():
        _copy_messages(source, copy, int(str(stream)))


def _copy_small(source: Database, copy: Database, table: str, note: Callable[[str], None]) -> None:
    key = ", ".join(f"{row[1]} DESC" for row in source.execute(f"PRAGMA table_info({table})").fetchall() if row[5])
    rows: list[Any] = []
    try:
        _take(source, f"SELECT * FROM {table}", rows)
    except apsw.Error as error:
        note(f"table {table}: {error}")
        with suppress(apsw.Error):
            _take(source, f"SELECT * FROM {table} ORDER BY {key}", rows)
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        with copy.writing():
            copy.executemany(f"INSERT OR IGNORE INTO {table} VALUES({marks})", rows)


def _take(source: Database, sql: str, rows: list[Any]) -> None:
    for row in source.execute(sql):
        rows.append(row)  # what was read before an error counts


def _copy_messages(source: Database, copy: Database, stream: int) -> None:
    copy.execute(message_table(stream))
    last = copy.value("SELECT last FROM stream_state WHERE id=?", (stream,))
    for rows in _readable(source, stream, _HIGHEST if last is None else int(last)):
        with copy.writing():
            copy.executemany(f"INSERT OR IGNORE INTO m_{stream} VALUES(?, ?, ?, ?, ?, ?)", rows)


def _readable(source: Database, stream: int, last: int) -> Iterator[list[Row]]:
    sql = f"SELECT {DAMAGED_COLUMNS} FROM m_{stream} WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT {_CHUNK}"
    ranges = [(0, last)]
    while ranges:
        low, high = ranges.pop()
        try:
            found: list[Any] = source.execute(sql, (low, high)).fetchall()
        except apsw.Error:
            if low < high:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]
            continue
        if len(found) == _CHUNK:
            ranges.append((found[-1][0] + 1, high))
        if rows := [row for row in map(_with_text, found) if intact(unpack(row))]:
            yield rows


def _with_text(row: Any) -> Row:
    seq, ts, subject, *rest = row
    return seq, ts, subject.decode(errors="replace") if isinstance(subject, bytes) else subject, *rest
