"""One SQLite file (or memory store) opened by one thread: pragmas, ownership, schema, fork safety.

States: open, failed (a sync failed: nothing more is acknowledged until the store is reopened), closed. A connection
belongs to the process that opened it: after ``fork`` the child's copy refuses work, and is released only when the
child opens the same store.

Pelton syncs the ``-wal`` file itself, after the transaction and outside SQLite's write lock (``wal.py``), so SQLite
runs with ``synchronous=NORMAL``: it never syncs at commit, always before and after a checkpoint.

A connection with a ``medium`` acknowledges its commits. It opens only if the next sync puts everything on disk that
SQLite counts on in the log; if an earlier sync has failed, the log is rewritten first (``wal.py``). Other
connections only read, or write what such a connection syncs.

**Limits are written ``LIMIT ?+0``, and subjects that no index finds ``subject=? COLLATE BINARY``**: SQLite plans a
statement with ``ORDER BY`` for the numbers that are bound to ``LIMIT ?`` and ``column=?``, and so prepares it anew at
each use (5 to 15 us).

**Connections that a forked child has inherited: it must not use them, and closes them before it opens the store.** It
must do so: SQLite keeps one table of the locks that a process holds, and a child that inherits the table would rely on
locks that the kernel gave only to its parent. A connection that another thread was using when the process forked cannot
be closed in the child. So a fork waits until all threads that have event loops of their own stand still between two
operations; the thread that forks is not in the middle of one.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import apsw

from pelton.runtime import Standstill
from pelton.storage.faults import FAILURES, ConnectionEnd, Fault, fault_of, translated
from pelton.storage.keys import change_key, unlock, why_locked
from pelton.storage.network_file_systems import check_place, read_only
from pelton.storage.rows import integer
from pelton.storage.schema import (
    NO_STORE,
    SCHEMA_VERSION,
    TOKEN_EPOCH,
    add_functions,
    check_not_replaced,
    check_owner,
    migrate,
    newer,
    pragma,
)
from pelton.storage.store_file import OWNER_ONLY, StoreFile, check_no_standby, close_collected, is_admitted
from pelton.storage.troubles import Troubles
from pelton.storage.wal import PAGE_SIZE, Checkpointer, Medium, SyncRecord, WalSync, has_bytes, has_failed, use_log
from pelton.storage.wal_repair import broken, is_whole


class Inheritable(Protocol):
    """A connection to a store."""

    path: str

    @property
    def in_transaction(self) -> bool: ...

    def let_go(self) -> None:
        """Close the child's copy without affecting the parent."""


opened: weakref.WeakSet[Inheritable] = weakref.WeakSet()
# One for each process; to compare it costs no system call, as to ask for the process id does.
_process: object = object()
_inherited: list[Inheritable] = []
_standstill = Standstill()


def _are_idle() -> bool:
    try:
        return not any(connection.in_transaction for connection in list(opened))
    except (apsw.ThreadingViolationError, RuntimeError):
        # One is in use, or another thread opens one.
        return False
    except apsw.ConnectionClosedError:
        # One that another thread has closed just now.
        return True


def _before_fork() -> None:
    if opened:
        _standstill.begin(_are_idle)


def _after_fork_in_parent() -> None:
    _standstill.end()


def _after_fork_in_child() -> None:
    global _process, _standstill
    _process = object()
    _standstill = Standstill()
    _inherited.extend(opened)
    opened.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def let_go_of_inherited(path: str) -> None:
    """Close inherited connections to a store that this process is about to open itself."""
    for connection in [candidate for candidate in _inherited if candidate.path == path]:
        if connection.in_transaction:
            detail = "this process was forked in the middle of a transaction; start it with spawn or forkserver instead"
            raise Fault("forked", path, detail)
        connection.let_go()
        _inherited.remove(connection)


_CACHE_KIB: Final = 32 * 1024
# APSW forgets a statement that was not among the last so many that ran. With its 100, publishing to 60 streams in turns
# or ten exclusive jobs prepare statements anew each time (5 to 8 % of their CPU).
_STATEMENTS: Final = 384
_BUSY_OPENING_MS: Final = 10_000
_BUSY_READING_MS: Final = 10_000
_OPEN_TRIES: Final = 3
# Reading a log that the kernel has partly dropped may fail in any of these ways.
_UNREADABLE: Final = ("foreign", "key", "corrupt", "newer", "io")


class SnapshotOnlyError(Exception):
    """Something has to be changed first, in a transaction that writes; what was asked in a snapshot changed nothing."""


_CUT_OFF: Final = "its first pages are damaged, or it was cut off: salvage what is left, or restore a backup"
_NO_FIRST_PAGES: Final = (
    "the pages that list its tables are damaged or missing, and without them no row is found, on whole pages neither: "
    "restore a backup, or promote a standby"
)


class Database:
    """A connection to a store, which is checked on opening and migrated to the newest schema, or to ``goal`` (0: none).

    ``path`` is a file's path or, with ``memory=True``, the name of a memory store shared by this process. ``key``
    decrypts the file, or encrypts a new one; ``vfs`` names the SQLite VFS. ``unlocked``: no two threads ever use the
    connection, so that SQLite need not lock it, which is a fifth of the time to fetch a row. ``mode``: the permissions
    of a new file, its log and its index. ``medium`` puts the log on disk, through :attr:`log`, before an
    acknowledgement. ``torn``: what is left of a file that was cut off can be read.

    Raises :class:`Fault` of kind ``foreign``, ``key``, ``newer``, ``read_only``, ``settings``, ``busy``, ``full``,
    ``descriptors``, ``corrupt`` or ``failed``.
    """

    connection: apsw.Connection

    is_read_only = False
    _closed = True

    def __init__(
        self,
        path: str,
        *,
        memory: bool = False,
        key: bytes | None = None,
        vfs: str | None = None,
        unlocked: bool = False,
        mode: int = OWNER_ONLY,
        medium: Medium | None = None,
        goal: int | None = None,
        torn: bool = False,
    ) -> None:
        self.path = path
        self.memory = memory
        self._torn = torn
        self._goal = SCHEMA_VERSION if goal is None else goal
        self._key = key
        self._vfs = vfs
        self._unlocked = unlocked
        self._mode = mode
        self._medium = medium
        self._file: StoreFile | None = None
        self._is_connected = False
        self.log: WalSync | None = None
        self._record: SyncRecord | None = None
        self._checkpointer: Checkpointer | None = None
        self._process = _process
        self.ending: ConnectionEnd = ConnectionEnd(path)
        self.troubles: Troubles = Troubles(path)
        self._closed = False
        self._is_snapshot = False
        if not memory:
            self._check_place()
            let_go_of_inherited(path)
        self._open_sound()
        self.execute: Callable[..., apsw.Cursor] = self.connection.execute
        self.executemany: Callable[..., apsw.Cursor] = self.connection.executemany
        # These run a statement to its end on one cursor, and all rows are read at once: creating a cursor is a third of
        # the work of a small statement. APSW never frees a cursor that outlives others, nor then its connection: so
        # streams do not have one each, and nothing that the connection calls may hold this database.
        shared = self.connection.cursor()
        self.run: Callable[..., apsw.Cursor] = shared.execute
        self.run_many: Callable[..., apsw.Cursor] = shared.executemany

    def _check_place(self) -> None:
        check_place(self.path)
        check_no_standby(self.path)

    def _store_file(self) -> StoreFile:
        return StoreFile(self.path, self._mode)

    def _open_sound(self) -> None:
        for _ in range(_OPEN_TRIES):
            previous = self._record
            try:
                self._open()
                if self._is_sound():
                    return
                self._shut()
            except BaseException as error:
                if self._is_connected and not has_bytes(f"{self.path}-wal"):
                    # SQLite removes an empty log, if nobody else has it open.
                    self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
                self.close()
                if isinstance(error, Fault) and error.kind in _UNREADABLE and has_failed(self.path):
                    raise broken(self.path) from error
                if isinstance(error, Fault) and error.kind == "corrupt":
                    raise Fault("corrupt", self.path, _NO_FIRST_PAGES if self._torn else _CUT_OFF) from error
                raise
            finally:
                # Hold the old record until there is a new one, so that this opener does not seem the last to close.
                if previous is not None:
                    previous.close()
        self.close()
        raise broken(self.path)

    def _open(self) -> None:
        with self._opening():
            self._file = None if self.memory else self._store_file()
            self.connection = self._connect()
            self._is_connected = True
        opened.add(self)
        self._prepare()
        if self._file is not None and not self._file.is_at_path:
            raise Fault("busy", self.path, "it was replaced while it was being opened; open it again")

    def _is_sound(self) -> bool:
        """Whether the next sync covers the whole log; if not, the store must be opened again."""
        record, medium = self._record, self._medium
        if record is None or medium is None:
            return True
        with self._opening():
            # Open the descriptor before the check: a sync that fails later is reported to it.
            self.log = WalSync(self.path, record, medium.sync)
        return is_whole(self.path, record, medium, self.writing, self.another_connection)

    def another_connection(self) -> apsw.Connection:
        """Return another connection, which changes nothing."""
        other = self._connect()
        unlock(other, self._key)
        other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return other

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Turn SQLite's exceptions into faults; "unable to open" often means that something is not writable."""
        try:
            yield
        except (apsw.CantOpenError, apsw.ReadOnlyError, PermissionError) as error:
            folder = os.path.dirname(os.path.abspath(self.path))
            for kind, place in (("file", self.path), ("folder", folder)):
                if os.path.exists(place) and not os.access(place, os.W_OK):
                    raise read_only(self.path, kind, place) from error
            raise fault_of(error, self.path) from error
        except apsw.NotADBError as error:
            raise why_locked(self.path, self._key) from error
        except (apsw.Error, OSError) as error:
            raise fault_of(error, self.path) from error

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        if self._unlocked:
            flags |= apsw.SQLITE_OPEN_NOMUTEX
        path, vfs = self.path, self._vfs
        if self.memory:
            path, flags, vfs = f"file:/{self.path}?vfs=memdb", flags | apsw.SQLITE_OPEN_URI, None
        return apsw.Connection(path, flags=flags, vfs=vfs, statementcachesize=_STATEMENTS)

    def _prepare(self) -> None:
        run = self.connection.execute
        with self._opening():
            # Until the file is known to be ours, even closing must not change it or its log.
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.set_busy_timeout(_BUSY_OPENING_MS)
            unlock(self.connection, self._key)
            run("PRAGMA temp_store=MEMORY")
            if self._torn:
                self._admit_torn()
            check_owner(self.connection, self.path)
            if not self._goal and not self.schema:
                raise Fault("foreign", self.path, NO_STORE)
            self._check_not_replaced()
            if self.connection.readonly("main"):
                raise read_only(self.path, "file", self.path)
            run(f"PRAGMA page_size={PAGE_SIZE}")
            if self._file is not None:
                use_log(self.connection, self.path, _BUSY_OPENING_MS / 1000)
                # The first read creates the log.
                pragma(self.connection, "user_version")
                self._file.claim_log()
            run("PRAGMA synchronous=NORMAL")
            run(f"PRAGMA cache_size=-{_CACHE_KIB}")
            # The library's default overwrites every freed page with zeros, through the log, which would make deleting a
            # large message 13 times as expensive. This wipes only pages that are written anyway.
            run("PRAGMA secure_delete=FAST")
            if not self.memory:
                self._record = SyncRecord(self.path)
                self._checkpointer = Checkpointer(
                    self.path, self.connection, self._record, self.troubles, self.ending.end
                )
            add_functions(self.connection)
            self._bring_up_to_date()
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self.connection.set_busy_timeout(0)

    def _admit_torn(self) -> None:
        # Otherwise SQLite refuses every page of a file that is shorter than its header says.
        self.connection.execute("PRAGMA writable_schema=ON").fetchall()

    def _bring_up_to_date(self) -> None:
        if self.schema >= self._goal:
            return
        with self._transaction():
            # Another process may have migrated the file while we waited for the lock.
            if (version := self.schema) < self._goal:
                migrate(self.connection, version, self._goal)

    @property
    def schema(self) -> int:
        """The version of the schema that the file has now; 0 for an empty file."""
        return pragma(self.connection, "user_version")

    def check_schema(self) -> None:
        """Raise a Fault of kind ``newer`` if another process has migrated the store to a newer schema.

        Raise one of kind ``standby`` if another store has taken its place.
        """
        if (version := self.schema) != SCHEMA_VERSION:
            raise newer(self.path, version)
        self._check_not_replaced()

    def _check_not_replaced(self) -> None:
        if not self.memory and self.schema and not is_admitted(os.path.realpath(self.path)):
            check_not_replaced(self.connection, self.path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold a write transaction, blocking this thread while other processes write; for rare work on opening."""
        self.connection.set_busy_timeout(_BUSY_OPENING_MS)
        try:
            with translated(self.path), self._transaction():
                yield
        finally:
            self.connection.set_busy_timeout(0)

    @contextmanager
    def keeping_writers_out(self) -> Iterator[None]:
        """Hold the writer, blocking this thread until others let it go, and write nothing."""
        self.connection.set_busy_timeout(_BUSY_OPENING_MS)
        with translated(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                # A commit would mend the header of a file that was cut off.
                self.connection.execute("ROLLBACK")
                self.connection.set_busy_timeout(0)

    def rekey(self, key: bytes) -> None:
        """Replace the key; every other opener has to open the store again. The file has it once the log is folded.

        Raises :class:`Fault` of kind ``settings`` for a plain store: encrypt it while no process has it open.
        """
        if self._key is None:
            raise Fault("settings", self.path, "it is not encrypted; to encrypt it, close it and use pelton.rekey")
        self.connection.set_busy_timeout(_BUSY_OPENING_MS)
        try:
            with translated(self.path):
                with self._noting():
                    change_key(self.connection, key)
                self._key = key
        finally:
            self.connection.set_busy_timeout(0)

    def fold_all(self) -> bool:
        """Fold the log into the file, without waiting for its readers; return whether all of it is folded."""
        return self._checkpointer is None or self._checkpointer.fold("FULL") == 0

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        try:
            yield
            with self._noting():
                run("COMMIT")
        except BaseException:
            # After some failures, such as a full disk, it is rolled back already.
            if self.connection.in_transaction:
                run("ROLLBACK")
            raise

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            self.note(error)
            raise

    def note(self, error: Exception) -> None:
        """If a sync by SQLite has failed, stop all acknowledgements."""
        if self._checkpointer is not None:
            self._checkpointer.note(error)

    @property
    def log_bytes(self) -> int:
        """The length of the log at the last commit of this connection."""
        return 0 if self._checkpointer is None else self._checkpointer.log_bytes

    @property
    def claims(self) -> tuple[mmap.mmap, int] | None:
        """Where all openers of the store see who is to write next; None for a memory store."""
        return None if self._record is None else self._record.claims

    def fold_on_commit(self, folds: bool) -> None:
        """Set whether a commit that makes the log long folds it into the file; if not, closing does."""
        if self._checkpointer is not None:
            self._checkpointer.folds = folds

    def check(self) -> None:
        """Raise a :class:`Fault` if this connection cannot be used."""
        if _process is not self._process:
            raise Fault("forked", self.path, "the store was opened before a fork; open it again in the child process")
        if self._closed:
            raise Fault("closed", self.path, "the store is closed; open it again")
        if self.ending.fault is not None:
            raise self.ending.fault

    def check_place(self) -> None:
        """Raise Fault of kind ``gone``, now and from now on, if the path no longer leads to this file or its log."""
        if self._file is not None and (loss := self._file.loss()) is not None:
            raise self.ending.met(Fault("gone", self.path, loss))

    def check_sound(self) -> None:
        """Raise the faults that an idle opener would not notice; for periodic checks."""
        self.check()
        self.check_place()
        if self.log is not None and (doubt := self.log.doubt()) is not None:
            raise self.ending.met(doubt)

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's connection."""
        return _process is not self._process

    @property
    def is_closed(self) -> bool:
        return self._closed

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold one consistent snapshot; inside a write transaction, use that transaction."""
        self.check()
        if self.connection.in_transaction:
            yield
            return
        # A reader waits only for a memory store's writer in another thread, or for the recovery of a crashed one.
        self.connection.set_busy_timeout(_BUSY_READING_MS)
        self._is_snapshot = True
        try:
            self.run("BEGIN")
            yield
        except Fault as fault:
            self.ending.met(fault)
            raise
        except FAILURES as error:
            raise self.ending.met(error) from error
        finally:
            self._is_snapshot = False
            self.connection.set_busy_timeout(0)
            if self.connection.in_transaction:
                # Nothing was changed, and a damaged store may refuse a commit.
                self.run("ROLLBACK")

    def check_changing(self) -> None:
        """Raise SnapshotOnlyError in a snapshot: what is changed there would be undone, and stay in memory."""
        if self._is_snapshot:
            raise SnapshotOnlyError

    def seen(self) -> int:
        """Return a number that changes when another connection has changed the store (``PRAGMA data_version``)."""
        [(version,)] = self.run("PRAGMA data_version").fetchall()
        assert isinstance(version, int)
        return version

    def value(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Return the first column of the first row, or None."""
        rows = self.run(sql, bindings).fetchall()
        return rows[0][0] if rows else None

    def close(self) -> None:
        """Close the connection; the last to close also folds the log into the file. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._shut()
        if self._record is not None and not self.is_inherited:
            self._record.close()

    def __del__(self) -> None:
        if not self._closed and not sys.is_finalizing():
            close_collected(self.close)

    def _shut(self) -> None:
        opened.discard(self)
        if self.is_inherited:
            return
        if self.log is not None:
            self.log.close()
        is_gone = self._file is not None and self._file.loss() is not None
        if self._file is not None:
            self._file.leaving()
        if self._checkpointer is not None:
            self._checkpointer.close(is_gone=is_gone)
            self._checkpointer = None
        elif self._is_connected:
            self.connection.close()
        if self._file is not None:
            self._file.close()

    def let_go(self) -> None:
        """Close a forked child's copy without locks or writes, so that the parent is not affected."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.connection.close()
        if self.log is not None:
            self.log.close()
        if self._record is not None:
            self._record.release()


OF_EPOCHS: Final = 1
"""The schema that counted token floors in epochs."""
_IS_FLOOR: Final = "key IN ('token_floor', 'epoch')"


def token_floor(database: Database) -> int:
    """Return the floor from which fencing tokens of deliveries are counted."""
    return integer(database.value(f"SELECT value FROM meta WHERE {_IS_FLOOR}"))


def raise_token_floor(database: Database, above: int = 0) -> int:
    """Raise the floor beyond all tokens counted from it or from ``above``, another store's floor; return it."""
    step = TOKEN_EPOCH if database.schema > OF_EPOCHS else 1
    database.execute(f"UPDATE meta SET value=max(value, ?)+? WHERE {_IS_FLOOR}", (above, step))
    database.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
    return token_floor(database)
