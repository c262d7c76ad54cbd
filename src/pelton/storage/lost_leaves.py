"""Reads the leaf pages of message tables whose inner pages are damaged, so that SQLite no longer finds them.

A copy of the store is changed for that: every page that belongs to no sound table, and is not free, becomes the root of
a table of its own. SQLite parses (and decrypts) it then, if it is a leaf. Rows count only if they match their checksum.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Final

import apsw

from pelton.storage.backup import copy_bytes
from pelton.storage.database import Database
from pelton.storage.keys import unlock
from pelton.storage.messages import DAMAGED_COLUMNS
from pelton.storage.rows import integer, text
from pelton.storage.schema import pragma

_FILLING: Final = 64 << 20
_TABLE: Final = "CREATE TABLE leaf_{0}(seq INTEGER PRIMARY KEY, ts, subject, hdr, data, crc)"


def rows_of_leaves(source: Database, scratch: str, key: bytes | None, damaged: Collection[str]) -> Iterator[list[Any]]:
    """Yield the rows of all leaf pages that belong to no table except the damaged ones; some rows are not messages.

    ``scratch`` is the name of a file for the copy, which is removed.
    """
    os.close(os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        copy_bytes(source, scratch, key, lambda done, total: None)
        # A copy whose free pages are unknown may hold messages that were removed.
        with suppress(apsw.Error):
            leaves = _made_tables(scratch, key, damaged)
            yield from _read(scratch, key, leaves)
    finally:
        os.unlink(scratch)


def _opened(scratch: str, key: bytes | None) -> apsw.Connection:
    connection = apsw.Connection(scratch)
    unlock(connection, key)
    for setting in ("journal_mode=OFF", "synchronous=OFF", "writable_schema=ON"):
        connection.execute(f"PRAGMA {setting}").fetchall()
    return connection


def _made_tables(scratch: str, key: bytes | None, damaged: Collection[str]) -> list[int]:
    connection = _opened(scratch, key)
    try:
        connection.execute("CREATE TABLE filling(x)")
        while free := pragma(connection, "freelist_count"):
            connection.execute("INSERT INTO filling VALUES(zeroblob(?))", (min(free * 4096, _FILLING),))
        leaves = sorted(set(range(2, pragma(connection, "page_count") + 1)) - _owned(connection, damaged))
        connection.executemany(
            "INSERT INTO sqlite_schema VALUES('table', ?1, ?1, ?2, ?3)",
            ((f"leaf_{page}", page, _TABLE.format(page)) for page in leaves),
        )
        return leaves
    finally:
        connection.close()


def _owned(connection: apsw.Connection, damaged: Collection[str]) -> set[int]:
    """Return the pages of all sound tables and indexes."""
    owned: set[int] = set()
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE rootpage > 0").fetchall():
        if text(name) not in damaged:
            sql = "SELECT pageno, pagetype FROM dbstat WHERE name=?"
            with suppress(apsw.CorruptError):
                pages = connection.execute(sql, (name,)).fetchall()
                owned.update(integer(page) for page, kind in pages if kind != "corrupted")
    return owned


def _read(scratch: str, key: bytes | None, leaves: list[int]) -> Iterator[list[Any]]:
    connection = _opened(scratch, key)
    try:
        for page in leaves:
            with suppress(apsw.Error):
                yield connection.execute(f"SELECT {DAMAGED_COLUMNS} FROM leaf_{page}").fetchall()
    finally:
        connection.close()
