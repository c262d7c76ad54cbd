"""Copies what a damaged store still holds, row by row, into a new one.

**Lost leaves** are pages of message tables whose inner pages are damaged, so that SQLite no longer finds them. A copy
of the store is changed for that: every page that belongs to no sound table, and is not free, becomes the root of a
table of its own. SQLite parses (and decrypts) it then, if it is a leaf. Rows count only if they match their checksum.

A damaged page makes SQLite refuse every row on it. Message rows are read by ranges of sequences, which are halved
around unreadable rows until single sequences are left; small tables are read from both ends. Rows that do not match
their checksum are left out. The caller must compute the sums of the new store.

Everything is read in one snapshot: others may write at the same time, and a message that they remove is not lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import apsw

from pelton.storage.copies import copy_bytes, set_tokens_apart
from pelton.storage.database import Database, token_floor
from pelton.storage.faults import Fault
from pelton.storage.keys import unlock
from pelton.storage.messages import DAMAGED_COLUMNS, TAIL, RowValues, intact, newest, unpack
from pelton.storage.older_schemas import parts_of
from pelton.storage.rows import DamagedRowError, blob, column, integer, integers, text
from pelton.storage.schema import message_table, pragma

_FILLING: Final = 64 << 20
_TABLE: Final = "CREATE TABLE leaf_{0}(seq INTEGER PRIMARY KEY, ts, subject, hdr, data, crc)"


def rows_of_leaves(source: Database, scratch: str, key: bytes | None, damaged: Collection[str]) -> Iterator[list[Any]]:
    """Yield the rows of all leaf pages that belong to no table except the damaged ones; some rows are not messages.

    ``scratch`` is the name of a file for the copy, which is removed.
    """
    os.close(os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        copy_bytes(source, scratch, key, lambda done, total: None)
        # A copy whose free pages are unknown may hold messages that were removed.
        with suppress(apsw.Error):
            leaves = _made_tables(scratch, key, damaged)
            yield from _read(scratch, key, leaves)
    finally:
        os.unlink(scratch)


def _opened(scratch: str, key: bytes | None) -> apsw.Connection:
    connection = apsw.Connection(scratch)
    unlock(connection, key)
    for setting in ("journal_mode=OFF", "synchronous=OFF", "writable_schema=ON"):
        connection.execute(f"PRAGMA {setting}").fetchall()
    return connection


def _made_tables(scratch: str, key: bytes | None, damaged: Collection[str]) -> list[int]:
    connection = _opened(scratch, key)
    try:
        connection.execute("CREATE TABLE filling(x)")
        while free := pragma(connection, "freelist_count"):
            connection.execute("INSERT INTO filling VALUES(zeroblob(?))", (min(free * 4096, _FILLING),))
        leaves = sorted(set(range(2, pragma(connection, "page_count") + 1)) - _owned(connection, damaged))
        connection.executemany(
            "INSERT INTO sqlite_schema VALUES('table', ?1, ?1, ?2, ?3)",
            ((f"leaf_{page}", page, _TABLE.format(page)) for page in leaves),
        )
        return leaves
    finally:
        connection.close()


def _owned(connection: apsw.Connection, damaged: Collection[str]) -> set[int]:
    """Return the pages of all sound tables and indexes."""
    owned: set[int] = set()
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE rootpage > 0").fetchall():
        if text(name) not in damaged:
            sql = "SELECT pageno, pagetype FROM dbstat WHERE name=?"
            with suppress(apsw.CorruptError):
                pages = connection.execute(sql, (name,)).fetchall()
                owned.update(integer(page) for page, kind in pages if kind != "corrupted")
    return owned


def _read(scratch: str, key: bytes | None, leaves: list[int]) -> Iterator[list[Any]]:
    connection = _opened(scratch, key)
    try:
        for page in leaves:
            with suppress(apsw.Error):
                yield connection.execute(f"SELECT {DAMAGED_COLUMNS} FROM leaf_{page}").fetchall()
    finally:
        connection.close()


_CHUNK: Final = 4096
_BUSY_MS: Final = 10_000
_HIGHEST: Final = 1 << 40
_MOST_ERRORS: Final = 1000
# They belong to processes that are gone.
_OF_THE_MOMENT: Final = ("meta", "pubsub_subscriptions", "openers", "pubsub_outbox", "pulls", "nearest")


_OF_SUBJECT: Final = (
    "SELECT stream FROM subjects WHERE subject=?1 UNION SELECT s.id FROM streams s, json_each("
    "iif(json_valid(CAST(s.config AS TEXT)), CAST(s.config AS TEXT), '{}'), '$.subjects') f "
    "WHERE pelton_matches(f.value, ?1)"
)


class SalvageSnapshot:
    """One snapshot of a damaged store. An unreadable page may end it: then nothing else can be read in it.

    ``watch`` is another connection to the store, which reads no damaged page and notices what others write.
    """

    def __init__(self, source: Database, watch: Database) -> None:
        self._source = source
        self._watch = watch
        self.errors: int = 0

    def __enter__(self) -> Self:
        self._source.connection.set_busy_timeout(_BUSY_MS)
        self._seen = self._watch.seen()
        self._begin()
        return self

    def again(self) -> None:
        """Take the snapshot again, after an error. Raises :class:`Fault` (``busy``) if others have written since."""
        self.errors += 1
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


def copy_readable(
    source: Database, watch: Database, copy: Database, key: bytes | None, note: Callable[[str], None]
) -> set[int]:
    """Copy every readable row, as of one snapshot; call ``note`` with descriptions of what could not be read.

    Return the streams that may have had newer messages than those that were copied: nothing tells of them.

    ``watch`` is another connection to the source. Raises :class:`Fault` of kind ``busy`` if the source is damaged and
    others write at the same time.
    """
    with SalvageSnapshot(source, watch) as moment:
        return _copy_all(source, copy, key, moment, note)


def _copy_all(
    source: Database, copy: Database, key: bytes | None, moment: SalvageSnapshot, note: Callable[[str], None]
) -> set[int]:
    known = {name for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()}
    for table in sorted(text(name) for name in known):
        if not table.startswith("sqlite_") and table not in _OF_THE_MOMENT:
            _copy_small(source, copy, moment, table, note)
    with copy.writing():
        nameless = _name_streams(source, copy)
        _drop_damaged_states(copy, note)
        set_tokens_apart(copy, _readable_floor(source, moment))
    streams, damaged = column(copy.execute("SELECT id FROM streams").fetchall()), set()
    for stream in streams:
        if not _copy_messages(source, copy, moment, stream):
            damaged.add(stream)
    if damaged:
        _copy_leaves(source, copy, key, damaged)
    with copy.writing():
        for stream in nameless:
            if copy.value(f"SELECT EXISTS(SELECT 1 FROM m_{stream})"):
                note(f"the name of a stream is lost: it is {_name_of(stream)}")
            else:
                copy.execute("DELETE FROM streams WHERE id=?", (stream,))
                copy.execute(f"DROP TABLE m_{stream}")
                streams.remove(stream)
    return {stream for stream in streams if not _count_tail(source, copy, moment, stream)}


def _name_streams(source: Database, copy: Database) -> list[int]:
    """Name the streams of which nothing is left but, perhaps, their messages; return their numbers."""
    # As SQLite has it in memory: the pages that list the tables may be damaged, too.
    listed = source.execute("SELECT substr(name, 3) FROM pragma_table_list WHERE name GLOB 'm_[0-9]*'").fetchall()
    known = column(copy.execute("SELECT id FROM streams").fetchall())
    nameless = sorted({int(text(number)) for (number,) in listed} - set(known))
    copy.executemany("INSERT INTO streams VALUES(?, ?, x'', 0)", [(stream, _name_of(stream)) for stream in nameless])
    return nameless


def _name_of(stream: int) -> str:
    return f"SALVAGED_{stream}"


def _count_tail(source: Database, copy: Database, moment: SalvageSnapshot, stream: int) -> bool:
    """Add the messages after a stream's row to that row; return False if it is unknown how many there were.

    Then as many sequences are left out as they may have had.
    """
    row = copy.execute("SELECT last, last_ts FROM stream_state WHERE id=?", (stream,)).fetchone()
    if row is None:
        return True
    last, last_ts = integers(row)
    try:
        (newest_seq, newest_ts), is_known = newest(source, stream, last, last_ts), True
    except (apsw.Error, DamagedRowError):
        moment.again()
        (newest_seq, newest_ts), is_known = newest(copy, stream, last, last_ts), False
    after = newest_seq if is_known else last + TAIL - 1
    sql = "UPDATE stream_state SET msgs=msgs+?, last=?, last_ts=? WHERE id=?"
    with copy.writing():
        copy.execute(sql, (newest_seq - last, after, newest_ts, stream))
    return is_known


def _drop_damaged_states(copy: Database, note: Callable[[str], None]) -> None:
    for table in ("stream_state", "consumer_state"):
        for row in copy.execute(f"SELECT * FROM {table}").fetchall():
            try:
                integers(row)
            except DamagedRowError as error:
                note(f"table {table}: {error}")
                copy.execute(f"DELETE FROM {table} WHERE id=?", (row[0],))


def _readable_floor(source: Database, moment: SalvageSnapshot) -> int:
    with suppress(DamagedRowError):
        try:
            return token_floor(source)
        except apsw.Error:
            moment.again()
    return 0


def _copy_small(
    source: Database, copy: Database, moment: SalvageSnapshot, table: str, note: Callable[[str], None]
) -> None:
    listed = copy.execute(f"PRAGMA table_info({table})").fetchall()
    columns = [
        _Column(text(name), text(kind), bool(is_needed or key), bool(key))
        for _, name, kind, is_needed, _, key in listed
    ]
    key = ", ".join(f"{each.name} DESC" for each in columns if each.is_key)
    # Damaged text cannot be decoded, and would end the reading.
    shown = ", ".join(f"CAST({each.name} AS BLOB)" if each.kind == "TEXT" else each.name for each in columns)
    rows: list[Any] = []
    for part in parts_of(source.connection, table):
        try:
            _take(source, f"SELECT {shown} FROM {part}", rows)
        except apsw.Error as error:
            note(f"table {table}: {error}")
            moment.again()
            with suppress(apsw.Error):
                _take(source, f"SELECT {shown} FROM {part} ORDER BY {key}", rows)
            moment.again()
    sound = []
    for row in rows:
        try:
            sound.append([each.checked(value) for each, value in zip(columns, row, strict=True)])
        except ValueError as error:
            note(f"table {table}: {error}")
    if sound:
        marks = ", ".join("?" * len(columns))
        with copy.writing():
            copy.executemany(f"INSERT OR IGNORE INTO {table} VALUES({marks})", sound)


class _Column(NamedTuple):
    name: str
    kind: str
    is_needed: bool
    is_key: bool

    def checked(self, value: Any) -> Any:
        """Return a value as the schema declares it. Raises ValueError if the row is damaged."""
        if value is None and not self.is_needed:
            return None
        return integer(value) if self.kind == "INTEGER" else blob(value).decode() if self.kind == "TEXT" else value


def _take(source: Database, sql: str, rows: list[Any]) -> None:
    for row in source.execute(sql):
        rows.append(row)  # rows read before an error count


def _copy_messages(source: Database, copy: Database, moment: SalvageSnapshot, stream: int) -> bool:
    """Copy the readable messages of a stream; return False if some could not be read."""
    copy.execute(message_table(stream))
    errors = moment.errors
    last = copy.value("SELECT last FROM stream_state WHERE id=?", (stream,))
    for rows in _readable(source, moment, stream, _HIGHEST if last is None else int(last) + TAIL):
        _store(copy, stream, rows)
    return moment.errors == errors


def _store(copy: Database, stream: int, rows: list[RowValues]) -> None:
    with copy.writing():
        copy.executemany(f"INSERT OR IGNORE INTO m_{stream} VALUES(?, ?, ?, ?, ?, ?)", rows)


def _copy_leaves(source: Database, copy: Database, key: bytes | None, damaged: set[int]) -> None:
    """Copy the messages that are still on leaf pages of damaged tables, to the stream that they belong to."""
    bounds = {}
    for stream in damaged:
        row = copy.execute("SELECT first, last FROM stream_state WHERE id=?", (stream,)).fetchone()
        first, last = (0, _HIGHEST) if row is None else integers(row)
        bounds[stream] = first, last + TAIL
    for found in rows_of_leaves(source, copy.path + "-pages", key, [f"m_{stream}" for stream in damaged]):
        rows = [row for row in map(_with_text, found) if intact(unpack(row))]
        for stream in damaged:
            low, high = bounds[stream]
            _store(
                copy, stream, [row for row in rows if low <= row[0] <= high and _is_of(copy, stream, row[2], damaged)]
            )


def _is_of(copy: Database, stream: int, subject: str, damaged: set[int]) -> bool:
    """Whether only this one of the damaged streams can have a subject."""
    if len(damaged) == 1:
        return True
    return set(column(copy.execute(_OF_SUBJECT, (subject,)).fetchall())) & damaged == {stream}


def _readable(source: Database, moment: SalvageSnapshot, stream: int, last: int) -> Iterator[list[RowValues]]:
    sql = f"SELECT {DAMAGED_COLUMNS} FROM m_{stream} WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT {_CHUNK}"
    ranges, before = [(0, last)], moment.errors
    while ranges:
        low, high = ranges.pop()
        try:
            found: list[Any] = source.execute(sql, (low, high)).fetchall()
        except apsw.Error as error:
            moment.again()
            # If a page above many others is damaged, their leaves are read by themselves.
            if low < high and isinstance(error, apsw.CorruptError) and moment.errors - before < _MOST_ERRORS:
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
