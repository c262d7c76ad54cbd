"""The write-ahead log: synced outside of SQLite's write lock, and folded into the file by SQLite's checkpoints.

A commit in WAL mode appends frames to ``<file>-wal``. Syncing that file afterwards, through a descriptor of our own,
makes everything committed so far durable, whichever process wrote it, without holding SQLite's write lock. The
descriptor carries no POSIX locks (SQLite locks only the database and ``-shm`` files), so closing it is harmless. The
log is a prefix: a later sync also covers earlier commits.

The log exists from the first transaction until the last connection closes; our descriptor stays open that long. It is
opened with the store: the kernel reports a failed sync to the descriptors that are open then, and later the process may
have no descriptors left.

After a failed sync of any opener, syncs no longer cover anything, until the log is repaired (``wal_repair.py``).

**Checkpoints, and what blocks them.** A commit that makes the log long runs a checkpoint, and so does each that adds
half as much again. A log that is folded begins anew with the next write, if nobody is reading it just then. Several
busy processes never leave it such a moment, and SQLite finds pages slowly in a long log. So when it is twice as long,
its readers are waited for, a moment at most, and meanwhile nobody writes.

SQLite syncs the log before and the file afterwards, and regards nothing as folded unless both succeed: after a failed
sync of the file the next checkpoint writes every page again. But after a failed sync of the log, no process may fold
it: SQLite does not verify what it copies, and pages that the kernel has dropped from its cache read as something older.

Pages that a reader still needs stay in the log. A reader that was stopped, or holds a snapshot for long, prevents the
log from restarting, so it grows with every write: a warning is logged once, and an advisory is published. Meanwhile
commits look again soon, which costs nothing as long as there is nothing to fold. So when the reader is gone, the next
writes fold the log, restart it and truncate it.

**The record of the results of a store's syncs, for all current and later openers.** When a sync fails, the kernel
treats the pages that it could not write as written. It reports the error once, to the descriptors open at the time.
Reads still return those pages, later syncs succeed without writing them, and after a power loss they are gone: a hole
in the log. So a failure must reach every process that has the store open, and every process that opens it before the
log is repaired (``wal_repair.py``), even if the process that saw the failure dies.

Every opener maps the file ``<store>-sync``. It has two bytes for each opener: one is set during a sync, one after a
failed sync. If a process dies during a sync, its error may be lost: the first byte stays set, and the next opener
rewrites the log as if that sync had failed. A *generation* counts the repairs of the log after a failure that a process
saw. It invalidates all current openers: their descriptors may still report the old error, or have lost it. The mere
death of a process invalidates no other opener: nearly always its sync succeeded, and if not, the descriptors that were
open then report the error themselves.

The file need not be synced, it must only outlive the processes. It records the state of the kernel's cache, and a power
loss takes both: SQLite verifies what it then reads from the medium. The same page holds the claim to the next turn of
writing (``committer.py``), which shares its life and nothing else.

Each opener holds a shared ``flock`` on it. The last to leave removes it, unless the log could not be folded.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import apsw
import msgspec

from pelton.runtime import pause, stopwatch
from pelton.storage.faults import REOPEN, Fault, fault_of, is_failed_sync
from pelton.storage.rows import integers
from pelton.storage.troubles import Troubles

_SIZE: Final = 4096
_MAGIC: Final = b"pelsync1"
_SLOTS: Final = 240
_GENERATION: Final = 8
_FAILED: Final = 16
_UNDER_WAY: Final = 256
_NEXT: Final = 496
_CLAIMS: Final = 512
_SOUND: Final = bytes(_SLOTS)
_TURNS: Final = 255
# Do not wait longer for a sync: rewriting the log without need is harmless.
_PATIENCE_S: Final = 0.25
_LOCK_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.001


class Suspects(msgspec.Struct, frozen=True):
    """Slots of failed syncs, and of syncs whose result is unknown, with their turn."""

    failed: frozenset[int]
    unknown: dict[int, int]

    def __bool__(self) -> bool:
        return bool(self.failed or self.unknown)


class SyncRecord:
    """One opener's view of the record of the store ``path``. Raises Fault and OSError."""

    def __init__(self, path: str) -> None:
        self._store = path
        self._file = _record_of(path)
        self._log = os.path.realpath(path) + "-wal"
        self._map, self._was_alone = self._open_map()
        self._sound = self._map[_GENERATION:_FAILED] + _SOUND

    # --- for every sync: cheap

    @property
    def is_doubtful(self) -> bool:
        """Whether a sync has failed in any process since this was opened: nothing may be acknowledged, or folded."""
        return self._map[_GENERATION : _FAILED + _SLOTS] != self._sound

    def slot(self) -> Slot:
        """Return a slot to record syncs that never overlap."""
        # Two openers at the same time may share a slot. That matters only if one dies while both are syncing.
        number = int.from_bytes(self._map[_NEXT : _NEXT + 2], "little") % _SLOTS
        self._map[_NEXT : _NEXT + 2] = ((number + 1) % _SLOTS).to_bytes(2, "little")
        return Slot(self._map, number)

    @property
    def claims(self) -> tuple[mmap.mmap, int]:
        """The page, and the place in it, of the claim to the next turn of writing."""
        return self._map, _CLAIMS

    # --- on opening

    def suspects(self) -> Suspects:
        """Return the syncs that leave the log in doubt, after a short wait for syncs that are running."""
        failed = frozenset(slot for slot in range(_SLOTS) if self._map[_FAILED + slot])
        suspects = Suspects(failed, self._under_way())
        deadline = stopwatch() + (0 if self._was_alone else _PATIENCE_S)
        while suspects.unknown and stopwatch() < deadline:
            pause(_PAUSE_S)
            suspects = self.remaining(suspects)
        return suspects

    def remaining(self, suspects: Suspects) -> Suspects:
        """Return which of them still leave the log in doubt: others may have repaired it since."""
        failed = frozenset(slot for slot in suspects.failed if self._map[_FAILED + slot])
        return Suspects(failed, {slot: turn for slot, turn in suspects.unknown.items() if self._is_at(slot, turn)})

    def _is_at(self, slot: int, turn: int) -> bool:
        return self._map[_UNDER_WAY + slot] == turn

    def clear(self, suspects: Suspects) -> None:
        """Clear these after repairing the log. If a sync had failed, every current opener must open the store again."""
        if suspects.failed:
            moved = int.from_bytes(self._map[_GENERATION:_FAILED], "little") + 1
            self._map[_GENERATION:_FAILED] = moved.to_bytes(_FAILED - _GENERATION, "little")
        for slot in suspects.failed:
            self._map[_FAILED + slot] = 0
        for slot, turn in suspects.unknown.items():
            if self._is_at(slot, turn):
                self._map[_UNDER_WAY + slot] = 0

    def close(self) -> None:
        """Leave; the last to leave removes the file, or records that the log was not folded. Idempotent."""
        if self._map.closed:
            return
        self._map.close()
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _locks(descriptor, fcntl.LOCK_EX) and self._is_at_path(descriptor):
                    self._leave_last(descriptor)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Release only the mapping: a forked child's copy of its parent's."""
        self._map.close()

    def _leave_last(self, descriptor: int) -> None:
        if has_bytes(self._log):
            # The last to close folds the log. If SQLite did not, the reason is unknown: perhaps a failed sync.
            os.pwrite(descriptor, b"\x01", _FAILED)
        else:
            os.unlink(self._file)

    def _under_way(self) -> dict[int, int]:
        found = self._map[_UNDER_WAY : _UNDER_WAY + _SLOTS]
        return {slot: turn for slot, turn in enumerate(found) if turn} if found != _SOUND else {}

    def _open_map(self) -> tuple[mmap.mmap, bool]:
        deadline = stopwatch() + _LOCK_PATIENCE_S
        while True:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                is_alone = _locks(descriptor, fcntl.LOCK_EX)
                if is_alone:
                    self._prepare(descriptor)
                # The last to leave, or the first to open, holds the exclusive lock for a moment.
                if _locks(descriptor, fcntl.LOCK_SH) and self._is_at_path(descriptor):
                    self._check(descriptor)
                    # The mapping has its own descriptor, which keeps the lock.
                    return mmap.mmap(descriptor, _SIZE), is_alone
            finally:
                os.close(descriptor)
            if stopwatch() > deadline:
                raise Fault("busy", self._store, f"another process keeps {self._file} locked; is it stopped?")
            pause(_PAUSE_S)

    def _prepare(self, descriptor: int) -> None:
        """Initialise a new file, with the permissions of the store."""
        if os.fstat(descriptor).st_size:
            return
        store = os.stat(self._store)
        with suppress(PermissionError):
            os.fchmod(descriptor, store.st_mode & 0o777)
            if os.geteuid() == 0:
                os.fchown(descriptor, store.st_uid, store.st_gid)
        # A log without a record comes from an older Pelton, or a copy. The result of its last sync is unknown.
        is_unknown = has_bytes(self._log)
        head = _MAGIC.ljust(_FAILED, b"\0") + (b"\x01" if is_unknown else b"")
        os.pwrite(descriptor, head.ljust(_SIZE, b"\0"), 0)

    def _check(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size != _SIZE or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            detail = f"the file {self._file} is not Pelton's, which needs this name: move it away"
            raise Fault("settings", self._store, detail)

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._file, follow_symlinks=False))
        except FileNotFoundError:
            return False


class Slot:
    """The slot in which one opener records its syncs; used by one thread at a time."""

    def __init__(self, record: mmap.mmap, number: int) -> None:
        self._map = record
        self._under_way = _UNDER_WAY + number
        self._failed = _FAILED + number
        self._turn = 0

    def begin(self) -> None:
        """Record that a sync begins."""
        self._turn = self._turn % _TURNS + 1
        self._map[self._under_way] = self._turn

    def end(self) -> None:
        """Record that the sync has ended; call :meth:`fail` first if it failed."""
        self._map[self._under_way] = 0

    def fail(self) -> None:
        """Record that the sync has failed."""
        self._map[self._failed] = 1
        with suppress(OSError):
            # Try at least, although this disk is failing.
            self._map.flush()


def _record_of(path: str) -> str:
    return os.path.realpath(path) + "-sync"


def _locks(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_bytes(path: str) -> bool:
    """Whether a file is there, and not empty."""
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def has_failed(path: str) -> bool:
    """Whether the log of a store that does not open is in doubt; False if that is unknown."""
    try:
        descriptor = os.open(_record_of(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        head = os.pread(descriptor, _FAILED + _SLOTS, 0)
    finally:
        os.close(descriptor)
    return head.startswith(_MAGIC) and any(head[_FAILED:])


_ZEROS: Final = bytes(1 << 20)
_RESERVE_BELOW: Final = 1 << 16
_ROOM: Final = 1 << 25

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


class Medium(msgspec.Struct, frozen=True):
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
        if self._length - used <= _RESERVE_BELOW and self._has_room():
            with suppress(OSError):
                self._length += os.pwrite(self._descriptor, _ZEROS, self._length)

    def _has_room(self) -> bool:
        # On a disk that is nearly full, zeros would take the room that the file needs to have the log folded into it.
        disk = os.fstatvfs(self._descriptor)
        return disk.f_bavail * disk.f_frsize > _ROOM

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
        self._on_failure = weakref.WeakMethod(on_failure)
        self._is_blocked = False
        # The length of the log at the last commit, and those at which it is folded, and its readers waited for, next.
        self._pages = 0
        self._due, self._wait_due = CHECKPOINT_PAGES, 2 * CHECKPOINT_PAGES
        self.log_bytes = 0
        # Whether a commit that makes the log long folds it into the file; if not, closing does.
        self.folds = True
        connection.execute(f"PRAGMA journal_size_limit={LOG_LIMIT}")
        connection.set_wal_hook(self._on_commit)

    def _on_commit(self, connection: apsw.Connection, name: str, pages: int) -> int:
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
            on_failure = self._on_failure()
            if on_failure is not None:
                on_failure(fault_of(error, self._path))

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
