"""Converts what SQLite returns to the types that the schema declares.

SQLite stores a type with each value and not with the column, so its rows have no static types, and a damaged file may
contain anything. Every reader uses these functions, so this is the only place where rows get their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

R = TypeVar("R")


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
