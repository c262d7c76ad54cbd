"""Folding the log into the store's file: SQLite's checkpoints, and what keeps them from happening.

A commit that makes the log long folds it. SQLite syncs the log before and the file afterwards, and takes nothing for
folded unless both succeed: after a failed sync of the file the next attempt writes every page again. But where a sync
of the log has failed nobody may fold: SQLite does not verify what it copies, and what the kernel has dropped from its
cache reads as something older (``sync_record.py``).

What a reader still needs stays in the log. One that was stopped, or reads a snapshot for long, keeps it from being
begun anew, so it grows with every write: a warning is logged once, and an advisory is published. When the reader is
gone, the next writes fold the log, begin it anew and cut it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import apsw

from pelton.runtime import pause, stopwatch
from pelton.storage.faults import Fault, fault_of, is_failed_sync
from pelton.storage.sync_record import SyncRecord

PAGE_SIZE: Final = 4096
CHECKPOINT_PAGES: Final = 4000
# Longer than it becomes if nothing keeps it from being folded.
LOG_LIMIT: Final = 32 << 20
_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_RETRY_S: Final = 0.001
TOO_LONG_PAGES: Final = (64 << 20) // (PAGE_SIZE + _FRAME_HEADER)

_log: Final = logging.getLogger("pelton")


def use_log(connection: apsw.Connection, path: str, patience: float) -> None:
    """Log ahead from now on. SQLite does not wait for others who open the new file at the same time: we do."""
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
    """Folds the log of one connection; without a ``record`` (a memory store) there is none."""

    def __init__(self, path: str, connection: apsw.Connection, record: SyncRecord, on_failure: Callable[[Fault], None]):
        self._path = path
        self._connection = connection
        self._record = record
        self._slot = record.slot()
        self._on_failure = on_failure
        self._is_blocked = False
        self._unreported = 0
        self.log_bytes = 0
        # Whether a commit that makes the log long folds it into the file; else that is left to closing.
        self.folds = True
        connection.execute(f"PRAGMA journal_size_limit={LOG_LIMIT}")
        connection.set_wal_hook(self._committed)

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """After a commit: note how long the log is, and fold it into the file when it is long enough."""
        self.log_bytes = _LOG_HEADER + pages * (PAGE_SIZE + _FRAME_HEADER)
        if pages >= CHECKPOINT_PAGES and self.folds:
            self.fold()
            self._watch_length(pages)
        return apsw.SQLITE_OK

    def fold(self, mode: str = "PASSIVE") -> None:
        """Fold what can be folded. What keeps it from that will meet the next commit, but for a failed sync."""
        if self._record.is_doubtful:
            return
        self._slot.begin()
        try:
            self._connection.execute(f"PRAGMA wal_checkpoint({mode})")
        except apsw.Error as error:
            self.note(error)
        finally:
            self._slot.end()

    def note(self, error: Exception) -> None:
        """If a sync of SQLite's has failed, let nothing be acknowledged any more."""
        if is_failed_sync(error):
            self._slot.fail()
            self._on_failure(fault_of(error, self._path))

    def close(self, *, is_gone: bool) -> None:
        """Close the connection; if it is the last one, SQLite folds the log and removes it."""
        if self._record.is_doubtful:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        elif is_gone:
            # SQLite does not fold the log into a file that was moved away, which would be without it.
            self.fold("TRUNCATE")
        elif not self.folds:
            self.fold()
        self._slot.begin()
        try:
            # SQLite does not say whether it has folded: the log is gone then (SyncRecord.close).
            self._connection.close()
        except apsw.Error as error:
            self.note(error)
        finally:
            self._slot.end()

    def blocked_bytes(self) -> int:
        """How long the log has grown because it cannot be folded, once for each time it does; else 0."""
        grown, self._unreported = self._unreported, 0
        return grown

    def _watch_length(self, pages: int) -> None:
        was_blocked, self._is_blocked = self._is_blocked, pages >= TOO_LONG_PAGES
        if was_blocked or not self._is_blocked:
            return
        self._unreported = self.log_bytes
        _log.warning(
            "store %s: its log has grown to %d MB and cannot be folded into the file, because a process still "
            "reads an old state of it: one that was stopped, or a long read, transaction or backup. The log "
            "shrinks with the first writes after that has ended",
            self._path,
            self.log_bytes >> 20,
        )
