"""Syncs the write-ahead log to disk, outside of SQLite's write lock.

A commit in WAL mode appends frames to ``<file>-wal``. Syncing that file afterwards, through a descriptor of our own,
makes everything committed so far durable, whichever process wrote it, without holding SQLite's write lock. The
descriptor carries no POSIX locks (SQLite locks only the database and ``-shm`` files), so closing it is harmless. The
log is a prefix: a later sync also covers earlier commits.

The log exists from the first transaction until the last connection closes; our descriptor stays open that long. It is
opened with the store: the kernel reports a failed sync to the descriptors that are open then, and later the process may
have no descriptors left.

After a failed sync of any opener, syncs no longer cover anything (``sync_record.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from pelton.storage.faults import REOPEN, Fault
from pelton.storage.sync_record import SyncRecord

_ZEROS: Final = bytes(1 << 20)
_RESERVE_BELOW: Final = 1 << 16

SyncFile = Callable[[int], None]
WriteFile = Callable[[int, bytes, int], int]


def sync_to_disk(descriptor: int) -> None:
    """Force a file's data to the medium (on macOS past the drive's cache, which plain fsync there does not)."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def write_to(descriptor: int, data: bytes, offset: int) -> int:
    """Write bytes at an offset of a file; return how many were written."""
    return os.pwrite(descriptor, data, offset)


class Medium(NamedTuple):
    """How the log gets to disk when Pelton and not SQLite writes it."""

    sync: SyncFile = sync_to_disk
    write: WriteFile = write_to


class WalSync:
    """Syncs the log of one store; ``sync`` may be called from any one thread at a time."""

    def __init__(self, path: str, record: SyncRecord, sync_file: SyncFile) -> None:
        self._path = path
        self._record = record
        self._slot = record.slot()
        self._sync_file = sync_file
        self._length = self._used = 0
        path = os.path.realpath(path)
        self._descriptor = os.open(path + "-wal", os.O_RDWR | os.O_CLOEXEC)
        self._folder: int | None = None
        try:
            self._folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._descriptor)
            raise

    def reserve(self, used: int) -> None:
        """Extend the log ahead of the next writes; only for the holder of SQLite's write lock.

        Syncing a file that has not grown needs no journal of the file system: a quarter less (106 to 142 us). No other
        process appends while we hold the lock, and SQLite regards zeros after the last frame as the end of the log.
        ``used`` is the last known length of the log; if it is too small, nothing is reserved.
        """
        if used < self._used:
            # The log was restarted, and perhaps truncated.
            self._length = 0
        self._used = used
        if self._length - used > _RESERVE_BELOW:
            return
        self._length = os.fstat(self._descriptor).st_size
        if self._length - used <= _RESERVE_BELOW:
            # If the disk is full, reserving gains nothing; the commit itself will fail.
            with suppress(OSError):
                self._length += os.pwrite(self._descriptor, _ZEROS, self._length)

    def sync(self) -> None:
        """Put everything committed before on disk. Raises Fault if that fails, or an earlier sync has failed."""
        # Check first: a descriptor that was open during an earlier failure reports the old error as if it were new.
        self._check()
        self._slot.begin()
        try:
            self._sync_folder()
            self._sync_file(self._descriptor)
        except OSError as error:
            self._slot.fail()
            raise Fault("failed", self._path, f"syncing the log to disk failed ({error}); {REOPEN}") from error
        finally:
            self._slot.end()
        self._check()

    def _check(self) -> None:
        if (doubt := self.doubt()) is not None:
            raise doubt

    def doubt(self) -> Fault | None:
        """Return a Fault if a sync of any opener has failed since this was opened."""
        if not self._record.is_doubtful:
            return None
        detail = f"a sync of the log to disk has failed in another process, or for another opener; {REOPEN}"
        return Fault("failed", self._path, detail)

    def _sync_folder(self) -> None:
        """Make the log's name durable, too: without its folder entry, the file is lost."""
        if self._folder is not None:
            os.fsync(self._folder)
            os.close(self._folder)
            self._folder = None

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        for descriptor in (self._descriptor, self._folder):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._descriptor, self._folder = -1, None
