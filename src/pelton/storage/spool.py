"""A file of portions that one process writes and another reads once: what waits to be loaded into a store.

It is encrypted with the store's key where that has one, so that nothing of an encrypted store lies plain beside it. A
spool need not outlive a power loss: whoever has not loaded it writes it again. So nothing is synced, and there is no
journal. But nothing wrong is loaded: each portion has a checksum over it and the one before, and the file's head
(``user_version``) says how many there are.
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
    """The spool file ``path``, made if it is ``new``; close it, or use it in a ``with``. Raises Fault."""

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
        # Nobody else has a use for it before it is closed; who looks all the same is waited for.
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
        """Note that all portions are there."""
        with translated(self._path):
            self._connection.execute(f"PRAGMA user_version={self._added}")

    def portions(self) -> Iterator[bytes]:
        """Iterate over the portions in order, one in memory at a time. Raises Fault where something is not as added."""
        before = found = 0
        try:
            with translated(self._path):
                for number, data, kept in self._connection.execute("SELECT * FROM portions ORDER BY number"):
                    found += 1
                    if not isinstance(data, bytes) or number != found or kept != crc32(data, before):
                        raise self._damaged()
                    before = kept
                    yield data
                if found != self._connection.pragma("user_version"):
                    raise self._damaged()
        except UnicodeDecodeError as error:
            # SQLite keeps a value's type beside it: a flipped bit makes a text of bytes.
            raise self._damaged() from error

    def _damaged(self) -> Fault:
        return Fault("corrupt", self._path, "the staged file is damaged; whoever staged it has to do it again")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()
