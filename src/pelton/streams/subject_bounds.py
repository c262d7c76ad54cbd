"""What the rows of a stream's subjects tell about where their last messages are; see ``subject_rows.py``.

A bound may be wider than the messages, and rows do not count the newest ones. Nothing is cached here.
"""

from __future__ import annotations

from typing import Final

from pelton.storage import Condition, Database, integers

_WITHIN: Final = "SELECT 1 FROM subjects WHERE stream=? AND subject>=? AND subject<=? LIMIT 1"
_OF_ALL: Final = (
    "SELECT count(*), ifnull(max(last), 0) FROM (SELECT last FROM subjects WHERE stream=? AND msgs>0 AND {} LIMIT ?)"
)
_FROM: Final = (
    "SELECT count(*), ifnull(min(first), 0) FROM "
    "(SELECT first FROM subjects WHERE stream=? AND msgs>0 AND last>=? AND {} LIMIT ?)"
)


class SubjectBounds:
    """Bounds in the stream with row id ``stream``."""

    def __init__(self, database: Database, stream: int) -> None:
        self._db = database
        self._stream = stream

    def has_within(self, first: str, last: str) -> bool:
        """Whether a subject from ``first`` to ``last``, both included, has a row."""
        return self._db.value(_WITHIN, (self._stream, first, last)) is not None

    def of_few(self, condition: Condition, most: int) -> int | None:
        """Return the bound of the last sequence of all subjects that meet a condition, 0 if none has a row.

        None if they are ``most`` or more.
        """
        sql = _OF_ALL.format(condition.sql)
        [row] = self._db.execute(sql, (self._stream, *condition.bindings, most)).fetchall()
        number, last = integers(row)
        return last if number < most else None

    def first_from(self, seq: int, condition: Condition, most: int) -> int | None:
        """Return the bound of the first sequence of all subjects that meet a condition and may have some from ``seq``.

        0 if there is no such subject; None if they are ``most`` or more.
        """
        sql = _FROM.format(condition.sql)
        [row] = self._db.execute(sql, (self._stream, seq, *condition.bindings, most)).fetchall()
        number, first = integers(row)
        return first if number < most else None
