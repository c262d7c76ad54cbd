"""Rows: the types of what SQLite returns, and the conditions on subjects.

SQLite stores a type with each value and not with the column, so its rows have no static types, and a damaged file may
contain anything. Every reader uses these functions, so this is the only place where rows get their types.

The conditions on subjects, by which rows are chosen, are SQL made of filters. Rows that are stored in bulk come as
columns.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import apsw
import msgspec

from pelton.subjects import first_match, has_wildcard

R = TypeVar("R")
# More filters than these are no alternatives in SQL, and fewer if each calls a function.
_MOST_ALTERNATIVES: Final = 64
_MOST_CALLS: Final = 4
_MATCHES: Final = "pelton_matches(?, CAST(subject AS BLOB))"
# It ends with these bytes, and is one token between its first and these. In bytes, as a subject may have a NUL.
_ENDS: Final = "octet_length(subject)>? AND substr(CAST(subject AS BLOB), -?)=? AND "
_SINGLE: Final = "NOT instr(substr(CAST(subject AS BLOB), ?, octet_length(subject)-?), x'2e')"


class DamagedRowError(ValueError):
    """A row holds what nothing has written there: the file is damaged."""


def integer(value: object) -> int:
    """Return the value of an integer column. Raises DamagedRowError for anything else."""
    if isinstance(value, int):
        return value
    raise DamagedRowError(f"a row has {value!r} instead of an integer")


def integers(row: Iterable[object]) -> list[int]:
    """Return a row of integer columns. Raises DamagedRowError."""
    return [integer(value) for value in row]


def column(rows: Iterable[tuple[object, ...]]) -> list[int]:
    """Return the integers of rows with one column. Raises DamagedRowError."""
    return [integer(value) for (value,) in rows]


def runs(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending sequences as runs of consecutive ones, ``(first, last)`` each."""
    ordered = sorted(sequences)
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1 == len(set(ordered)) - 1:
        return [(ordered[0], ordered[-1])]
    found: list[tuple[int, int]] = []
    first = last = -1
    for seq in ordered:
        if seq == last + 1 and first >= 0:
            last = seq
            continue
        if first >= 0:
            found.append((first, last))
        first = last = seq
    if first >= 0:
        found.append((first, last))
    return found


def text(value: object) -> str:
    """Return the value of a text column, even if it was read as a blob because it may be damaged."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def blob(value: object) -> bytes:
    """Return the value of a blob column. Raises DamagedRowError for anything else."""
    if isinstance(value, bytes):
        return value
    raise DamagedRowError(f"a row has {value!r} instead of a blob")


def decoded(kind: Callable[..., R], rows: Iterable[tuple[object, ...]]) -> list[R]:
    """Return rows as objects of a class whose fields are their columns, in this order.

    The values are not checked: this is for tables that only the engine writes, and where the time per row matters.
    """
    return [kind(*row) for row in rows]


class Condition:
    """An SQL condition on ``subject`` with its bindings."""

    __slots__ = ("bindings", "sql")

    def __init__(self, sql: str, bindings: tuple[Any, ...]) -> None:
        self.sql: str = sql
        self.bindings: tuple[Any, ...] = bindings


def subject_condition(filters: Sequence[str]) -> Condition | None:
    """Return the SQL for "the subject matches one of these filters"; None if every subject does."""
    if not filters or ">" in filters:
        return None
    if len(filters) > _MOST_ALTERNATIVES:
        return _one_of_many(filters)
    parts = [_one_filter(text) for text in filters]
    if sum(_MATCHES in part.sql for part in parts) > _MOST_CALLS:
        return _one_of_many(filters)
    sql = _either([part.sql for part in parts])
    return Condition(f"({sql})", tuple(value for part in parts for value in part.bindings))


def _one_of_many(filters: Sequence[str]) -> Condition:
    """SQLite takes 0.1 ms or more to plan each alternative, and compares each row with each: Python looks one up."""
    if not any(map(has_wildcard, filters)):
        listed = msgspec.json.encode(filters).decode()
        return Condition("subject IN (SELECT value FROM json_each(?))", (listed,))
    return Condition("pelton_finds(?, CAST(subject AS BLOB))", (apsw.pyobject(first_match(filters)),))


def text_condition(texts: Sequence[str], subjects: Condition | None) -> Condition | None:
    """Return the SQL for "meets a condition, and contains one of these texts": a compressed payload may."""
    if not texts:
        return subjects
    where, found = subjects or Condition("1", ()), _either(["instr(data, CAST(? AS BLOB))"] * len(texts))
    return Condition(f"{where.sql} AND (crc > 4294967295 OR {found})", (*where.bindings, *texts))


def _either(parts: list[str]) -> str:
    """Join alternatives as a balanced tree: SQLite limits the depth of an expression, and a long chain is too deep."""
    if len(parts) <= 2:
        return " OR ".join(parts)
    middle = len(parts) // 2
    return f"({_either(parts[:middle])}) OR ({_either(parts[middle:])})"


def of_subject(subject: str) -> Condition:
    """Return the SQL for messages of one subject. Without ``COLLATE`` it would be planned anew for each subject."""
    return Condition("subject=? COLLATE BINARY", (subject,))


def _one_filter(text: str) -> Condition:
    tokens = text.split(".")
    if not {"*", ">"} & set(tokens):
        return of_subject(text)
    literal = min(tokens.index(token) for token in "*>" if token in tokens)
    # Every subject below the prefix: "." + 1 is "/", and a subject has at least one more character.
    prefix = ".".join(tokens[:literal])
    below = Condition("subject>? AND subject<?", (f"{prefix}.", f"{prefix}/")) if literal else Condition("1", ())
    if tokens[literal:] == [">"]:
        return Condition(f"({below.sql})", below.bindings)
    rest = tokens[literal + 1 :]
    if tokens[literal] == "*" and not {"*", ">"} & set(rest):
        # The most frequent of the others: no function is called for each subject.
        begin, suffix = len(prefix.encode()) + 1 if literal else 0, "".join(f".{token}" for token in rest).encode()
        around = begin + len(suffix)
        ends = Condition(_ENDS, (around, len(suffix), suffix)) if suffix else Condition("", ())
        sql = f"({below.sql} AND {ends.sql}{_SINGLE})"
        return Condition(sql, (*below.bindings, *ends.bindings, begin + 1, around))
    # As a blob, because invalid text would not reach the function.
    return Condition(f"({below.sql} AND {_MATCHES})", (*below.bindings, text))


# --- rows in bulk

FIELD: Final = 8
"""The digits of a number in ``pieces``; each row has two numbers, after one digit without meaning."""

_LENGTH: Final = 0xFF
_SHIFT: Final = 8
_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)


class Columns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Rows that have no sequence yet, in order; numbers in native byte order.

    ``subjects`` has each subject once, concatenated; ``spots`` has the position of each row's subject (uint32: begin <<
    8 | length). ``payloads`` are concatenated, each ``length`` long; if that is -1, ``pieces`` has the start (from 1)
    and the length of each row's payload, in decimal digits. ``contents`` are the rows' checksums (uint32) over subject
    and payload, without sequence and time.
    """

    count: int
    subjects: memoryview
    spots: memoryview
    payloads: memoryview
    length: int
    pieces: memoryview
    contents: memoryview

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over subjects and payloads."""
        subjects, payloads = bytes(self.subjects), bytes(self.payloads)
        spots, begin = self.spots.cast("I"), 0
        for row, spot in enumerate(spots):
            length = self.length if self.length >= 0 else self._length_of(row)
            first = spot >> _SHIFT
            yield subjects[first : first + (spot & _LENGTH)].decode(), payloads[begin : begin + length]
            begin += length

    def _length_of(self, row: int) -> int:
        end = (row + 1) * (2 * FIELD + 1)
        return int(bytes(self.pieces[end - FIELD : end]))


def pairs(spots: memoryview, sums: bytes) -> memoryview:
    """Return ``sum << 32 | spot`` for each row (int64): the two numbers per row that SQLite needs."""
    low, high = array("I"), array("I")
    low.frombytes(spots)
    high.frombytes(sums)
    both = array("I", bytes(8 * len(low)))
    both[_LOW::2], both[_HIGH::2] = low, high
    return memoryview(both).cast("B").cast("q")
