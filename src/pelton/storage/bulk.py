"""Reads many rows of one stream in bulk, and checks each, as fast as Python can.

**Joined columns.** SQLite itself joins rows, column by column: no row ever becomes a Python object. It works for rows
without headers, as most are: a reader gets a few texts for thousands of rows: numbers separated by spaces, or all of
the same length, and subjects, which contain no spaces. Nothing is checked here: the function that splits the columns
(``SplitColumns``) compares them with the checksums, and refuses rows that differ or are not plain.

A stream without gaps is read by ranges of sequences, without selecting the sequences: there are as many rows as the
range is long. If rows are missing, or a condition excludes some, sequences are one more column.

Memory: SQLite refuses to join more than 8 MiB of a column.

**Three ways.** A bulk read has a connection of its own and holds each snapshot for one portion of rows only, so that it
never blocks checkpoints. Rows never change, so portions of several snapshots are like those of one, except for rows
that were removed in between: a reader can tell these by ``first``, the stream's first sequence at the time.

The ways, from the fastest to the most careful: if the caller can split columns, SQLite joins rows; if one is not plain
(headers, packed, damaged), this portion and some after it are read in the second way. There, rows are Python objects
only within a block of up to 256 rows, which fits the processor's cache; then they are bytes in columns. A block with a
row that is not plain (packed, damaged, a payload beyond 32 KiB) is checked row by row. Checksums are compared for a
whole portion; if one differs, the portion is read again in the third way, one row at a time.

Memory: a portion's payloads reach ``budget`` bytes and exceed it by at most one block, of 8 MiB, or one payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from struct import pack, unpack_from
from typing import Any, Final, NamedTuple
from zlib import crc32

import apsw

from pelton.storage.database import Database
from pelton.storage.messages import (
    DAMAGED,
    MessageRow,
    MessageTable,
    RowValues,
    SumsOfColumns,
    intact,
    sums_of_columns,
    unpack,
)
from pelton.storage.rows import Condition

_LONGEST: Final = 8 << 20
# A flipped bit can turn a blob into text with the same bytes. Text sorts before any blob, and comparing is cheaper
# than asking for the type.
_LENGTH: Final = "iif(subject < x'' AND data >= x'', length(data), -1)"


# Digits of a checksum, with a leading 1 so that all have the same length.
SUM_DIGITS: Final = 11
_SUM: Final = f"crc+{10 ** (SUM_DIGITS - 1)}"


def _concat(column: str, between: str = " ") -> str:
    return f"CAST(group_concat({column}, '{between}') AS BLOB)"


_APART: Final = ("ts-?3", "subject", _LENGTH)
_JOINED: Final = ", ".join(["count(hdr)", _concat("data", ""), *map(_concat, _APART), _concat(_SUM, "")])


class Joined(NamedTuple):
    """Rows without headers, as SQLite joins them."""

    rows: int
    first: int
    """``seqs`` are relative to it, as ``times`` are relative to ``since``."""
    seqs: bytes | None
    """None: consecutive sequences from ``first`` on."""
    since: int
    payloads: bytes
    times: bytes
    subjects: bytes
    payload_lengths: bytes
    """-1 if a column does not have its type."""
    sums: bytes
    """A 1 and ten digits each, concatenated."""


class Split(NamedTuple):
    """Rows in columns, in native byte order: int64 numbers, int32 lengths, texts concatenated."""

    seqs: bytes
    times: bytes
    subjects: bytes
    subject_lengths: bytes
    payload_lengths: bytes


SplitColumns = Callable[[Joined], Split | None]
"""Splits joined rows and compares each with its checksum; returns None if one is not plain or not intact."""


class JoinedRead:
    """Reads rows of the table ``name`` that meet a condition."""

    def __init__(self, database: Database, name: str, condition: Condition | None) -> None:
        self._database = database
        self._condition = condition
        self._is_dense = condition is None
        where = "" if condition is None else f" AND {condition.sql}"
        self._range = f"SELECT {_JOINED} FROM {name} WHERE seq>=?1 AND seq<=?2"
        self._each = (
            f"SELECT {_JOINED}, {_concat('seq-?1')} FROM (SELECT * FROM {name} "
            f"WHERE seq>=?1 AND seq<=?2{where} ORDER BY seq LIMIT ?+0)"
        )

    def read(self, first: int, last: int, rows: int, since: int) -> Joined | None:
        """Return at most ``rows`` rows of a range; None if one has headers, or they are too large to be joined."""
        limit = self._database.connection.limit
        usual = limit(apsw.SQLITE_LIMIT_LENGTH, _LONGEST)
        try:
            return (
                self._in_range(first, last, rows, since)
                if self._is_dense
                else self._read_each(first, last, rows, since)
            )
        except apsw.TooBigError:
            return None
        finally:
            limit(apsw.SQLITE_LIMIT_LENGTH, usual)

    def _in_range(self, first: int, last: int, rows: int, since: int) -> Joined | None:
        upto = min(last, first + rows - 1)
        found: Any = self._database.execute(self._range, (first, upto, since)).fetchone()
        if found[0]:
            return None
        joined = _whole(first, None, since, found[1:])
        if joined.rows == upto - first + 1:
            return joined
        self._is_dense = False
        return self._read_each(first, last, rows, since)

    def _read_each(self, first: int, last: int, rows: int, since: int) -> Joined | None:
        bindings = () if self._condition is None else self._condition.bindings
        found: Any = self._database.execute(self._each, (first, last, since, *bindings, rows)).fetchone()
        if found[0]:
            return None
        joined = _whole(first, found[-1] or b"", since, found[1:-1])
        if self._condition is None and joined.rows == rows:
            # If there are as many sequences as rows, the gaps are behind us.
            self._is_dense = found[-1].endswith(b" %d" % (rows - 1))
        return joined


def _whole(first: int, seqs: bytes | None, since: int, columns: tuple[bytes | None, ...]) -> Joined:
    payloads, times, subjects, lengths, sums = (column or b"" for column in columns)
    return Joined(len(sums) // SUM_DIGITS, first, seqs, since, payloads, times, subjects, lengths, sums)


_KNOWN_LIMIT: Final = 50_000
_MOST: Final = 256
_LARGE: Final = 32 * 1024
# For fewer rows, a faster way to compute checksums is not worth its preparation.
_MANY: Final = 1024
# Joining fewer rows is not worth it, nor is trying again soon after rows that could not be joined.
_FEW: Final = 32
_PATIENCE: Final = 15
_NO_HEADERS: Final = pack("i", -1)
# A large payload is selected as 0, which no payload is, and read by itself.
_COLUMNS: Final = f"seq, ts, subject, hdr, iif(length(data) > {_LARGE}, 0, data), crc"


class Portion(NamedTuple):
    """Messages in order, in columns: numbers in native byte order, texts and payloads concatenated.

    ``damaged`` has the sequences of damaged messages, which are left out. ``first`` was the stream's first sequence;
    ``after`` is the sequence up to which everything was read.
    """

    messages: int
    seqs: bytes
    """int64 each, as are ``times``."""
    times: bytes
    subjects: bytes
    subject_lengths: bytes
    """int32 each, in bytes, as are ``payload_lengths``."""
    headers: list[bytes | None]
    payloads: bytes
    payload_lengths: bytes
    damaged: list[int]
    first: int
    after: int


class StreamId(NamedTuple):
    """The row id of a stream, and its creation time."""

    id: int
    created: int


def find_stream(database: Database, name: str) -> StreamId | None:
    found: Any = database.execute("SELECT id, created FROM streams WHERE name=?", (name,)).fetchone()
    return None if found is None else StreamId(*found)


class _SubjectSums(dict[str, int]):
    """A cache of the checksums of subjects, with which the checksums of rows begin."""

    def __missing__(self, subject: str) -> int:
        if len(self) >= _KNOWN_LIMIT:
            self.clear()
        found = self[subject] = crc32(subject.encode())
        return found


class _Gathering:
    """Builds a portion of plain rows. If a row is not plain, ``add`` raises one of DAMAGED, and adds nothing."""

    def __init__(self, subject_sums: _SubjectSums) -> None:
        self._sum_of = subject_sums.__getitem__
        self._blocks: list[tuple[bytes, ...]] = []
        self._headers: list[bytes | None] = []
        self.damaged: list[int] = []
        self.count = 0
        self.reached = 0

    def add(self, rows: Sequence[RowValues]) -> int:
        """Add rows and return their payload bytes, without a line of Python per row: this dominates the cost."""
        seqs, times, subjects, headers, payloads, sums = zip(*rows, strict=True)
        count = len(rows)
        stored = pack(f"{count}I", *sums)
        contents = map(crc32, payloads, map(self._sum_of, subjects))
        lengths = _NO_HEADERS * count
        if headers.count(None) != count:
            contents = map(_with_headers, headers, contents)
            lengths = pack(f"{count}i", *(-1 if block is None else len(block) for block in headers))
        text, data = "".join(subjects), b"".join(payloads)
        block = (
            pack(f"{count}q", *seqs),
            pack(f"{count}q", *times),
            lengths,
            pack(f"{count}I", *contents),
            stored,
            text.encode(),
            pack(f"{count}i", *map(len, subjects if text.isascii() else map(str.encode, subjects))),
            data,
            pack(f"{count}i", *map(len, payloads)),
        )
        self._blocks.append(block)
        self._headers += headers
        self.count += count
        self.reached = seqs[-1]
        return len(data)

    def portion(self, first: int, after: int, sums_of: SumsOfColumns | None) -> Portion | None:
        """Return the added rows; None if ``sums_of`` computes other checksums than the rows have."""
        columns = [b"".join(parts) for parts in zip(*self._blocks, strict=True)] or [b""] * 9
        seqs, times, lengths, contents, sums, *rest = columns
        if sums_of is not None and sums_of(seqs, times, lengths, contents) != sums:
            return None
        texts, text_lengths, data, data_lengths = rest
        numbers = (self.count, seqs, times)
        return Portion(*numbers, texts, text_lengths, self._headers, data, data_lengths, self.damaged, first, after)


def _with_headers(block: bytes | None, content: int) -> int:
    return content if block is None else crc32(block, content)


def _portion(joined: Joined, split: Split, kept: int, after: int) -> Portion:
    seqs, times, subjects, subject_lengths, lengths = split
    without: list[bytes | None] = [None] * joined.rows
    columns = (seqs, times, subjects, subject_lengths, without, joined.payloads, lengths)
    return Portion(joined.rows, *columns, [], kept, after)


class BulkRead:
    """Reads portions of one stream: at most ``limit`` rows, or as many as reach ``budget`` bytes of payload."""

    def __init__(
        self,
        database: Database,
        stream: int,
        condition: Condition | None,
        *,
        limit: int,
        budget: int,
        sums: SumsOfColumns = sums_of_columns,
        split: SplitColumns | None = None,
    ) -> None:
        self._database = database
        self._stream = stream
        self._condition = condition
        self._limit = limit
        self._budget = budget
        self._sums = sums
        self._split = split
        self._table = MessageTable(database, stream)
        self._concat = JoinedRead(database, self._table.name, condition)
        self._average = self._since = self._not_joined = 0
        self._subject_sums = _SubjectSums()
        self._block = 8
        self._suspect = 0
        where = "" if condition is None else f" AND {condition.sql}"
        self._sql = (
            f"SELECT {_COLUMNS} FROM {self._table.name} WHERE seq>=? AND seq<=?{where} ORDER BY seq LIMIT {limit}"
        )

    def portion(self, first: int, last: int) -> Portion:
        """Return messages from ``first`` to at most ``last``. Raises LookupError if the stream is deleted."""
        with self._database.reading():
            # A deleted stream has no such row, and no table.
            kept = self._database.value("SELECT first FROM stream_state WHERE id=?", (self._stream,))
            if kept is None:
                raise LookupError(self._stream)
            found = None if self._suspect else self._split_up(int(kept), first, last)
            if found is None and not self._suspect:
                found = self._quickly(int(kept), first, last)
            found = found or self._carefully(int(kept), first, last)
        self._average = len(found.payloads) // (found.messages or 1)
        return found

    def _split_up(self, kept: int, first: int, last: int) -> Portion | None:
        """Read rows that SQLite joins; None if they are large, or one of them is not plain."""
        rows = min(self._limit, self._budget // (self._average + 1))
        if self._split is None or self._not_joined or rows < _FEW:
            self._not_joined = max(0, self._not_joined - 1)
            return None
        joined = self._concat.read(first, last, rows, self._since)
        split = joined and self._split(joined)
        if joined is None or split is None:
            self._not_joined = _PATIENCE
            return None
        if not joined.rows:
            return _portion(joined, split, kept, last)
        self._since = unpack_from("q", split.times, len(split.times) - 8)[0]
        reached = unpack_from("q", split.seqs, len(split.seqs) - 8)[0]
        return _portion(joined, split, kept, last if joined.rows < rows else reached)

    def _quickly(self, kept: int, first: int, last: int) -> Portion | None:
        """Read block by block, with larger blocks for smaller payloads; None if a row may be damaged."""
        found = _Gathering(self._subject_sums)
        try:
            ended = self._read_blocks(found, first, last)
        except DAMAGED:
            # Text that is not valid UTF-8 prevents reading its neighbours in the same call.
            self._suspect = found.count + self._block
            return None
        sums_of = self._sums if found.count >= _MANY else sums_of_columns
        portion = found.portion(kept, last if ended else found.reached, sums_of)
        self._suspect = 0 if portion is not None else found.count
        return portion

    def _read_blocks(self, found: _Gathering, first: int, last: int) -> bool:
        """Read up to the limit or budget; return whether everything was read."""
        cursor: Any = self._database.execute(
            self._sql, (first, last, *(self._condition.bindings if self._condition else ()))
        )
        left, rows = self._budget, 0
        while block := list(islice(cursor, self._block)):
            rows += len(block)
            try:
                size = found.add(block)
            except DAMAGED:
                size = self._add_each(found, block, left)
            left -= size
            self._block = max(8, min(_MOST, 2 * self._block, self._budget // 8 * len(block) // (size + 1)))
            if left <= 0:
                cursor.close()
                return False
        return rows < self._limit

    def _add_each(self, found: _Gathering, rows: Sequence[RowValues], left: int) -> int:
        """Add rows one by one until ``left`` bytes are reached, and return their bytes; note the damaged ones."""
        size, kept = 0, []
        for row in rows:
            seq, _, _, _, data, _ = row
            stands_for_it = not isinstance(data, bytes)
            whole = MessageRow._make((self._table.get(seq) if stands_for_it else unpack(row)) or row)
            if intact(whole):
                kept.append(whole)
                size += len(whole.data)
            else:
                found.damaged.append(seq)
            if size >= left:
                break
        if kept:
            found.add(kept)
        found.reached = seq
        return size

    def _carefully(self, kept: int, first: int, last: int) -> Portion:
        """Read row by row, because one is damaged."""
        found = _Gathering(self._subject_sums)
        left, position = self._budget, first
        for _ in range(min(_MOST, self._limit)):
            rows = self._table.scan(position, last, 1, self._condition)
            if not rows:
                found.reached = last
                break
            left -= self._add_each(found, rows, left)
            self._suspect = max(0, self._suspect - 1)
            position = found.reached + 1
            if left <= 0:
                break
        portion = found.portion(kept, found.reached, None)
        assert portion is not None, "without sums_of, no checksums are compared"
        return portion
