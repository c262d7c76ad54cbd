"""One SQLite file (or memory store) opened by one thread: pragmas, ownership, schema, fork safety.

States: open, failed (a sync failed: nothing more is promised until the store is reopened), closed. A
connection belongs to the process that opened it: after ``fork`` the child's copy refuses work and is never
closed by the child, because closing it there would release locks that the parent relies on.

The ``-wal`` file is synced by us, after the transaction and outside SQLite's write lock (``wal.py``), so
SQLite runs with ``synchronous=NORMAL``: it never syncs at commit, always before and after a checkpoint.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import apsw

from pelton.storage.faults import Fault, fault_of, translated
from pelton.storage.places import network_kind
from pelton.storage.schema import APPLICATION_ID, SCHEMA_VERSION, migrate
from pelton.subjects import matches

_PAGE_SIZE: Final = 4096
_CACHE_KIB: Final = 32 * 1024
_CHECKPOINT_PAGES: Final = 4000
_BUSY_OPENING_MS: Final = 10_000

_open: weakref.WeakSet[Database] = weakref.WeakSet()
_never_closed: list[apsw.Connection] = []


def _after_fork_in_child() -> None:
    for database in list(_open):
        _never_closed.append(database.connection)


os.register_at_fork(after_in_child=_after_fork_in_child)


def _matches(*values: object) -> bool:
    subject_filter, subject = values
    return matches(str(subject_filter), str(subject))


class Database:
    """A connection to a store, checked on opening and carried to the newest schema.

    ``path`` is a file's path or, with ``memory=True``, the name of a memory store shared by this process.
    Raises :class:`Fault` of kind ``foreign``, ``newer``, ``read_only``, ``settings``, ``busy`` or ``full``.
    """

    def __init__(self, path: str, *, memory: bool = False) -> None:
        self.path = path
        self.memory = memory
        self._pid = os.getpid()
        self._failed: str | None = None
        self._closed = False
        if not memory:
            self._refuse_bad_place()
        with translated(path):
            self.connection = self._connect()
        _open.add(self)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        self.execute = self.connection.execute
        self.executemany = self.connection.executemany

    def _refuse_bad_place(self) -> None:
        kind = network_kind(self.path)
        if kind is not None:
            detail = (
                f"the file lies on a network file system ({kind}); several hosts would corrupt it. Use a local disk"
            )
            raise Fault("settings", self.path, detail)
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise Fault("settings", self.path, f"the folder {folder} does not exist; create it first")
        if os.path.isdir(self.path):
            raise Fault("foreign", self.path, "this is a folder; name a file")

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        if self.memory:
            return apsw.Connection(f"file:/{self.path}?vfs=memdb", flags=flags | apsw.SQLITE_OPEN_URI)
        return apsw.Connection(self.path, flags=flags)

    def _prepare(self) -> None:
        run = self.connection.execute
        with translated(self.path):
            self.connection.set_busy_timeout(_BUSY_OPENING_MS)
            self._check_owner()
            if self.connection.readonly("main"):
                detail = "the file is read-only for this user; a store must be writable, also to read from it"
                raise Fault("read_only", self.path, detail)
            run(f"PRAGMA page_size={_PAGE_SIZE}")
            if not self.memory:
                run("PRAGMA journal_mode=WAL")
            run("PRAGMA synchronous=NORMAL")
            run(f"PRAGMA cache_size=-{_CACHE_KIB}")
            run(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            run("PRAGMA temp_store=MEMORY")
            self.connection.create_scalar_function("pelton_matches", _matches, 2, deterministic=True)
            self._bring_up_to_date()
            self.connection.set_busy_timeout(0)

    def _check_owner(self) -> None:
        """Refuse a file that is not ours before anything is written to it."""
        application = self._pragma("application_id")
        version = self._pragma("user_version")
        tables = self.connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
        if application != APPLICATION_ID and (tables or application or version):
            raise Fault("foreign", self.path, "this is a SQLite file of another program, not a Pelton store")
        if application == APPLICATION_ID and version > SCHEMA_VERSION:
            detail = f"the store has schema {version}, this Pelton knows up to {SCHEMA_VERSION}; upgrade Pelton"
            raise Fault("newer", self.path, detail)

    def _bring_up_to_date(self) -> None:
        if self._pragma("user_version") == SCHEMA_VERSION:
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have migrated the file while we waited for the lock.
            if (version := self._pragma("user_version")) < SCHEMA_VERSION:
                migrate(self.connection, version)
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise

    def begin_blocking(self) -> None:
        """Open a write transaction, waiting on this thread for other processes; for rare work on opening."""
        self.connection.set_busy_timeout(_BUSY_OPENING_MS)
        try:
            with translated(self.path):
                self.execute("BEGIN IMMEDIATE")
        finally:
            self.connection.set_busy_timeout(0)

    def _pragma(self, name: str) -> int:
        value = self.connection.execute(f"PRAGMA {name}").fetchall()[0][0]
        assert isinstance(value, int)
        return value

    def check(self) -> None:
        """Raise the :class:`Fault` that keeps this connection from being used, if there is one."""
        if os.getpid() != self._pid:
            raise Fault("forked", self.path, "the store was opened before a fork; open it again in the child process")
        if self._closed:
            raise Fault("closed", self.path, "the store is closed; open it again")
        if self._failed is not None:
            raise Fault("failed", self.path, self._failed)

    def fail(self, reason: str) -> None:
        """Refuse all further work: after a failed sync nobody knows what is on disk."""
        self._failed = f"{reason}; nothing more is promised until the store is closed and opened again"

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold one consistent snapshot; inside a write transaction this is that transaction."""
        self.check()
        if self.connection.in_transaction:
            yield
            return
        with translated(self.path):
            self.connection.execute("BEGIN")
        try:
            yield
        except apsw.Error as error:
            raise fault_of(error, self.path) from error
        finally:
            self.connection.execute("COMMIT")

    def seen(self) -> int:
        """Return a number that moves when another connection has changed the store (``PRAGMA data_version``)."""
        version = self.execute("PRAGMA data_version").fetchone()
        assert version is not None
        return int(version[0])

    def value(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Return the first column of the first row, or None."""
        row = self.execute(sql, bindings).fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        """Close the connection; the last one to close also folds the log into the file. Idempotent."""
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        if os.getpid() != self._pid:
            _never_closed.append(self.connection)
            return
        self.connection.close()
