"""A disk that can lose power: records what a store writes and syncs, and makes the files a crash may leave.

The story. A :class:`RecordingDisk` is a VFS of SQLite below its encryption, and a ``sync_file`` for the engine, which
syncs the log through a descriptor of its own. Both write to the real file system and keep a list of events: writes,
truncations, removals, syncs, and the marks that a test puts between them ("this was acknowledged"). An image is
what the power may leave at one moment of that list: all that a sync covers is there; of what was written to a file
after its last sync any part may be lost, in any order, down to single sectors of one write.

A sync covers what was written before it began, and counts from when it has ended. Names of files are taken for
durable, in order, as on a file system with a journal; a removal that no sync of any file follows may be lost. The log
is lengthened by zeros that are not recorded: an image may have some.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random  # noqa: TID251  # a type: whose chance it is, the test says
from typing import Any, Final

import apsw

_SECTOR: Final = 512
_SYSTEM_CALLS: Final = {"xNextSystemCall", "xGetSystemCall", "xSetSystemCall"}
_MOST_ZEROS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Write:
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
class Mark:
    """Something a test wants to remember the moment of."""

    what: Any


Event = Write | Truncate | Remove | Sync | Mark


class RecordingDisk:
    """Records one store: open it as ``EngineSettings(path, vfs=disk.vfs, sync_file=disk.sync_file)``."""

    def __init__(self, name: str) -> None:
        """``name`` is unique in the process; close the disk when its stores are closed."""
        self.events: list[Event] = []
        self._vfs = _Recorder(name, self)
        self._files: set[str] = set()
        self.vfs = f"multipleciphers-{name}"

    def close(self) -> None:
        """Record no longer, and forget the VFS."""
        self._vfs.unregister()

    def mark(self, what: Any) -> None:
        """Remember that something happened now."""
        self.events.append(Mark(what))

    def sync_file(self, descriptor: int) -> None:
        """Record the sync of a file through a descriptor of its own; the real disk is spared."""
        upto, found = len(self.events), os.fstat(descriptor)
        for path in self._files:
            if os.path.exists(path) and os.path.samestat(found, os.stat(path)):
                self.events.append(Sync(os.path.basename(path), upto))

    def opened(self, path: str) -> None:
        """Know a file by its path."""
        self._files.add(path)

    def image(self, moment: int, random: Random) -> dict[str, bytes]:
        """Return the files, by their names, that losing power after so many events may leave."""
        events = self.events[:moment]
        files: dict[str, bytearray] = {}
        synced = _synced(events)
        last_sync = max(synced.values(), default=0)
        # How much of what was not synced survives differs from image to image: all, nothing, some.
        kept = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        newest = {event.file: index for index, event in enumerate(events) if not isinstance(event, Mark)}
        for index, event in enumerate(events):
            if isinstance(event, Mark | Sync):
                continue
            if isinstance(event, Remove):
                if index < last_sync or newest[event.file] != index or random.random() < kept:
                    files.pop(event.file, None)
                continue
            file = files.setdefault(event.file, bytearray())
            if index < synced.get(event.file, 0) or random.random() < kept:
                _apply(file, event)
            elif isinstance(event, Write) and random.random() < kept:
                _apply_torn(file, event, random)
        for name, file in files.items():
            if name.endswith("-wal") and random.random() < 0.5:
                file.extend(bytes(random.randrange(_MOST_ZEROS)))
        return {name: bytes(file) for name, file in files.items()}


def _synced(events: list[Event]) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in events:
        if isinstance(event, Sync):
            found[event.file] = max(event.upto, found.get(event.file, 0))
    return found


def _apply(file: bytearray, event: Write | Truncate) -> None:
    if isinstance(event, Truncate):
        del file[event.size :]
        return
    if len(file) < event.offset:
        file.extend(bytes(event.offset - len(file)))
    file[event.offset : event.offset + len(event.data)] = event.data


def _apply_torn(file: bytearray, event: Write, random: Random) -> None:
    """Apply some sectors of a write."""
    start = event.offset
    end = start + len(event.data)
    while start < end:
        stop = min(end, start - start % _SECTOR + _SECTOR)
        if random.random() < 0.5:
            _apply(file, Write(event.file, start, event.data[start - event.offset : stop - event.offset]))
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
        self._disk.events.append(Remove(os.path.basename(filename)))


class _RecordedFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], disk: RecordingDisk) -> None:
        super().__init__("unix", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        self._name = os.path.basename(path)
        self._disk = disk
        disk.opened(path)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's
        super().xWrite(data, offset)
        self._disk.events.append(Write(self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's
        super().xTruncate(newsize)
        self._disk.events.append(Truncate(self._name, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's
        # The real disk is spared; what a sync promises is kept by the images.
        self._disk.events.append(Sync(self._name, len(self._disk.events)))
