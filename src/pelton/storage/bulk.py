"""Many rows of one stream, read for what is done with all of them: each checked, as fast as Python can.

A bulk read has a connection of its own and holds no snapshot longer than for one portion of rows, so that it never
keeps the log from being folded into the file. Rows never change, so portions of several snapshots are those of one,
but for what was removed meanwhile: that a reader can tell by ``first``, the stream's first sequence at the time.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from pelton.storage.database import Database
from pelton.storage.messages import DAMAGED, Condition, MessageTable, intact
from pelton.storage.packing import Row, unpack

_KNOWN_LIMIT: Final = 50_000
_CAREFULLY: Final = 64
_position = Struct("<qqi").pack


class Portion(NamedTuple):
    """Rows in order, as they were published; ``damaged`` ones are left out and named by sequence.

    ``first`` was the stream's first sequence; ``after`` is the sequence up to which all was read.
    """

    rows: list[Row]
    damaged: list[int]
    first: int
    after: int


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
        where = "" if condition is None else f" AND {condition.sql}"
        self._sql = (
            f"SELECT seq, ts, subject, hdr, data, crc FROM {self._table.name} "
            f"WHERE seq>=? AND seq<=?{where} ORDER BY seq LIMIT {limit}"
        )

    def portion(self, first: int, last: int) -> Portion:
        """Return what lies from ``first`` on, at most to ``last``."""
        with self._database.reading():
            # A stream that is gone has no such row, and no table.
            kept = self._database.value("SELECT first FROM stream_state WHERE id=?", (self._stream,))
            if kept is None:
                raise LookupError(self._stream)
            try:
                found, damaged, ended = self._checked(first, last)
            except DAMAGED:
                found, damaged, ended = self._carefully(first, last)
        after = last if ended else max(found[-1][0] if found else 0, damaged[-1] if damaged else 0)
        return Portion(found, damaged, int(kept), after)

    def _checked(self, first: int, last: int) -> tuple[list[Row], list[int], bool]:
        bindings = (first, last, *(self._condition.bindings if self._condition else ()))
        rows: list[Row] = []
        damaged: list[int] = []
        sums, left, keep, seen = self._sums, self._budget, rows.append, 0
        cursor: Any = self._database.execute(self._sql, bindings)
        for row in cursor:
            seen += 1
            seq, ts, subject, hdr, data, crc = row
            # What `row_checksum` does, without its calls: this line is most of what a bulk read costs.
            if hdr is None and crc32(_position(seq, ts, -1), crc32(data, sums[subject])) == crc:
                keep(row)
            elif intact(unpacked := unpack(row)):
                keep(unpacked)
                data = unpacked[4]
            else:
                damaged.append(seq)
            left -= len(data)
            if left <= 0:
                cursor.close()
                return rows, damaged, False
        return rows, damaged, seen < self._limit

    def _carefully(self, first: int, last: int) -> tuple[list[Row], list[int], bool]:
        """Read where a damaged column keeps its neighbours from being read in one go."""
        rows = self._table.scan(first, last, _CAREFULLY, self._condition)
        damaged = [row[0] for row in rows if not intact(row)]
        return [row for row in rows if row[0] not in damaged], damaged, len(rows) < _CAREFULLY
