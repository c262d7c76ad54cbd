"""The message table of one stream: append, read, remove. Rows only; the layers above decide what they mean.

Rows are appended by sequence. Only the primary key is indexed: with 1,000 rows per commit, appending reaches 900 k
rows/s without an index on ``(subject, seq)`` and 190 k with it, because the log takes whole pages and an index scatters
them.

**One message** is read in one statement, which is a snapshot by itself, without a transaction. Opening a snapshot and
checking whether another process has written costs more than reading a row. So the statement that finds the row also
returns the version of the catalogue: if it is the caller's version, the caller's configurations are current, and the
result is valid. All other cases (no such row, a missing table, a lock, a damaged row) return None, and the caller then
reads in a snapshot.

A CRC-32 over subject, header block, payload, sequence and time detects every single flipped bit of a row, in any
column, and any burst up to 32 bits. ``-1`` stands for an absent header block so that an empty one differs.

**Compressed payloads: how a row marks them, and how they are read back.** The ``crc`` column of a row has the checksum
in its low 32 bits. The high bits are 0 for an uncompressed payload, else the original length, and ``data`` is a raw
deflate stream. The checksum covers the stored bytes and that length, so a flipped bit is detected before anything is
decompressed.

Rows are packed when they are written and unpacked when they are read, both inside this room: above it a row is as it
was published, with the checksum of that. A damaged packed row gets a checksum that nothing matches, so that
:func:`intact` refuses it like any other.

Measured in ADR 0007: a payload is packed from 128 bytes on, and only if that saves at least an eighth of it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice, repeat, starmap
from operator import attrgetter
from typing import Any, Final, NamedTuple
from zlib import crc32

import apsw
import msgspec

from pelton.storage.database import Database
from pelton.storage.rows import (
    FIELD,
    Columns,
    Condition,
    DamagedRowError,
    column,
    decoded,
    integer,
    integers,
    of_subject,
    pairs,
    runs,
    text,
)

_POSITION = struct.Struct("<qqi")

PlacedSums = Callable[[int, int, memoryview], bytes]
"""A function like :func:`placed_sums`, which may be faster."""

SumsOfColumns = Callable[[bytes, bytes, bytes, bytes], bytes]
"""A function like :func:`sums_of_columns`, which may be faster for many rows at a time: a CRC is linear."""


def row_checksum(seq: int, ts: int, subject: str, hdr: bytes | None, data: bytes) -> int:
    crc = crc32(data, crc32(subject.encode()))
    if hdr is None:
        return crc32(_POSITION.pack(seq, ts, -1), crc)
    return crc32(_POSITION.pack(seq, ts, len(hdr)), crc32(hdr, crc))


def row_checksums(
    sequences: Sequence[int],
    times: Sequence[int],
    subjects: Sequence[str],
    blocks: Sequence[bytes | None],
    payloads: Sequence[bytes],
) -> Iterator[int]:
    """Return the checksums of rows, given by columns."""
    if any(blocks) or b"" in blocks:
        return starmap(row_checksum, zip(sequences, times, subjects, blocks, payloads, strict=True))
    if subjects.count(subjects[0]) == len(subjects):
        begun: Iterable[int] = repeat(crc32(subjects[0].encode()))
    else:
        begun = map(crc32, map(str.encode, subjects))
    contents = map(crc32, payloads, begun)
    return map(crc32, map(_POSITION.pack, sequences, times, repeat(-1)), contents)


def rows_with_checksums(
    first: int, ts: int, subjects: Sequence[str], blocks: Sequence[bytes | None], payloads: Sequence[bytes]
) -> Iterable[tuple[int, int, str, bytes | None, bytes, int]]:
    """Return rows with consecutive sequences from ``first``, all stored at ``ts``: columns as in the table."""
    seqs, times = range(first, first + len(subjects)), [ts] * len(subjects)
    sums = row_checksums(seqs, times, subjects, blocks, payloads)
    return zip(seqs, times, subjects, blocks, payloads, sums, strict=True)


def placed_sums(first: int, ts: int, contents: memoryview) -> bytes:
    """Return the checksums of rows without headers, with consecutive sequences from ``first``, all stored at ``ts``.

    ``contents`` are checksums over subject and payload: uint32 in native byte order, like the result.
    """
    begun = contents.cast("I")
    positions = map(_POSITION.pack, range(first, first + len(begun)), repeat(ts), repeat(-1))
    return struct.pack(f"{len(begun)}I", *map(crc32, positions, begun))


def sums_of_columns(seqs: bytes, times: bytes, header_lengths: bytes, contents: bytes) -> bytes:
    """Return the checksums of rows from columns: int64, int64, int32 (-1: no headers), uint32, in native byte order.

    ``contents`` are checksums over subject, payload and header block: all except sequence and time.
    """
    columns = memoryview(seqs).cast("q"), memoryview(times).cast("q"), memoryview(header_lengths).cast("i")
    sums = map(crc32, map(_POSITION.pack, *columns), memoryview(contents).cast("I"))
    return struct.pack(f"{len(contents) // 4}I", *sums)


RowValues = tuple[int, int, str, bytes | None, bytes, int]
"""The columns of a row as SQLite takes and returns them: rows in bulk keep this form."""


class MessageRow(NamedTuple):
    """A row of a message table."""

    seq: int
    ts: int
    subject: str
    hdr: bytes | None
    data: bytes
    crc: int


TAIL: Final = 64
"""A stream's row in ``stream_state`` is behind by fewer messages than these: the *tail*, which readers count."""

ORIGINAL_LENGTH: Final = "iif(crc > 4294967295, crc >> 32, length(data))"
"""SQL: the payload bytes of a row as they were published."""

_LEAST: Final = 128
_KEPT: Final = 7 / 8
_SUM: Final = 0xFFFF_FFFF
_DAMAGED: Final = -1
# Level 1, no header; a state of 64 KiB, which the allocator returns without a system call each time.
_LEVEL: Final = 1
_WINDOW: Final = -13
_MEMORY: Final = 6
_length = struct.Struct("<Q").pack


def pack(row: RowValues) -> RowValues:
    """Return a row with its payload compressed, or the row itself if that does not save enough."""
    seq, ts, subject, hdr, data, _ = row
    if len(data) < _LEAST:
        return row
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    small = deflate.compress(data) + deflate.flush()
    if len(small) > len(data) * _KEPT:
        return row
    return seq, ts, subject, hdr, small, len(data) << 32 | _packed_checksum(row, small, len(data))


def unpack(row: RowValues) -> RowValues:
    """Return a row with its payload as it was published."""
    _, _, _, _, _, crc = row
    # A flipped bit can change the type of a column; if this is not an integer, the checksum refuses the row.
    if crc.__class__ is not int or crc <= _SUM:
        return row
    return _unpacked(row)


def unpack_all(rows: list[RowValues]) -> list[RowValues]:
    """Return rows with their payloads as they were published; the same list if none is packed."""
    for _, _, _, _, _, crc in rows:
        if crc.__class__ is int and crc > _SUM:
            return [unpack(each) for each in rows]
    return rows


def _packed_checksum(row: RowValues, stored: bytes, length: int) -> int:
    seq, ts, subject, hdr, _, _ = row
    return zlib.crc32(_length(length), row_checksum(seq, ts, subject, hdr, stored))


def _unpacked(row: RowValues) -> RowValues:
    seq, ts, subject, hdr, stored, crc = row
    try:
        length = crc >> 32
        if _packed_checksum(row, stored, length) == crc & _SUM:
            data = zlib.decompress(stored, _WINDOW, length)
            if len(data) == length:
                return seq, ts, subject, hdr, data, row_checksum(seq, ts, subject, hdr, data)
    except (TypeError, ValueError, AttributeError, struct.error, zlib.error):
        pass
    return seq, ts, subject, hdr, stored, _DAMAGED


class Removed(msgspec.Struct, gc=False):
    """A removed row: the lengths of its payload and of its header block (-1: no header block)."""

    seq: int
    subject: str
    data: int
    hdr: int


class Alike(msgspec.Struct, gc=False):
    """Removed rows of one subject: their number, their payload and header bytes, and how many had headers."""

    subject: str
    count: int
    data: int
    hdr: int
    with_headers: int


class Sizes(msgspec.Struct, gc=False):
    """The lengths of a row's columns; ``hdr`` is -1 without a header block."""

    subject: int
    data: int
    hdr: int


class Tail(msgspec.Struct, frozen=True):
    """The newest messages of a stream: the last of them, its time, and how many there are.

    ``size`` is the bytes of their subjects, payloads and header blocks, which ``with_headers`` of them have.
    """

    last: int
    last_ts: int
    messages: int
    size: int
    with_headers: int


COLUMNS: Final = "seq, ts, subject, hdr, data, crc"
# Invalid text cannot even be read: bytes that have become text are selected as 0, which matches no checksum.
DAMAGED_COLUMNS: Final = (
    "seq, ts, CAST(subject AS BLOB), iif(typeof(hdr)='text', 0, hdr), iif(typeof(data)='text', 0, data), crc"
)
# Rows per statement, the largest that fits and then the next: each statement costs APSW a search for it.
_SIZES: Final = (50, 8, 1)
# Only the first row gets its sequence: SQLite finds the next one faster than it verifies that a given one is new.
_INSERT_PACKED: Final = (
    "INSERT INTO {name} SELECT iif(rowid = 1, ?1, NULL), ?2, CAST(substr(?4, (value >> 8 & 0xffffff) + 1, value & 255) "
    "AS TEXT), NULL, substr(?5, {begin}, {length}), value >> 32 & 0xffffffff FROM carray(?3)"
)
_REMOVED: Final = f"RETURNING seq, CAST(subject AS BLOB), {ORIGINAL_LENGTH}, ifnull(length(hdr), -1)"
# SQLite stores a type with each value: a flipped bit can turn a blob into text, or make text invalid.
DAMAGED: Final = (TypeError, ValueError, AttributeError, struct.error)


def intact(row: RowValues) -> bool:
    """Return whether a row matches its checksum."""
    seq, ts, subject, hdr, data, crc = row
    try:
        return row_checksum(seq, ts, subject, hdr, data) == crc
    except DAMAGED:
        return False


def all_intact(rows: Sequence[RowValues]) -> bool:
    """Return whether all of these rows are intact, with a third of the work of checking each."""
    try:
        if len(rows) == 1:
            [(seq, ts, subject, hdr, data, crc)] = rows
            return row_checksum(seq, ts, subject, hdr, data) == crc
        seqs, times, subjects, blocks, payloads, sums = zip(*rows, strict=True)
        return tuple(row_checksums(seqs, times, subjects, blocks, payloads)) == sums
    except DAMAGED:
        return False


class MessageTable:
    """The rows of one stream."""

    def __init__(self, database: Database, stream: int) -> None:
        self._db = database
        name = f"m_{stream}"
        self.name: str = name
        self._insert = f"INSERT INTO {name} VALUES(?, ?, ?, ?, ?, ?)"
        self._get = f"SELECT {COLUMNS} FROM {name} WHERE seq=?"
        self._get_many = f"SELECT {COLUMNS} FROM {name} WHERE seq IN (SELECT value FROM json_each(?))"
        self._scan = f"SELECT {COLUMNS} FROM {name} WHERE seq>=? AND seq<=? ORDER BY seq LIMIT ?+0"
        self._scan_filtered = f"SELECT {COLUMNS} FROM {name} WHERE seq>=? AND seq<=? AND {{}} ORDER BY seq LIMIT ?+0"
        self._sums = (
            "SELECT CAST(min(subject) AS BLOB), min(subject)=max(subject), count(*), "
            f"ifnull(sum({ORIGINAL_LENGTH}), 0), ifnull(sum(length(hdr)), 0), count(hdr) "
            f"FROM {name} WHERE seq BETWEEN ? AND ?"
        )
        self._remove_quietly = f"DELETE FROM {name} WHERE seq BETWEEN ? AND ?"
        self._remove_range = f"DELETE FROM {name} WHERE seq BETWEEN ? AND ? {_REMOVED}"
        front = f"SELECT seq FROM {name} ORDER BY seq LIMIT ?+0"
        self._remove_front = f"DELETE FROM {name} WHERE seq IN ({front}) {_REMOVED}"
        self._lengths = f"SELECT {ORIGINAL_LENGTH}, ifnull(length(hdr), -1) FROM {name} WHERE seq=? AND subject=?"
        self._remove_one = f"DELETE FROM {name} WHERE seq=?"
        self._subject = f"SELECT CAST(subject AS BLOB) FROM {name} WHERE seq=?"
        # The time is that of the row with the greatest sequence; a damaged one must not make the stream unreadable.
        self._tail = (
            "SELECT max(seq), iif(typeof(ts)='integer', ts, 0), count(*), "
            f"ifnull(sum(octet_length(subject) + {ORIGINAL_LENGTH} + ifnull(length(hdr), 0)), 0), count(hdr) "
            f"FROM {name} WHERE seq>?1 AND seq<?1+{TAIL}"
        )
        self._next = f"SELECT min(seq) FROM {name} WHERE seq>=?"
        self._sizes = (
            f"SELECT octet_length(subject), {ORIGINAL_LENGTH}, ifnull(length(hdr), -1) FROM {name} "
            "ORDER BY seq LIMIT ?+0"
        )

    # Long texts, which few streams need.
    @cached_property
    def _inserts(self) -> list[tuple[int, str]]:
        return [(size, self._insert + ", (?, ?, ?, ?, ?, ?)" * (size - 1)) for size in _SIZES]

    @cached_property
    def _insert_even(self) -> str:
        return _INSERT_PACKED.format(name=self.name, begin="(rowid - 1) * ?6 + 1", length="?6")

    @cached_property
    def _insert_uneven(self) -> str:
        begin, length = (f"CAST(substr(?6, rowid * {2 * FIELD + 1} - {end}, {FIELD}) AS INTEGER)" for end in (15, 7))
        return _INSERT_PACKED.format(name=self.name, begin=begin, length=length)

    def insert(self, rows: Sequence[RowValues], *, packed: bool = False) -> None:
        """Append rows; ``packed``: compress their payloads if that saves enough."""
        if packed:
            rows = [pack(row) for row in rows]
        left = len(rows)
        if left == 1:
            self._db.run(self._insert, rows[0])
            return
        values = chain.from_iterable(rows)
        for size, sql in self._inserts:
            statements, left = divmod(left, size)
            if statements:
                self._db.run_many(sql, (tuple(islice(values, size * 6)) for _ in range(statements)))

    def insert_packed(self, first: int, ts: int, columns: Columns, sums: PlacedSums = placed_sums) -> None:
        """Append rows from ``first`` on, in one statement that extracts them from their columns."""
        rows = apsw.carray(pairs(columns.spots, sums(first, ts, columns.contents)))
        # From an empty blob, SQLite's substr returns null and not an empty payload.
        bindings = (first, ts, rows, columns.subjects, columns.payloads or b"\0")
        if columns.length >= 0:
            self._db.execute(self._insert_even, (*bindings, columns.length))
        else:
            self._db.execute(self._insert_uneven, (*bindings, columns.pieces))

    def get(self, seq: int) -> MessageRow | None:
        found = self._read(self._get, (seq,))
        return MessageRow._make(found[0]) if found else None

    def get_many(self, sequences: Iterable[int]) -> list[MessageRow]:
        """Return those of these rows that exist, in one statement."""
        listed = ",".join(map(str, sequences))
        return list(map(MessageRow._make, self._read(self._get_many, (f"[{listed}]",)))) if listed else []

    def scan(self, first: int, last: int, limit: int, condition: Condition | None = None) -> list[MessageRow]:
        """Return rows from ``first`` to ``last`` inclusive in order, at most ``limit``, that meet ``condition``."""
        return list(map(MessageRow._make, self.scan_values(first, last, limit, condition)))

    def scan_values(self, first: int, last: int, limit: int, condition: Condition | None = None) -> list[RowValues]:
        """Return the same rows as :meth:`scan`, as plain tuples, for callers that process rows by columns."""
        if condition is None:
            return self._read(self._scan, (first, last, limit))
        sql = self._scan_filtered.format(condition.sql)
        return self._read(sql, (first, last, *condition.bindings, limit))

    def _read(self, sql: str, bindings: tuple[int | str, ...]) -> list[RowValues]:
        try:
            return unpack_all(self._db.run(sql, bindings).fetchall())  # type: ignore[arg-type]  # RowValues
        except UnicodeDecodeError:
            # A damaged subject must not hide its neighbours; its replacement fails the checksum.
            rows = self._db.execute(sql.replace(COLUMNS, DAMAGED_COLUMNS), bindings).fetchall()
            return unpack_all([(seq, ts, text(subject), *rest) for seq, ts, subject, *rest in rows])  # type: ignore[misc]  # RowValues

    def walk(self, first: int, last: int, limit: int, condition: Condition | None = None) -> Iterator[MessageRow]:
        """Iterate over the rows of :meth:`scan` one by one; stop before a damaged one."""
        sql = self._scan if condition is None else self._scan_filtered.format(condition.sql)
        bindings = () if condition is None else condition.bindings
        rows: Any = self._db.execute(sql, (first, last, *bindings, limit))
        with suppress(*DAMAGED):
            for row in rows:
                seq, ts, subject, hdr, data, crc = row
                if row_checksum(seq, ts, subject, hdr, data) == crc:
                    yield MessageRow(seq, ts, subject, hdr, data, crc)
                elif intact(unpacked := unpack(row)):
                    yield MessageRow._make(unpacked)
                else:
                    return

    def subjects_backward(self, first: int, last: int, condition: Condition | None) -> Iterator[tuple[int, str]]:
        """Iterate from ``last`` back to ``first`` over sequences and subjects that meet ``condition``."""
        where = condition or Condition("1", ())
        sql = (
            f"SELECT seq, CAST(subject AS BLOB) FROM {self.name} WHERE seq>=? AND seq<=? AND {where.sql} "
            "ORDER BY seq DESC"
        )
        for seq, subject in self._db.execute(sql, (first, last, *where.bindings)):
            yield integer(seq), text(subject)

    def last_where(self, upto: int, condition: Condition, *, after: int = 0) -> MessageRow | None:
        """Return the last row at or before ``upto``, and after ``after``, that meets ``condition``."""
        sql = f"SELECT {COLUMNS} FROM {self.name} WHERE seq>? AND seq<=? AND {condition.sql} ORDER BY seq DESC LIMIT 1"
        found = self._read(sql, (after, upto, *condition.bindings))
        return MessageRow._make(found[0]) if found else None

    def count(self, first: int, last: int, condition: Condition | None = None) -> int:
        """Return the number of rows from ``first`` to ``last`` that meet ``condition``."""
        sql = f"SELECT count(*) FROM {self.name} WHERE seq>=? AND seq<=?"
        if condition is None:
            return int(self._db.value(sql, (first, last)))
        return int(self._db.value(f"{sql} AND {condition.sql}", (first, last, *condition.bindings)))

    def remove(self, sequences: Iterable[int]) -> list[Removed]:
        """Remove rows by sequence; consecutive ones in one statement."""
        removed: list[Removed] = []
        for first, last in runs(sequences):
            removed += self.remove_range(first, last)
        return removed

    def remove_each(self, sequences: Iterable[int]) -> list[Removed]:
        """Remove rows by sequence, all in one statement."""
        listed = ",".join(map(str, sequences))
        sql = f"DELETE FROM {self.name} WHERE seq IN (SELECT value FROM json_each(?)) {_REMOVED}"
        return sorted(self._removed(sql, (f"[{listed}]",)), key=attrgetter("seq")) if listed else []

    def subjects_at(self, sequences: Iterable[int]) -> dict[int, str]:
        listed = ",".join(map(str, sequences))
        sql = f"SELECT seq, CAST(subject AS BLOB) FROM {self.name} WHERE seq IN (SELECT value FROM json_each(?))"
        return (
            {integer(seq): text(subject) for seq, subject in self._db.execute(sql, (f"[{listed}]",))} if listed else {}
        )

    def subject_of(self, seq: int) -> str | None:
        rows = self._db.run(self._subject, (seq,)).fetchall()
        return text(rows[0][0]) if rows else None

    def remove_range(self, first: int, last: int) -> list[Removed]:
        return self._removed(self._remove_range, (first, last))

    def remove_alike(self, first: int, last: int) -> Alike | None:
        """Remove the rows of a range if all have the same subject, in a quarter of the time; else return None."""
        subject, alike, *sums = self._db.run(self._sums, (first, last)).fetchall()[0]
        if not alike:
            return None
        self._db.run(self._remove_quietly, (first, last))
        return Alike(text(subject), *integers(sums))

    def remove_front(self, count: int) -> list[Removed]:
        return self._removed(self._remove_front, (count,))

    def _removed(self, sql: str, bindings: tuple[int | str, ...]) -> list[Removed]:
        rows = self._db.run(sql, bindings).fetchall()
        return [Removed(seq, text(subject), data, hdr) for seq, subject, data, hdr in rows]  # type: ignore[arg-type]  # integers

    def newest_where(self, first: int, last: int, condition: Condition, count: int) -> tuple[int, int]:
        """Return how many of the newest rows there are that meet a condition, ``count`` at most, and the first."""
        sql = (
            f"SELECT count(*), ifnull(min(seq), 0) FROM (SELECT seq FROM {self.name} WHERE seq BETWEEN ? AND ? "
            f"AND {condition.sql} ORDER BY seq DESC LIMIT ?+0)"
        )
        number, newest = integers(self._db.execute(sql, (first, last, *condition.bindings, count)).fetchall()[0])
        return number, newest

    def remove_oldest_where(self, first: int, last: int, condition: Condition, count: int) -> list[Removed]:
        """Remove the ``count`` oldest rows from ``first`` to ``last`` that meet ``condition``; in no order."""
        sql = (
            f"DELETE FROM {self.name} WHERE seq IN (SELECT seq FROM {self.name} WHERE seq BETWEEN ? AND ? "
            f"AND {condition.sql} ORDER BY seq LIMIT ?+0) {_REMOVED}"
        )
        return self._removed(sql, (first, last, *condition.bindings, count))

    def remove_oldest_of(self, subject: str, first: int, last: int, count: int) -> list[Removed]:
        if count == 1 and (rows := self._db.run(self._lengths, (first, subject)).fetchall()):
            # Usually the bound is exact: this takes an eighth of the time, and without RETURNING less than with it.
            self._db.run(self._remove_one, (first,))
            return [Removed(first, subject, *rows[0])]  # type: ignore[arg-type]  # integers
        return self.remove_oldest_where(first, last, of_subject(subject), count)

    def sequences(self, first: int, last: int, limit: int) -> list[int]:
        """Return the sequences stored from ``first`` to ``last`` inclusive in order, at most ``limit``."""
        sql = f"SELECT seq FROM {self.name} WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?+0"
        return column(self._db.execute(sql, (first, last, limit)))

    def subjects(self, first: int, last: int) -> dict[int, str]:
        """Return the subject of each row from ``first`` to ``last`` inclusive."""
        sql = f"SELECT seq, CAST(subject AS BLOB) FROM {self.name} WHERE seq BETWEEN ? AND ?"
        return {integer(seq): text(subject) for seq, subject in self._db.execute(sql, (first, last))}

    def scan_subjects(
        self, first: int, last: int, limit: int, condition: Condition | None = None
    ) -> list[tuple[int, str]]:
        """Return sequence and subject of the first rows that meet a condition; their checksums are not verified."""
        where, bindings = ("1", ()) if condition is None else (condition.sql, condition.bindings)
        sql = f"SELECT seq, {{}} FROM {self.name} WHERE seq>=? AND seq<=? AND {where} ORDER BY seq LIMIT ?+0"
        try:
            rows = self._db.execute(sql.format("subject"), (first, last, *bindings, limit)).fetchall()
            if all(type(subject) is str for _, subject in rows):
                return rows  # type: ignore[return-value]  # as declared
        except UnicodeDecodeError:
            rows = self._db.execute(sql.format("CAST(subject AS BLOB)"), (first, last, *bindings, limit)).fetchall()
        return [(integer(seq), text(subject)) for seq, subject in rows]

    def tail(self, after: int) -> Tail | None:
        """Return what is stored after ``after``, or None. Raises DamagedRowError if it cannot be read."""
        try:
            [row] = self._db.run(self._tail, (after,)).fetchall()
        except apsw.CorruptError as error:
            raise DamagedRowError(f"the page with its newest messages is damaged ({error})") from None
        return None if row[0] is None else Tail(*integers(row))

    def next_seq(self, at_least: int) -> int | None:
        """Return the first sequence stored at or after ``at_least``."""
        value = self._db.value(self._next, (at_least,))
        return None if value is None else int(value)

    def oldest(self, limit: int) -> list[Sizes]:
        return decoded(Sizes, self._db.execute(self._sizes, (limit,)).fetchall())

    def time_of(self, seq: int) -> int | None:
        value = self._db.value(f"SELECT ts FROM {self.name} WHERE seq=?", (seq,))
        return None if value is None else int(value)


def newest(database: Database, stream: int, last: int, last_ts: int) -> tuple[int, int]:
    """Return sequence and time of the last message of a stream whose row in ``stream_state`` says these.

    Raises DamagedRowError if its page is damaged.
    """
    sql = f"SELECT seq, ts FROM m_{stream} WHERE seq>?1 AND seq<?1+{TAIL} ORDER BY seq DESC LIMIT 1"
    try:
        row = database.execute(sql, (last,)).fetchone()
    except apsw.CorruptError as error:
        raise DamagedRowError(f"the page with its newest messages is damaged ({error})") from None
    return (last, last_ts) if row is None else (integer(row[0]), integer(row[1]))


_OF_ONE: Final = "m.seq, m.ts, m.subject, m.hdr, m.data, m.crc, (SELECT value FROM meta WHERE key='catalogue')"
_NOT_PLAIN: Final = (apsw.Error, OverflowError, *DAMAGED)


class FastGet:
    """Reads single messages of one stream."""

    def __init__(self, database: Database, stream: int) -> None:
        self._database = database
        self._by_seq = f"SELECT {_OF_ONE} FROM m_{stream} m WHERE m.seq=?1"
        # ``subjects.last`` is a bound: if its message is gone, there is no row, and the result is None. It counts, or
        # the caller's last sequence does, if no message came since; else, the result is None as well.
        # The state is asked for as a value: joined, SQLite would prepare the statement anew at each use (15 us, not 4).
        self._last_of = (
            f"SELECT {_OF_ONE} FROM m_{stream} m WHERE "
            f"m.seq=ifnull(?2, (SELECT last FROM subjects WHERE stream={stream} AND subject=?1)) AND m.subject=?1 AND "
            f"(NOT EXISTS(SELECT 1 FROM m_{stream} WHERE seq>?3) OR (?2 IS NULL AND NOT EXISTS("
            f"SELECT 1 FROM m_{stream} WHERE seq>ifnull((SELECT json_extract(s.subject, '$[2]') "
            f"FROM pelton_deliveries s WHERE s.consumer=0 AND s.seq={stream}), 0))))"
        )

    def by_seq(self, seq: int, version: int) -> MessageRow | None:
        """Return the message with a sequence, if the catalogue is still at ``version``."""
        return self._one(self._by_seq, (seq,), version)

    def last_of(self, subject: str, last: int | None, seen: int, version: int) -> MessageRow | None:
        """Return the last message of a literal subject, if the catalogue is still at ``version``.

        ``last``: its sequence, if it is among the messages that are not counted, which are known up to ``seen``.
        """
        return self._one(self._last_of, (subject, last, seen), version)

    def _one(self, sql: str, bindings: tuple[int | str | None, ...], version: int) -> MessageRow | None:
        rows: Any
        try:
            rows = self._database.run(sql, bindings).fetchall()
            for seq, ts, subject, hdr, data, crc, present in rows:
                if present == version and row_checksum(seq, ts, subject, hdr, data) == crc:
                    return MessageRow(seq, ts, subject, hdr, data, crc)
        except _NOT_PLAIN:
            return None
        for *values, present in rows:
            if present == version and intact(row := MessageRow._make(unpack(tuple(values)))):
                return row
        return None
