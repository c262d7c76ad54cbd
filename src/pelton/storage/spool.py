"""A file of portions that one process writes and another reads once, to load them into a store.

It is encrypted with the store's key, if there is one, so that no data of an encrypted store is plain beside it. A
spool need not survive a power loss: if it was not loaded, it is written again. So nothing is synced, and there is no
journal. But damage is detected before loading: each portion has a checksum over it and the previous one, and the file's
header (``user_version``) has their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self
from zlib import crc32

import apsw

from pelton.storage.faults import Fault, translated
from pelton.storage.keys import unlock

_PAGE_SIZE: Final = 65_536
_BUSY_MS: Final = 10_000


class Spool:
    """The spool file ``path``, created if ``new``; close it, or use it in a ``with``. Raises Fault."""

    def __init__(self, path: str, key: bytes | None, *, new: bool = False) -> None:
        self._path = path
        self._added = 0
        self._sum = 0
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE if new else apsw.SQLITE_OPEN_READONLY
        with translated(path):
            self._connection = apsw.Connection(path, flags=flags)
            unlock(self._connection, key)
            if new:
                self._prepare()

    def _prepare(self) -> None:
        run = self._connection.execute
        run(f"PRAGMA page_size={_PAGE_SIZE}")
        run("PRAGMA journal_mode=OFF")
        run("PRAGMA synchronous=OFF")
        # No other process needs it before it is closed; if one opens it all the same, wait for it.
        run("PRAGMA locking_mode=EXCLUSIVE")
        self._connection.set_busy_timeout(_BUSY_MS)
        run("CREATE TABLE portions(number INTEGER PRIMARY KEY, data BLOB, sum INTEGER) STRICT")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, portion: bytes) -> None:
        """Write the next portion."""
        self._added += 1
        self._sum = crc32(portion, self._sum)
        with translated(self._path):
            row = (self._added, portion, self._sum)
            self._connection.execute("INSERT INTO portions VALUES(?, ?, ?)", row)

    def finish(self) -> None:
        """Record that all portions are written."""
        with translated(self._path):
            self._connection.execute(f"PRAGMA user_version={self._added}")

    def portions(self) -> Iterator[bytes]:
        """Iterate over the portions in order, with one in memory at a time. Raises Fault if the file is damaged."""
        before = found = 0
        try:
            with translated(self._path):
                for number, data, kept in self._connection.execute("SELECT * FROM portions ORDER BY number"):
                    found += 1
                    if not isinstance(data, bytes) or number != found or kept != crc32(data, before):
                        raise self._damage_fault()
                    before = kept
                    yield data
                if found != self._connection.pragma("user_version"):
                    raise self._damage_fault()
        except UnicodeDecodeError as error:
            # SQLite stores a type with each value: a flipped bit can turn bytes into text.
            raise self._damage_fault() from error

    def _damage_fault(self) -> Fault:
        return Fault("io", self._path, "the staged file is damaged; stage its messages again")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()
