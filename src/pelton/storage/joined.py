"""Reads rows of one stream joined by SQLite itself, column by column: no row ever becomes a Python object.

It works for rows without headers, as most are: a reader gets a few texts for thousands of rows: numbers separated by
spaces, or all of the same length, and subjects, which contain no spaces. Nothing is checked here: the function that
splits the columns (``SplitColumns``) compares them with the checksums, and refuses rows that differ or are not plain.

A stream without gaps is read by ranges of sequences, without selecting the sequences: there are as many rows as the
range is long. If rows are missing, or a condition excludes some, sequences are one more column.

Memory: SQLite refuses to join more than 8 MiB of a column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import apsw

from pelton.storage.database import Database
from pelton.storage.messages import Condition

_LONGEST: Final = 8 << 20
# A flipped bit can turn a blob into text with the same bytes. Text sorts before any blob, and comparing is cheaper
# than asking for the type.
_LENGTH: Final = "iif(subject < x'' AND data >= x'', length(data), -1)"


# Digits of a checksum, with a leading 1 so that all have the same length.
SUM_DIGITS: Final = 11
_SUM: Final = f"crc+{10 ** (SUM_DIGITS - 1)}"


def _joined(column: str, between: str = " ") -> str:
    return f"CAST(group_concat({column}, '{between}') AS BLOB)"


_APART: Final = ("ts-?3", "subject", _LENGTH)
_COLUMNS: Final = ", ".join(["count(hdr)", _joined("data", ""), *map(_joined, _APART), _joined(_SUM, "")])


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
        self._range = f"SELECT {_COLUMNS} FROM {name} WHERE seq>=?1 AND seq<=?2"
        self._each = (
            f"SELECT {_COLUMNS}, {_joined('seq-?1')} FROM (SELECT * FROM {name} "
            f"WHERE seq>=?1 AND seq<=?2{where} ORDER BY seq LIMIT ?)"
        )

    def read(self, first: int, last: int, rows: int, since: int) -> Joined | None:
        """Return at most ``rows`` rows of a range; None if one has headers, or they are too large to be joined."""
        limit = self._database.connection.limit
        usual = limit(apsw.SQLITE_LIMIT_LENGTH, _LONGEST)
        try:
            return self._in_range(first, last, rows, since) if self._is_dense else self._found(first, last, rows, since)
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
        return self._found(first, last, rows, since)

    def _found(self, first: int, last: int, rows: int, since: int) -> Joined | None:
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
