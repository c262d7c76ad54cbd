"""A file of portions that one process writes and another reads once: what waits to be loaded into a store.

It is encrypted with the store's key where that has one, so that nothing of an encrypted store lies plain beside it. A
spool need not outlive a power loss: whoever has not loaded it writes it again. So nothing is synced, and there is no
journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

import apsw

from pelton.storage.faults import translated
from pelton.storage.keys import unlock

_PAGE_SIZE: Final = 65_536
_BUSY_MS: Final = 10_000


class Spool:
    """The spool file ``path``, made if it is ``new``; close it, or use it in a ``with``. Raises Fault."""

    def __init__(self, path: str, key: bytes | None, *, new: bool = False) -> None:
        self._path = path
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
        run("CREATE TABLE portions(number INTEGER PRIMARY KEY, data BLOB) STRICT")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, portion: bytes) -> None:
        """Write the next portion."""
        with translated(self._path):
            self._connection.execute("INSERT INTO portions(data) VALUES(?)", (portion,))

    def portions(self) -> Iterator[bytes]:
        """Iterate over the portions in order, one in memory at a time."""
        with translated(self._path):
            for (data,) in self._connection.execute("SELECT data FROM portions ORDER BY number"):
                assert isinstance(data, bytes)
                yield data

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()
