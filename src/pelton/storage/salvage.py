"""Copies what a damaged store still holds, row by row, into a new one.

A damaged page makes SQLite refuse every row on it. Message rows are read by ranges of sequences, which are halved
around unreadable rows until single sequences are left; small tables are read from both ends. Rows that do not match
their checksum are left out. The caller must compute the sums of the new store.

Everything is read in one snapshot: others may write at the same time, and a message that they remove is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

import apsw

from pelton.storage.database import Database
from pelton.storage.faults import Fault
from pelton.storage.messages import DAMAGED_COLUMNS, intact
from pelton.storage.packing import RowValues, unpack
from pelton.storage.rows import integer, text
from pelton.storage.schema import message_table
from pelton.storage.tokens import set_tokens_apart, token_floor

_CHUNK: Final = 4096
_BUSY_MS: Final = 10_000
_HIGHEST: Final = 1 << 40
# They belong to processes that are gone.
_OF_THE_MOMENT: Final = ("meta", "pubsub_subscriptions", "openers", "pubsub_outbox", "pulls", "nearest")


class SalvageSnapshot:
    """One snapshot of a damaged store. An unreadable page may end it: then nothing else can be read in it.

    ``watch`` is another connection to the store, which reads no damaged page and notices what others write.
    """

    def __init__(self, source: Database, watch: Database) -> None:
        self._source = source
        self._watch = watch

    def __enter__(self) -> Self:
        self._source.connection.set_busy_timeout(_BUSY_MS)
        self._seen = self._watch.seen()
        self._begin()
        return self

    def again(self) -> None:
        """Take the snapshot again, after an error. Raises :class:`Fault` (``busy``) if others have written since."""
        self._let_go()
        self._begin()
        if self._watch.seen() != self._seen:
            detail = "it is damaged, and was written to while it was salvaged: what was read is not one snapshot"
            advice = "close it everywhere and salvage again, or salvage a backup of it, which has the same damage"
            raise Fault("busy", self._source.path, f"{detail}; {advice}")

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _begin(self) -> None:
        self._source.execute("BEGIN")
        # It begins with the first read; this one reads only the file's header.
        self._source.execute("PRAGMA user_version").fetchall()

    def _let_go(self) -> None:
        if self._source.connection.in_transaction:
            self._source.execute("ROLLBACK")


def copy_readable(source: Database, watch: Database, copy: Database, note: Callable[[str], None]) -> None:
    """Copy every readable row, as of one snapshot; call ``note`` with descriptions of what could not be read.

    ``watch`` is another connection to the source. Raises :class:`Fault` of kind ``busy`` if the source is damaged and
    others write at the same time.
    """
    with SalvageSnapshot(source, watch) as moment:
        _copy_all(source, copy, moment, note)


def _copy_all(source: Database, copy: Database, moment: SalvageSnapshot, note: Callable[[str], None]) -> None:
    known = {name for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()}
    for table in sorted(text(name) for name in known):
        if not table.startswith("sqlite_") and table not in _OF_THE_MOMENT:
            _copy_small(source, copy, moment, table, note)
    with copy.writing():
        set_tokens_apart(copy, _readable_floor(source, moment))
    for (stream,) in copy.execute("SELECT id FROM streams").fetchall():
        _copy_messages(source, copy, moment, integer(stream))


def _readable_floor(source: Database, moment: SalvageSnapshot) -> int:
    try:
        return token_floor(source)
    except apsw.Error:
        moment.again()
        return 0


def _copy_small(
    source: Database, copy: Database, moment: SalvageSnapshot, table: str, note: Callable[[str], None]
) -> None:
    key = ", ".join(f"{row[1]} DESC" for row in source.execute(f"PRAGMA table_info({table})").fetchall() if row[5])
    rows: list[Any] = []
    try:
        _take(source, f"SELECT * FROM {table}", rows)
    except apsw.Error as error:
        note(f"table {table}: {error}")
        moment.again()
        with suppress(apsw.Error):
            _take(source, f"SELECT * FROM {table} ORDER BY {key}", rows)
        moment.again()
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        with copy.writing():
            copy.executemany(f"INSERT OR IGNORE INTO {table} VALUES({marks})", rows)


def _take(source: Database, sql: str, rows: list[Any]) -> None:
    for row in source.execute(sql):
        rows.append(row)  # rows read before an error count


def _copy_messages(source: Database, copy: Database, moment: SalvageSnapshot, stream: int) -> None:
    copy.execute(message_table(stream))
    last = copy.value("SELECT last FROM stream_state WHERE id=?", (stream,))
    for rows in _readable(source, moment, stream, _HIGHEST if last is None else int(last)):
        with copy.writing():
            copy.executemany(f"INSERT OR IGNORE INTO m_{stream} VALUES(?, ?, ?, ?, ?, ?)", rows)


def _readable(source: Database, moment: SalvageSnapshot, stream: int, last: int) -> Iterator[list[RowValues]]:
    sql = f"SELECT {DAMAGED_COLUMNS} FROM m_{stream} WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT {_CHUNK}"
    ranges = [(0, last)]
    while ranges:
        low, high = ranges.pop()
        try:
            found: list[Any] = source.execute(sql, (low, high)).fetchall()
        except apsw.Error:
            moment.again()
            if low < high:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]
            continue
        if len(found) == _CHUNK:
            ranges.append((found[-1][0] + 1, high))
        if rows := [row for row in map(_with_text, found) if intact(unpack(row))]:
            yield rows


def _with_text(row: Any) -> RowValues:
    seq, ts, subject, *rest = row
    return seq, ts, subject.decode(errors="replace") if isinstance(subject, bytes) else subject, *rest
