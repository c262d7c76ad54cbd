"""What became of a store's syncs, known to everybody who has it open, and to those who open it next.

Design: when a sync fails the kernel takes the pages it could not write for written. It reports the error once, to the
descriptors that were open at the time. Reading still finds what was written, later syncs succeed and write nothing of
it, and after a power loss it is gone: a hole in the log. So a failure must reach every process that has the store open,
and every process that opens it before the hole is closed (:mod:`pelton.storage.log_repair`), whatever becomes of the
process that saw it.

The file ``<store>-sync`` is mapped by every opener. For each of them it has two bytes: one is set while a sync is under
way, one when a sync has failed. A process that dies during a sync may have taken the error along: the first byte stays
set, and the next opener writes the log again as if that sync had failed. A *generation* counts how often the log was
made whole after a failure that somebody saw. It ends the trust of all that were open by then: their descriptors may
still report the old error, or have lost it. A process that merely died ends nobody's trust: nearly always its sync was
fine, and if not, the descriptors that were open then report that themselves.

The file need not be synced, only outlive the processes. It records what the kernel's cache pretends, and a power loss
takes both: what SQLite then reads from the medium it verifies.

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

_SIZE: Final = 4096
_MAGIC: Final = b"pelsync1"
_SLOTS: Final = 240
_GENERATION: Final = 8
_FAILED: Final = 16
_UNDER_WAY: Final = 256
_NEXT: Final = 496
_SOUND: Final = bytes(_SLOTS)
_TURNS: Final = 255
# A sync that takes longer is not waited for: to write the log again is no more than a waste.
_PATIENCE_S: Final = 0.25
_LOCK_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.001


class Suspects(NamedTuple):
    """Slots of syncs that failed, and of syncs of which nobody knows how they ended, with what they were at."""

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
        """Whether a sync has failed since this was opened, anywhere: nothing may be acknowledged, or folded."""
        return self._map[_GENERATION : _FAILED + _SLOTS] != self._sound

    def slot(self) -> Slot:
        """Return a place to note one kind of syncs, of which never two are under way at a time."""
        # Two that open at once may share one. It only counts if both sync, and one dies of it, in the same moment.
        number = int.from_bytes(self._map[_NEXT : _NEXT + 2], "little") % _SLOTS
        self._map[_NEXT : _NEXT + 2] = ((number + 1) % _SLOTS).to_bytes(2, "little")
        return Slot(self._map, number)

    # --- on opening

    def suspects(self) -> Suspects:
        """Return which syncs leave the log in doubt. Waits a moment for those under way."""
        failed = frozenset(slot for slot in range(_SLOTS) if self._map[_FAILED + slot])
        suspects = Suspects(failed, self._under_way())
        deadline = stopwatch() + (0 if self._was_alone else _PATIENCE_S)
        while suspects.unknown and stopwatch() < deadline:
            pause(_PAUSE_S)
            suspects = self.remaining(suspects)
        return suspects

    def remaining(self, suspects: Suspects) -> Suspects:
        """Return which of them still do: others may have made the log whole meanwhile."""
        failed = frozenset(slot for slot in suspects.failed if self._map[_FAILED + slot])
        return Suspects(failed, {slot: turn for slot, turn in suspects.unknown.items() if self._is_at(slot, turn)})

    def _is_at(self, slot: int, turn: int) -> bool:
        return self._map[_UNDER_WAY + slot] == turn

    def clear(self, suspects: Suspects) -> None:
        """The log is whole again: forget these. If one had failed, all who have the store open have to open it anew."""
        if suspects.failed:
            moved = int.from_bytes(self._map[_GENERATION:_FAILED], "little") + 1
            self._map[_GENERATION:_FAILED] = moved.to_bytes(_FAILED - _GENERATION, "little")
        for slot in suspects.failed:
            self._map[_FAILED + slot] = 0
        for slot, turn in suspects.unknown.items():
            if self._is_at(slot, turn):
                self._map[_UNDER_WAY + slot] = 0

    def close(self) -> None:
        """Leave; the last one to leave removes the file, or notes that the log was not folded. Idempotent."""
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
        """Let go of the mapping alone: a forked child's copy of its parent's."""
        self._map.close()

    def _leave_last(self, descriptor: int) -> None:
        if _has_bytes(self._log):
            # Whoever closes last folds. What has kept SQLite from it is not known, perhaps a failed sync.
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
                # Whoever leaves last, or comes first, holds it for a moment.
                if _locks(descriptor, fcntl.LOCK_SH) and self._is_at_path(descriptor):
                    self._check(descriptor)
                    # The mapping has a descriptor of its own, and the lock with it.
                    return mmap.mmap(descriptor, _SIZE), is_alone
            finally:
                os.close(descriptor)
            if stopwatch() > deadline:
                raise Fault("busy", self._store, f"another process keeps {self._file} locked; is it stopped?")
            pause(_PAUSE_S)

    def _prepare(self, descriptor: int) -> None:
        """Make a new file, with the rights of the store."""
        if os.fstat(descriptor).st_size:
            return
        store = os.stat(self._store)
        with suppress(PermissionError):
            os.fchmod(descriptor, store.st_mode & 0o777)
            if os.geteuid() == 0:
                os.fchown(descriptor, store.st_uid, store.st_gid)
        # A log without a record: of an older Pelton, of a copy. Nobody knows how its last sync ended.
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
    """Where one opener notes what its syncs come to; used by one thread at a time."""

    def __init__(self, record: mmap.mmap, number: int) -> None:
        self._map = record
        self._under_way = _UNDER_WAY + number
        self._failed = _FAILED + number
        self._turn = 0

    def begin(self) -> None:
        """A sync is under way."""
        self._turn = self._turn % _TURNS + 1
        self._map[self._under_way] = self._turn

    def end(self) -> None:
        """It has ended, and if it has failed, that was noted."""
        self._map[self._under_way] = 0

    def fail(self) -> None:
        """It has failed."""
        self._map[self._failed] = 1
        with suppress(OSError):
            # For what it is worth: this disk fails.
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
    """Whether the log of the store ``path`` is in doubt, for who cannot open it; False where nothing can be told."""
    try:
        descriptor = os.open(_record_of(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        head = os.pread(descriptor, _FAILED + _SLOTS, 0)
    finally:
        os.close(descriptor)
    return head.startswith(_MAGIC) and any(head[_FAILED:])
