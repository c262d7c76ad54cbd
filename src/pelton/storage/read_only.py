"""A connection that only reads: it takes no lock that a writer waits for, and writes nothing, not even a file beside
the store.

Two routes lead to the same snapshots:

- *At rest*: no process has the store open, so SQLite's index of the log (``-shm``) does not exist. The file is read as
it is, without locks (``immutable``), together with a log that a copy or a killed machine has left, whose index is
kept in memory. Nothing is created, so this works on a read-only file system. What was read counts only if the file and
its log are the same afterwards (:attr:`ReadOnlyDatabase.is_current`): a process may open the store in between, and fold
its log into the file. Opening, writing, syncing and folding take longer than a tick of the file's time stamp.
- *In use*: other processes have it open, so log and index exist. It is read like any WAL database: a reader marks its
snapshot in the index, and writers go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw
import msgspec

from pelton.storage.database import Database
from pelton.storage.faults import FAILURES, Fault, fault_of
from pelton.storage.keys import unlock, why_locked
from pelton.storage.network_file_systems import check_mount
from pelton.storage.older_schemas import show_as_present
from pelton.storage.schema import NO_STORE, SCHEMA_VERSION, add_functions, check_owner, newer
from pelton.storage.store_file import NOTE, StoreFile, note_of
from pelton.storage.user_sql import UserSql

_CACHE_KIB: Final = 32 * 1024
_BUSY_OPENING_MS: Final = 10_000
_OPEN_TRIES: Final = 5
# SQLite locks nothing through it, and keeps the index of a log in memory.
_LOCKLESS: Final = "multipleciphers-unix-none"


class FileStamp(msgspec.Struct, frozen=True):
    """What changes when a file is written or replaced."""

    device: int
    inode: int
    size: int
    written_ns: int


class StoreAtRest(msgspec.Struct, frozen=True):
    """The file and the log, if it is not empty, of a store that no process has open."""

    file: FileStamp
    log: FileStamp | None


def store_at_rest(path: str) -> StoreAtRest | None:
    """Return the stamps of a store that no process has open; None if one has. Raises Fault if there is no file.

    A standby is always one, as whoever follows a store opens nothing.
    """
    if os.path.lexists(path + "-shm") and not _is_standby(path):
        return None
    file = _stamp(path)
    if file is None:
        raise Fault("settings", path, "there is no such file, and opening it for reading creates none")
    log = _stamp(path + "-wal")
    return StoreAtRest(file, log if log is not None and log.size else None)


def _is_standby(path: str) -> bool:
    return os.path.lexists(path + NOTE) and (note := note_of(path)) is not None and note.state == "standby"


def _stamp(path: str) -> FileStamp | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class ReadOnlyDatabase(Database):
    """A connection that only reads the store at ``path``, of whatever schema, as one of the present. Raises Fault."""

    is_read_only = True
    _seen_schema = SCHEMA_VERSION
    _is_outdated = False

    def __init__(self, path: str, *, key: bytes | None = None, vfs: str | None = None, torn: bool = False) -> None:
        self._rest: StoreAtRest | None = None
        for attempts_left in reversed(range(_OPEN_TRIES)):
            try:
                super().__init__(path, key=key, vfs=vfs, torn=torn)
                return
            except Fault:
                # A process that opens the store just now may fold its log into the file while it is read.
                if not attempts_left or self._rest is None or self.is_current:
                    raise

    def check_schema(self) -> None:
        """Raise a Fault of kind ``newer`` if another process has migrated the store: it is to be opened again."""
        if (version := self.schema) != self._seen_schema:
            self._is_outdated = True
            raise newer(self.path, version)

    @property
    def is_current(self) -> bool:
        """Whether what was read through this connection since it was opened is what the store held."""
        if self._rest is None:
            return self._file is not None and self._file.loss() is None and not self._is_outdated
        try:
            return store_at_rest(self.path) == self._rest
        except (Fault, OSError):
            return False

    def _check_place(self) -> None:
        check_mount(self.path)
        with self._opening():
            self._rest = store_at_rest(self.path)

    def _store_file(self) -> StoreFile:
        return StoreFile(self.path, self._mode, read_only=True)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except apsw.NotADBError as error:
            raise why_locked(self.path, self._key) from error
        except FAILURES as error:
            raise fault_of(error, self.path) from error

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY
        if self._rest is None:
            return apsw.Connection(self.path, flags=flags, vfs=self._vfs)
        from urllib.parse import quote

        uri, flags = "file:" + quote(os.fsencode(self.path)), flags | apsw.SQLITE_OPEN_URI
        if self._rest.log is not None:
            return apsw.Connection(uri, flags=flags, vfs=_LOCKLESS)
        return apsw.Connection(uri + "?immutable=1", flags=flags, vfs=self._vfs)

    def _prepare(self) -> None:
        run = self.connection.execute
        with self._opening():
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.set_busy_timeout(_BUSY_OPENING_MS)
            unlock(self.connection, self._key)
            run("PRAGMA temp_store=MEMORY")
            if self._torn:
                self._admit_torn()
            if self._rest is not None and self._rest.log is not None:
                # Without shared memory: nobody else reads or writes this log, and is_current notices it if so.
                run("PRAGMA locking_mode=EXCLUSIVE").fetchall()
            check_owner(self.connection, self.path)
            run(f"PRAGMA cache_size=-{_CACHE_KIB}")
            if self._rest is None and self._file is not None:
                self._file.claim_log()
            add_functions(self.connection)
            if not (version := self.schema):
                raise Fault("foreign", self.path, NO_STORE)
            show_as_present(self.connection, version)
            self._seen_schema = version
            run("PRAGMA query_only=1")
            self.connection.set_busy_timeout(0)


class CopiedDatabase(ReadOnlyDatabase):
    """A copy of what the store in memory named ``path`` holds now, in memory too: beside a writer nobody can read it.

    Raises :class:`Fault` of kind ``busy`` at once while somebody writes.
    """

    def __init__(self, path: str) -> None:
        self._rest = None
        Database.__init__(self, path, memory=True)

    @property
    def is_current(self) -> bool:
        """True: a copy stays as it is."""
        return True

    def _connect(self) -> apsw.Connection:
        copy, store = apsw.Connection(":memory:"), Database._connect(self)
        try:
            with copy.backup("main", store, "main") as backup:
                backup.step(-1)
        finally:
            store.close()
        return copy


class ReadSql(UserSql):
    """A user's statements on a connection that only reads."""

    def _objection(self, action: int, first: str | None, second: str | None) -> str:
        if action == apsw.SQLITE_PRAGMA:
            return super()._objection(action, first, second)
        return "only reading is possible here; to write, use jet.transaction()"
