"""Records the results of a store's syncs for all current and later openers.

Design: when a sync fails, the kernel treats the pages that it could not write as written. It reports the error once, to
the descriptors open at the time. Reads still return those pages, later syncs succeed without writing them, and after a
power loss they are gone: a hole in the log. So a failure must reach every process that has the store open, and every
process that opens it before the log is repaired (:mod:`pelton.storage.wal`), even if the process that saw the
failure dies.

Every opener maps the file ``<store>-sync``. It has two bytes for each opener: one is set during a sync, one after a
failed sync. If a process dies during a sync, its error may be lost: the first byte stays set, and the next opener
rewrites the log as if that sync had failed. A *generation* counts the repairs of the log after a failure that a process
saw. It invalidates all current openers: their descriptors may still report the old error, or have lost it. The mere
death of a process invalidates no other opener: nearly always its sync succeeded, and if not, the descriptors that were
open then report the error themselves.

The file need not be synced, it must only outlive the processes. It records the state of the kernel's cache, and a power
loss takes both: SQLite verifies what it then reads from the medium. The same page holds the claim to the next turn of
writing (:mod:`pelton.storage.writer_priority`), which shares its life and nothing else.

Each opener holds a shared ``flock`` on it. The last to leave removes it, unless the log could not be folded.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final, NamedTuple

from pelton.runtime import pause, stopwatch
from pelton.storage.faults import Fault
from pelton.storage.writer_priority import WriterPriority

_SIZE: Final = 4096
_MAGIC: Final = b"pelsync1"
_SLOTS: Final = 240
_GENERATION: Final = 8
_FAILED: Final = 16
_UNDER_WAY: Final = 256
_NEXT: Final = 496
_PRIORITY: Final = 512
_SOUND: Final = bytes(_SLOTS)
_TURNS: Final = 255
# Do not wait longer for a sync: rewriting the log without need is harmless.
_PATIENCE_S: Final = 0.25
_LOCK_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.001


class Suspects(NamedTuple):
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
        self._map, self._was_alone = self._opened()
        self._sound = self._now()

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

    def writer_priority(self) -> WriterPriority:
        """Return a connection's view of the claim to the next turn of writing, which is kept in the same page."""
        return WriterPriority(self._map, _PRIORITY)

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
        if _has_bytes(self._log):
            # The last to close folds the log. If SQLite did not, the reason is unknown: perhaps a failed sync.
            os.pwrite(descriptor, b"\x01", _FAILED)
        else:
            os.unlink(self._file)

    def _now(self) -> bytes:
        return self._map[_GENERATION:_FAILED] + _SOUND

    def _under_way(self) -> dict[int, int]:
        found = self._map[_UNDER_WAY : _UNDER_WAY + _SLOTS]
        return {slot: turn for slot, turn in enumerate(found) if turn} if found != _SOUND else {}

    def _opened(self) -> tuple[mmap.mmap, bool]:
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
        is_unknown = _has_bytes(self._log)
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


def _has_bytes(path: str) -> bool:
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
