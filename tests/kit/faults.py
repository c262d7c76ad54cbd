"""Disks that fail on demand, in place of an engine's real writes and syncs.

Pass them as ``EngineSettings(path, sync_file=FaultySync())`` and ``EngineSettings(path, vfs=full_disk.vfs)``. A
FaultySync never really syncs: tests need not survive a power loss, and are faster without.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

import apsw

_SYSTEM_CALLS: Final = {"xNextSystemCall", "xGetSystemCall", "xSetSystemCall"}


class FaultySync:
    """A ``sync_file`` that succeeds until :attr:`broken`, and counts its calls in :attr:`calls`.

    While :attr:`gate` is not set, a sync on another thread than the main one waits for it, as on a slow disk (the
    engine syncs large groups on a thread of its own).
    """

    def __init__(self) -> None:
        """Create a disk that works, without delay."""
        self.broken = False
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, descriptor: int) -> None:
        """Pretend to sync. Raises OSError (input/output error) once broken."""
        self.calls += 1
        if threading.current_thread() is not threading.main_thread():
            self.gate.wait()
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class FullDisk:
    """A disk that can be filled, for all connections opened through :attr:`vfs`.

    Every write takes space, even one that overwrites, as on copy-on-write file systems.
    """

    def __init__(self, name: str) -> None:
        """Create a disk with free space. ``name`` is unique in the process; close the disk after its stores."""
        self._room: int | None = None
        self._vfs = _Writing(name, self)
        self.vfs = f"multipleciphers-{name}"

    def fill(self, room: int = 0) -> None:
        """Leave ``room`` bytes of free space."""
        self._room = room

    def empty(self) -> None:
        """Free the space again."""
        self._room = None

    def take(self, size: int) -> None:
        """Take space for a write. Raises apsw.FullError if there is too little."""
        if self._room is None:
            return
        if size > self._room:
            raise apsw.FullError("database or disk is full")
        self._room -= size

    def close(self) -> None:
        """Forget the VFS."""
        self._vfs.unregister()


class _Writing(apsw.VFS):
    def __init__(self, name: str, disk: FullDisk) -> None:
        self._disk = disk
        super().__init__(name, "unix", exclude=_SYSTEM_CALLS)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's
        return _WrittenFile(name, flags, self._disk)


class _WrittenFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], disk: FullDisk) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's
        self._disk.take(len(data))
        super().xWrite(data, offset)
