"""Rows of one stream joined by SQLite itself, column by column: no row is ever an object of Python's.

For rows without headers, which most are: whoever reads meets a few texts for thousands of rows: numbers with a space
between, or all of one length, and subjects, which hold no space. Nothing is checked here: whoever splits the columns
(``SplitColumns``) compares them with the checksums, and refuses what does not meet them or is not plain.

A stream without gaps is read by ranges of sequences, and its sequences are not even asked for: there are as many rows
as the range is long. Where rows are missing, or a condition leaves some out, sequences are a column more.

Memory: SQLite refuses to join more than 8 MiB of a column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import apsw

from pelton.storage.database import Database
from pelton.storage.messages import Condition

_LONGEST: Final = 8 << 20
# A flipped bit makes a text of a blob and keeps its bytes; a text is less than any blob, which costs less to ask than
# its type.
_LENGTH: Final = "iif(subject < x'' AND data >= x'', length(data), -1)"


# Digits of a checksum, each after a 1 so that all have as many.
SUM_DIGITS: Final = 11
_SUM: Final = f"crc+{10 ** (SUM_DIGITS - 1)}"


def _joined(column: str, between: str = " ") -> str:
    return f"CAST(group_concat({column}, '{between}') AS BLOB)"


_APART: Final = ("ts-?3", "subject", _LENGTH)
_COLUMNS: Final = ", ".join(["count(hdr)", _joined("data", ""), *map(_joined, _APART), _joined(_SUM, "")])


class Joined(NamedTuple):
    """Rows as SQLite joins them, none of which has headers."""

    rows: int
    first: int
    """What ``seqs`` are told from, as ``times`` are from ``since``."""
    seqs: bytes | None
    """None: one after another from ``first`` on."""
    since: int
    payloads: bytes
    times: bytes
    subjects: bytes
    payload_lengths: bytes
    """-1 where a column is not of its type."""
    sums: bytes
    """A 1 and ten digits each, end to end."""


class Split(NamedTuple):
    """Rows in columns as the machine has them: int64 numbers, int32 lengths, texts end to end."""

    seqs: bytes
    times: bytes
    subjects: bytes
    subject_lengths: bytes
    payload_lengths: bytes


SplitColumns = Callable[[Joined], Split | None]
"""Splits what was joined and compares each row with its checksum; None where one is not plain or not intact."""


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
        """Return at most ``rows`` of a range; None where one has headers, or they are too much to be joined."""
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
            # As many sequences as rows: the gaps are passed.
            self._is_dense = found[-1].endswith(b" %d" % (rows - 1))
        return joined


def _whole(first: int, seqs: bytes | None, since: int, columns: tuple[bytes | None, ...]) -> Joined:
    payloads, times, subjects, lengths, sums = (column or b"" for column in columns)
    return Joined(len(sums) // SUM_DIGITS, first, seqs, since, payloads, times, subjects, lengths, sums)
