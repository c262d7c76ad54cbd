"""Disks that are filled and emptied: a small file system if one can be mounted, and one that only pretends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from pelton.connect import Jet
from tests.kit.faults import FullDisk
from tests.storage.stores import open_engine

_SIZE: Final = 48 << 20
_numbers = count()


class Disk(Protocol):
    """A folder on a disk whose free space we control."""

    folder: Path

    def open(self, path: Path, **settings: Any) -> Jet:
        """Open a store on the disk."""

    def fill(self, room: int) -> None:
        """Leave that many bytes of room."""

    def empty(self) -> None:
        """Make room again."""


class SmallDisk:
    """A real file system, filled by a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def open(self, path: Path, **settings: Any) -> Jet:
        return open_engine(path, **settings)

    def fill(self, room: int) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        left = os.statvfs(self.folder)
        held = self._ballast.stat().st_size - max(room - left.f_bavail * left.f_frsize, 0)
        os.truncate(self._ballast, max(held, 0))

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)


class PretendingDisk(FullDisk):
    """A disk that only pretends to be full: available everywhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"pretending-{next(_numbers)}")
        self.folder = folder

    def open(self, path: Path, **settings: Any) -> Jet:
        return open_engine(path, vfs=self.vfs, **settings)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount a small file system, or skip the test."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def pretending_disk(folder: Path) -> Iterator[PretendingDisk]:
    folder.mkdir()
    disk = PretendingDisk(folder)
    try:
        yield disk
    finally:
        disk.close()
