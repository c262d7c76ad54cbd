"""A disk that can lose power: records a store's writes and syncs, and makes the files a crash may leave.

Design: A :class:`RecordingDisk` is a VFS of SQLite below its encryption, and a ``sync_file`` for the engine, which
syncs the log through its own descriptor. Both write to the real file system and keep a list of events: writes,
truncations, removals, syncs, and the marks that a test puts between them ("this was acknowledged"). An image holds
the files that a power loss may leave at one moment of that list: all synced writes are there; of the writes to a file
after its last sync any part may be lost, in any order, down to single sectors of one write.

A sync covers the writes before it began, and counts from when it has ended. File names are assumed to be
durable, in order, as on a file system with a journal; a removal not followed by a sync of any file may be lost. The log
is extended by zeros that are not recorded: an image may have some.

A failing sync (:meth:`RecordingDisk.fail`) does what Linux does: the error is reported once, its writes
are on the medium or not, and the kernel considers them written. Reads still return them, but no later sync writes
them, unless they are written again. If the kernel also drops the pages from its cache, reads return the medium.

If several processes write one store, each has a disk, and all record into one file (``shared``). When they have ended,
:meth:`RecordingDisk.collect` reads it.

A killed process leaves its files unchanged, except for its locks: :meth:`RecordingDisk.moved` continues recording
them in another folder, as if the process that had them open there were gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random  # a type: whose chance it is, the test says
from typing import Any, Final

import apsw

from tests.kit.shared_events import SharedEvents

_SECTOR: Final = 512
_SYSTEM_CALLS: Final = {"xNextSystemCall", "xGetSystemCall", "xSetSystemCall"}
_MOST_ZEROS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """Bytes written to a file at an offset."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file cut to a size."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Remove:
    """A file removed."""

    file: str


@dataclass(frozen=True, slots=True)
class Sync:
    """A file synced: the events before ``upto`` are on the medium."""

    file: str
    upto: int


@dataclass(frozen=True, slots=True)
class FailedSync:
    """A file's sync failed: no later sync covers the events before ``upto`` that were not yet covered."""

    file: str
    upto: int


@dataclass(frozen=True, slots=True)
class PowerMark:
    """A moment that a test has marked."""

    what: Any


Event = DiskWrite | Truncate | Remove | Sync | FailedSync | PowerMark


@dataclass(slots=True)
class _Failure:
    """How the next syncs of some files fail."""

    ending: str
    times: int
    random: Random
    evicts: bool


class RecordingDisk:
    """Records one store.

    Open it as ``EngineSettings(path, vfs=disk.vfs, sync_file=disk.sync_file, write_file=disk.write_file)``.
    """

    def __init__(self, name: str, shared: str | os.PathLike[str] | None = None) -> None:
        """``name`` is unique in the process; close the disk when its stores are closed.

        ``shared`` is the file for the events of several processes, whose syncs cannot be made to fail.
        """
        self.events: list[Event] = []
        self._shared = None if shared is None else SharedEvents(shared)
        self._recorded: list[Event] | SharedEvents = self.events if self._shared is None else self._shared
        self._vfs = _Recorder(name, self)
        self._files: set[str] = set()
        self._folder: str | None = None
        self._failures: list[_Failure] = []
        self.vfs = f"multipleciphers-{name}"

    def close(self) -> None:
        """Stop recording, and forget the VFS."""
        self._vfs.unregister()
        if self._shared is not None:
            self._shared.close()

    def collect(self) -> None:
        """Read the events of all processes into :attr:`events`, when none records any more."""
        assert self._shared is not None, "a disk that is not shared has its events"
        events, index = self._shared.read()
        for event in events:
            covers = isinstance(event, Sync | FailedSync)
            self.events.append(replace(event, upto=index(event.upto)) if covers else event)

    def mark(self, what: Any) -> None:
        """Record that something happened now."""
        self._recorded.append(PowerMark(what))

    def fail(self, ending: str, random: Random, *, times: int = 1, evicts: bool = False) -> None:
        """Make the next syncs of files whose names end with ``ending`` fail; ``evicts`` drops cached pages too."""
        self._failures.append(_Failure(ending, times, random, evicts))

    @property
    def is_failing(self) -> bool:
        """Whether another sync will fail."""
        return bool(self._failures)

    def heal(self) -> None:
        """Make every sync succeed from now on."""
        self._failures.clear()

    def moved(self, folder: str | os.PathLike[str]) -> None:
        """Record from now on only the events of the files, of the same names, in another folder."""
        self._folder = os.fspath(folder)

    def sync_file(self, descriptor: int) -> None:
        """Record the sync of a file through its own descriptor, without a real sync."""
        upto = self.place
        for path in self._paths(descriptor):
            self.synced(path, upto, lambda data, offset: os.pwrite(descriptor, data, offset))

    def write_file(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write to a file through its own descriptor, and record it."""
        done = os.pwrite(descriptor, data, offset)
        for path in self._paths(descriptor):
            self.record(path, DiskWrite(os.path.basename(path), offset, data[:done]))
        return done

    def _paths(self, descriptor: int) -> list[str]:
        found = os.fstat(descriptor)
        return [path for path in self._files if os.path.exists(path) and os.path.samestat(found, os.stat(path))]

    @property
    def place(self) -> int:
        """The place after all recorded events: what a sync that begins now covers."""
        return len(self._recorded)

    def opened(self, path: str) -> None:
        """Note the path of an opened file."""
        self._files.add(path)

    def record(self, path: str, event: Event) -> None:
        """Record an event of a file."""
        if self._is_recorded(path):
            self._recorded.append(event)

    def _is_recorded(self, path: str) -> bool:
        return self._folder is None or os.path.dirname(path) == self._folder

    def synced(self, path: str, upto: int, write: Callable[[bytes, int], object]) -> None:
        """Record a sync that succeeds, or raise OSError; ``write`` changes the file without recording."""
        name = os.path.basename(path)
        if not self._is_recorded(path):
            return
        failure = next((one for one in self._failures if name.endswith(one.ending)), None)
        if failure is None:
            self.record(path, Sync(name, upto))
            return
        failure.times -= 1
        if not failure.times:
            self._failures.remove(failure)
        if failure.evicts:
            self._evict(name, failure.random, write)
        self.record(path, FailedSync(name, upto))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _evict(self, name: str, random: Random, write: Callable[[bytes, int], object]) -> None:
        """Make the file equal to the medium."""
        durable = _durable(self.events)
        medium, dropped = bytearray(), list[DiskWrite]()
        for index, event in enumerate(self.events):
            if isinstance(event, Remove) and event.file == name:
                medium, dropped = bytearray(), []
            if isinstance(event, DiskWrite | Truncate) and event.file == name:
                if index in durable or isinstance(event, Truncate) or random.random() < 0.5:
                    _apply(medium, event)
                else:
                    dropped.append(event)
        for event in dropped:
            there = bytes(medium[event.offset : event.offset + len(event.data)])
            write(there.ljust(len(event.data), b"\0"), event.offset)

    def image(self, moment: int, random: Random) -> dict[str, bytes]:
        """Return the files, by their names, that a power loss after ``moment`` events may leave."""
        events = self.events[:moment]
        files: dict[str, bytearray] = {}
        durable = _durable(events)
        last_sync = max((event.upto for event in events if isinstance(event, Sync)), default=0)
        # How many unsynced writes survive differs from image to image: all, none, some.
        kept = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        newest = {event.file: index for index, event in enumerate(events) if not isinstance(event, PowerMark)}
        for index, event in enumerate(events):
            if isinstance(event, PowerMark | Sync | FailedSync):
                continue
            if isinstance(event, Remove):
                if index < last_sync or newest[event.file] != index or random.random() < kept:
                    files.pop(event.file, None)
                continue
            file = files.setdefault(event.file, bytearray())
            if index in durable or random.random() < kept:
                _apply(file, event)
            elif isinstance(event, DiskWrite) and random.random() < kept:
                _apply_torn(file, event, random)
        for name, file in files.items():
            if name.endswith("-wal") and random.random() < 0.5:
                file.extend(bytes(random.randrange(_MOST_ZEROS)))
        return {name: bytes(file) for name, file in files.items()}


def _durable(events: list[Event]) -> set[int]:
    """Return the indexes of the events that are certainly on the medium."""
    found: set[int] = set()
    waiting: dict[str, list[int]] = {}
    for index, event in enumerate(events):
        if isinstance(event, PowerMark | Remove):
            continue
        mine = waiting.setdefault(event.file, [])
        if isinstance(event, DiskWrite | Truncate):
            mine.append(index)
            continue
        covered = [one for one in mine if one < event.upto]
        waiting[event.file] = [one for one in mine if one >= event.upto]
        if isinstance(event, Sync):
            found.update(covered)
        else:
            # A file's length is in the file system's journal, which did not fail.
            waiting[event.file] += [one for one in covered if isinstance(events[one], Truncate)]
    return found


def _apply(file: bytearray, event: DiskWrite | Truncate) -> None:
    if isinstance(event, Truncate):
        del file[event.size :]
        return
    if len(file) < event.offset:
        file.extend(bytes(event.offset - len(file)))
    file[event.offset : event.offset + len(event.data)] = event.data


def _apply_torn(file: bytearray, event: DiskWrite, random: Random) -> None:
    """Apply some sectors of a write."""
    start = event.offset
    end = start + len(event.data)
    while start < end:
        stop = min(end, start - start % _SECTOR + _SECTOR)
        if random.random() < 0.5:
            _apply(file, DiskWrite(event.file, start, event.data[start - event.offset : stop - event.offset]))
        start = stop


def write_image(folder: str | os.PathLike[str], image: Mapping[str, bytes]) -> None:
    """Write the files of an image to a folder."""
    for name, data in image.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


class _Recorder(apsw.VFS):
    def __init__(self, name: str, disk: RecordingDisk) -> None:
        self._disk = disk
        super().__init__(name, "unix", exclude=_SYSTEM_CALLS)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's
        return _RecordedFile(name, flags, self._disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  # SQLite's
        super().xDelete(filename, syncdir)
        self._disk.record(filename, Remove(os.path.basename(filename)))


class _RecordedFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], disk: RecordingDisk) -> None:
        super().__init__("unix", name, flags)
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        self._name = os.path.basename(self._path)
        self._disk = disk
        disk.opened(self._path)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's
        super().xWrite(data, offset)
        self._disk.record(self._path, DiskWrite(self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's
        super().xTruncate(newsize)
        self._disk.record(self._path, Truncate(self._name, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's
        # No real sync is needed: the images keep the promise of a sync.
        try:
            self._disk.synced(self._path, self._disk.place, super().xWrite)
        except OSError as error:
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC) from error
