"""Folding the log into the store's file: SQLite's checkpoints, and what blocks them.

A commit that makes the log long runs a checkpoint, and so does each that adds half as much again. A log that is folded
begins anew with the next write, if nobody is reading it just then. Several busy processes never leave it such a moment,
and SQLite finds pages slowly in a long log. So when it is twice as long, its readers are waited for, a moment at most,
and meanwhile nobody writes.

SQLite syncs the log before and the file afterwards, and regards nothing as folded unless both succeed: after a failed
sync of the file the next checkpoint writes every page again. But after a failed sync of the log, no process may fold
it: SQLite does not verify what it copies, and pages that the kernel has dropped from its cache read as something older
(``sync_record.py``).

Pages that a reader still needs stay in the log. A reader that was stopped, or holds a snapshot for long, prevents the
log from restarting, so it grows with every write: a warning is logged once, and an advisory is published. Meanwhile
commits look again soon, which costs nothing as long as there is nothing to fold. So when the reader is gone, the next
writes fold the log, restart it and truncate it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw

from pelton.runtime import pause, stopwatch
from pelton.storage.faults import Fault, fault_of, is_failed_sync
from pelton.storage.rows import integers
from pelton.storage.sync_record import SyncRecord
from pelton.storage.troubles import Troubles

PAGE_SIZE: Final = 4096
CHECKPOINT_PAGES: Final = 4000
# Longer than the log becomes if nothing blocks checkpoints.
LOG_LIMIT: Final = 32 << 20
_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_RETRY_S: Final = 0.001
_READERS_MS: Final = 20
_AGAIN_PAGES: Final = 64
TOO_LONG_PAGES: Final = (64 << 20) // (PAGE_SIZE + _FRAME_HEADER)


def use_log(connection: apsw.Connection, path: str, patience: float) -> None:
    """Switch to WAL mode. SQLite does not wait for others that open the new file at the same time, so this does."""
    deadline = stopwatch() + patience
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchall()[0][0]
            break
        except apsw.BusyError:
            if stopwatch() > deadline:
                raise
            pause(_RETRY_S)
    if mode != "wal":
        detail = "the file system has no shared memory, which several processes on one file need; use a local disk"
        raise Fault("settings", path, detail)


class Checkpointer:
    """Runs the checkpoints of one connection; a memory store has none."""

    log_bytes: int

    def __init__(
        self,
        path: str,
        connection: apsw.Connection,
        record: SyncRecord,
        troubles: Troubles,
        on_failure: Callable[[Fault], None],
    ) -> None:
        self._path = path
        self._connection = connection
        self._record = record
        self._slot = record.slot()
        self._troubles = troubles
        self._on_failure = on_failure
        self._is_blocked = False
        # The length of the log at the last commit, and those at which it is folded, and its readers waited for, next.
        self._pages = 0
        self._due, self._wait_due = CHECKPOINT_PAGES, 2 * CHECKPOINT_PAGES
        self.log_bytes = 0
        # Whether a commit that makes the log long folds it into the file; if not, closing does.
        self.folds = True
        connection.execute(f"PRAGMA journal_size_limit={LOG_LIMIT}")
        connection.set_wal_hook(self._committed)

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """After a commit, record the length of the log, and fold it into the file if it is long enough."""
        self.log_bytes = _LOG_HEADER + pages * (PAGE_SIZE + _FRAME_HEADER)
        if pages < self._pages:
            # It has begun anew.
            self._due, self._wait_due = CHECKPOINT_PAGES, 2 * CHECKPOINT_PAGES
        self._pages = pages
        if pages >= self._due and self.folds:
            left = self._fold_long(pages)
            is_held = left is not None and left >= CHECKPOINT_PAGES
            self._due = pages + (_AGAIN_PAGES if is_held else CHECKPOINT_PAGES // 2)
            self._watch_length(pages, left)
        return apsw.SQLITE_OK

    def _fold_long(self, pages: int) -> int | None:
        left = self.fold()
        if pages < self._wait_due:
            return left
        self._wait_due = pages + CHECKPOINT_PAGES // 2
        # Most of it is folded, so others do not wait for that.
        usual = integers(self._connection.execute("PRAGMA busy_timeout").fetchall()[0])[0]
        self._connection.set_busy_timeout(_READERS_MS)
        try:
            return self.fold("RESTART")
        finally:
            self._connection.set_busy_timeout(usual)

    def fold(self, mode: str = "PASSIVE") -> int | None:
        """Fold what can be folded, and return how many pages are left; None if another process does.

        Errors other than a failed sync are ignored: the next commit meets them again.
        """
        if self._record.is_doubtful:
            return None
        self._slot.begin()
        try:
            row = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()[0]
        except apsw.Error as error:
            self.note(error)
            return None
        finally:
            self._slot.end()
        _, pages, folded = integers(row)
        return None if pages < 0 else pages - folded

    def note(self, error: Exception) -> None:
        """If a sync by SQLite has failed, stop all acknowledgements."""
        if is_failed_sync(error):
            self._slot.fail()
            self._on_failure(fault_of(error, self._path))

    def close(self, *, is_gone: bool) -> None:
        """Close the connection; if it is the last one, SQLite folds the log and removes it."""
        if self._record.is_doubtful:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        elif is_gone:
            # On closing, SQLite does not fold the log into a file that was moved, which would lose it.
            self.fold("TRUNCATE")
        elif not self.folds:
            self.fold()
        self._slot.begin()
        try:
            # SQLite does not return whether it has folded: if so, the log is gone (SyncRecord.close).
            self._connection.close()
        except apsw.Error as error:
            self.note(error)
        finally:
            self._slot.end()

    def _watch_length(self, pages: int, left: int | None) -> None:
        if left is None:
            return
        # A log that is folded is no trouble, however long.
        was_blocked, self._is_blocked = self._is_blocked, pages >= TOO_LONG_PAGES and left >= CHECKPOINT_PAGES
        if was_blocked or not self._is_blocked:
            return
        self._troubles.checkpoint_blocked(self.log_bytes)
