"""Putting the write-ahead log on disk, apart from SQLite's own lock.

A commit in WAL mode appends frames to ``<file>-wal``. Syncing that file afterwards, through a descriptor of
our own, makes everything committed so far durable, whichever process wrote it, and nobody has to hold
SQLite's write lock meanwhile. The descriptor carries no POSIX locks (SQLite locks the database and ``-shm``
files only), so closing it is harmless. The log is a prefix: what a later sync covers, an earlier commit is
covered by too.

The log exists from the first transaction until the last connection closes; ours stays open that long. It is opened
with the store: the kernel reports a failed sync to the descriptors that are open then, and later none may be to be had.

After a failed sync, anybody's, nothing is covered any more (``sync_record.py``).
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
    """How the log reaches the disk, where it is not SQLite that writes it."""

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
        """Lengthen the log ahead of what is written next; only for the holder of SQLite's write lock.

        Syncing a file that has not grown needs no journal of the file system: a quarter less (106 to 142 us).
        Nobody else appends while we hold the lock, and SQLite takes zeros after the last frame for the end of the
        log. ``used`` is the log's length as last known; too small a number only means that nothing is reserved.
        """
        if used < self._used:
            # It was begun anew, and perhaps cut.
            self._length = 0
        self._used = used
        if self._length - used > _RESERVE_BELOW:
            return
        self._length = os.fstat(self._descriptor).st_size
        if self._length - used <= _RESERVE_BELOW:
            # Without room on the disk there is nothing to gain; the commit itself will say so.
            with suppress(OSError):
                self._length += os.pwrite(self._descriptor, _ZEROS, self._length)

    def sync(self) -> None:
        """Put all that was committed before on disk. Raises Fault where that failed, or an earlier sync has."""
        # A descriptor that was open then reports an old error: looked at first, so that it is not told as a new one.
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
        """Return a Fault if a sync has failed, anybody's, since this was opened."""
        if not self._record.is_doubtful:
            return None
        detail = f"a sync of the log to disk has failed in another process, or for another opener; {REOPEN}"
        return Fault("failed", self._path, detail)

    def _sync_folder(self) -> None:
        """Make the log's name durable too: a file whose folder entry is lost is lost."""
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
