"""Reads one message in one statement, which is a snapshot by itself, without a transaction.

Design: opening a snapshot and checking whether another process has written costs more than reading a row. So the
statement that finds the row also returns the version of the catalogue: if it is the caller's version, the caller's
configurations are current, and the result is valid. All other cases (no such row, a missing table, a lock, a damaged
row) return None, and the caller then reads in a snapshot.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from pelton.storage.checksum import row_checksum
from pelton.storage.database import Database
from pelton.storage.messages import DAMAGED, intact
from pelton.storage.packing import MessageRow, unpack

_COLUMNS: Final = "m.seq, m.ts, m.subject, m.hdr, m.data, m.crc, (SELECT value FROM meta WHERE key='catalogue')"
_NOT_PLAIN: Final = (apsw.Error, OverflowError, *DAMAGED)


class FastGet:
    """Reads single messages of one stream."""

    def __init__(self, database: Database, stream: int) -> None:
        self._database = database
        self._by_seq = f"SELECT {_COLUMNS} FROM m_{stream} m WHERE m.seq=?1"
        # ``subjects.last`` is a bound: if its message is gone, there is no row, and the result is None. It counts, or
        # the caller's last sequence does, if no message came since; else, the result is None as well.
        self._last_of = (
            f"SELECT {_COLUMNS} FROM stream_state s CROSS JOIN m_{stream} m WHERE s.id={stream} AND "
            "(s.last=?3 OR (s.subjects_upto=s.last AND ?2 IS NULL)) AND m.subject=?1 AND "
            f"m.seq=ifnull(?2, (SELECT last FROM subjects WHERE stream={stream} AND subject=?1))"
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
            rows = self._database.read_whole(sql, bindings).fetchall()
            for seq, ts, subject, hdr, data, crc, present in rows:
                if present == version and row_checksum(seq, ts, subject, hdr, data) == crc:
                    return MessageRow(seq, ts, subject, hdr, data, crc)
        except _NOT_PLAIN:
            return None
        for *values, present in rows:
            if present == version and intact(row := MessageRow._make(unpack(tuple(values)))):
                return row
        return None
