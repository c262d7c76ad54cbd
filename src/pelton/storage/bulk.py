"""Many rows of one stream, read for what is done with all of them: each checked, as fast as Python can.

A bulk read has a connection of its own and holds no snapshot longer than for one portion of rows, so that it never
keeps the log from being folded into the file. Rows never change, so portions of several snapshots are those of one,
but for what was removed meanwhile: that a reader can tell by ``first``, the stream's first sequence at the time.
"""

from __future__ import annotations

from itertools import islice, repeat
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from pelton.storage.database import Database
from pelton.storage.messages import DAMAGED, Condition, MessageTable, intact
from pelton.storage.packing import Row, unpack

_KNOWN_LIMIT: Final = 50_000
_CAREFULLY: Final = 64
_MOST: Final = 256
_position = Struct("<qqi").pack
_NO_HEADERS: Final = repeat(-1)


class Portion:
    """Messages in order, a list for each column; ``damaged`` ones are left out and named by sequence.

    ``first`` was the stream's first sequence; ``after`` is the sequence up to which all was read.
    """

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.times: list[int] = []
        self.subjects: list[str] = []
        self.headers: list[bytes | None] = []
        self.payloads: list[bytes] = []
        self.damaged: list[int] = []
        self.first = 0
        self.after = 0

    def add(self, row: Row) -> None:
        """Take one row."""
        self.extend(*((value,) for value in row[:5]))

    def extend(self, seqs: Any, times: Any, subjects: Any, headers: Any, payloads: Any) -> None:
        """Take the columns of several rows."""
        self.seqs += seqs
        self.times += times
        self.subjects += subjects
        self.headers += headers
        self.payloads += payloads

    def reached(self) -> int:
        """Return the last sequence that was met."""
        return max(self.seqs[-1] if self.seqs else 0, self.damaged[-1] if self.damaged else 0)


class StreamId(NamedTuple):
    """Which stream a name means: its row, and when it was made."""

    id: int
    created: int


def find_stream(database: Database, name: str) -> StreamId | None:
    """Return the stream of a name, None where there is none."""
    found: Any = database.execute("SELECT id, created FROM streams WHERE name=?", (name,)).fetchone()
    return None if found is None else StreamId(*found)


class _SubjectSums(dict[str, int]):
    """The checksums of subjects, where the checksums of rows begin."""

    def __missing__(self, subject: str) -> int:
        if len(self) >= _KNOWN_LIMIT:
            self.clear()
        found = self[subject] = crc32(subject.encode())
        return found


class BulkRead:
    """Reads portions of one stream. ``limit`` rows at most, or as many as reach ``budget`` bytes of payload."""

    def __init__(
        self, database: Database, stream: int, condition: Condition | None, *, limit: int, budget: int
    ) -> None:
        self._database = database
        self._stream = stream
        self._condition = condition
        self._limit = limit
        self._budget = budget
        self._table = MessageTable(database, stream)
        self._sums = _SubjectSums()
        self._block = 8
        where = "" if condition is None else f" AND {condition.sql}"
        self._sql = (
            f"SELECT seq, ts, subject, hdr, data, crc FROM {self._table.name} "
            f"WHERE seq>=? AND seq<=?{where} ORDER BY seq LIMIT {limit}"
        )

    def portion(self, first: int, last: int) -> Portion:
        """Return what lies from ``first`` on, at most to ``last``. Raises LookupError when the stream is gone."""
        with self._database.reading():
            # A stream that is gone has no such row, and no table.
            kept = self._database.value("SELECT first FROM stream_state WHERE id=?", (self._stream,))
            if kept is None:
                raise LookupError(self._stream)
            found = Portion()
            try:
                ended = self._quickly(found, first, last)
            except DAMAGED:
                found = Portion()
                ended = self._carefully(found, first, last)
        found.first = int(kept)
        found.after = last if ended else found.reached()
        return found

    def _quickly(self, found: Portion, first: int, last: int) -> bool:
        """Read block by block; return whether there is no more. A block grows where payloads are small."""
        bindings = (first, last, *(self._condition.bindings if self._condition else ()))
        cursor: Any = self._database.execute(self._sql, bindings)
        left, rows = self._budget, 0
        while block := list(islice(cursor, self._block)):
            rows += len(block)
            size = self._check(found, block)
            left -= size
            self._block = max(8, min(_MOST, 2 * self._block, self._budget // 8 * len(block) // (size + 1)))
            if left <= 0:
                cursor.close()
                return False
        return rows < self._limit

    def _check(self, found: Portion, block: list[Row]) -> int:
        """Add the rows of a block that are intact, and return their bytes.

        What :func:`row_checksum` does, for a whole block without a line of Python a row: this is most of what a bulk
        read costs. Where a row has headers, is packed or is damaged, the block is looked at row by row.
        """
        seqs, times, subjects, headers, payloads, sums = zip(*block, strict=True)
        of_subjects = map(self._sums.__getitem__, subjects)
        positions = map(_position, seqs, times, _NO_HEADERS)
        if tuple(map(crc32, positions, map(crc32, payloads, of_subjects))) == sums and headers.count(None) == len(
            headers
        ):
            found.extend(seqs, times, subjects, headers, payloads)
            return sum(map(len, payloads))
        return sum(self._check_one(found, row) for row in block)

    def _check_one(self, found: Portion, row: Row) -> int:
        seq, ts, subject, hdr, data, crc = row
        whole = crc32(data, self._sums[subject])
        if hdr is not None:
            whole = crc32(hdr, whole)
        if crc32(_position(seq, ts, -1 if hdr is None else len(hdr)), whole) != crc:
            row = unpack(row)
            if not intact(row):
                found.damaged.append(seq)
                return len(data)
        found.add(row)
        return len(row[4])

    def _carefully(self, found: Portion, first: int, last: int) -> bool:
        """Read where a damaged column keeps its neighbours from being read in one go."""
        rows = self._table.scan(first, last, _CAREFULLY, self._condition)
        for row in rows:
            if intact(row):
                found.add(row)
            else:
                found.damaged.append(row[0])
        return len(rows) < _CAREFULLY
