"""Marks a file, for all processes of this machine, with the name by which a process uses it.

Each name has a byte far beyond the end of any file, and each process that uses the file by that name holds a shared
lock on the byte: an *open file description* lock, which belongs to a descriptor, is released by the kernel when its
process dies, and does not conflict with SQLite's own locks. If another byte of the region is locked, the file is in use
by another name. Without such locks in the file system or operating system, nothing is detected.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from hashlib import blake2b
from typing import Final

if sys.platform == "linux":
    from errno import EACCES, EAGAIN
    from fcntl import F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_UNLCK, F_WRLCK, fcntl

# Offsets are signed 64-bit numbers; SQLite's own locks are at 1 GiB.
NAMES: Final = 1 << 62
LOGS: Final = NAMES + (1 << 61)
_SPAN: Final = 1 << 60
_ALONE: Final = LOGS + _SPAN
_FORM: Final = "hhqqi0q"


class SharedByte:
    """The mark of a name on the file that ``descriptor`` has open, in a region of names."""

    def __init__(self, descriptor: int, region: int, name: object) -> None:
        self._descriptor = descriptor
        self._region = region
        digest = blake2b(repr(name).encode("utf-8", "surrogateescape"), digest_size=8).digest()
        self._place = region + 1 + int.from_bytes(digest) % (_SPAN - 2)

    def hold(self) -> None:
        """Mark the file as used by this name."""
        self._set(locked=True)

    def let_go(self) -> None:
        """Remove the mark. Closing the descriptor does the same, once forked children have closed it, too."""
        self._set(locked=False)

    def has_rival(self) -> bool:
        """Return whether another process uses the file by another name of the region."""
        end = self._region + _SPAN
        return self._is_locked(self._region, self._place) or self._is_locked(self._place + 1, end)

    def rivals(self) -> str:
        """Return which processes use the file by another name of the region, as far as this user may know."""
        others = range(self._region, self._region + _SPAN)
        found = {pid for pid, place in _holders(self._descriptor) if place in others and place != self._place}
        named = ["this process" if pid == os.getpid() else f"process {pid}" for pid in sorted(found)]
        return " and ".join(named) or "another process"

    if sys.platform == "linux":

        def _set(self, *, locked: bool) -> None:
            with suppress(OSError):
                kind = F_RDLCK if locked else F_UNLCK
                fcntl(self._descriptor, F_OFD_SETLK, struct.pack(_FORM, kind, 0, self._place, 1, 0))

        def _is_locked(self, start: int, end: int) -> bool:
            asked = struct.pack(_FORM, F_WRLCK, 0, start, end - start, 0)
            try:
                found: int = struct.unpack(_FORM, fcntl(self._descriptor, F_OFD_GETLK, asked))[0]
            except OSError:
                return False
            return found != F_UNLCK

    else:

        def _set(self, *, locked: bool) -> None:
            """Do nothing: there are no such locks."""

        def _is_locked(self, start: int, end: int) -> bool:
            return False


def _holders(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the processes of this user that hold such locks on a file, with the place of each.

    F_OFD_GETLK names no process, as none owns such a lock; but Linux lists the locks of every open file.
    """
    inode = str(os.fstat(descriptor).st_ino)
    for listed in glob("/proc/[0-9]*/fdinfo/*"):
        with suppress(OSError), open(listed) as lines:
            for words in (line.split() for line in lines if line.startswith("lock:")):
                if words[2] == "OFDLCK" and words[6].rpartition(":")[2] == inode:
                    yield int(listed.split("/")[2]), int(words[7])


def lock_alone(descriptor: int) -> bool:
    """Lock a file exclusively for this descriptor, until it is closed; return False if it is locked already."""
    if sys.platform == "linux":
        try:
            fcntl(descriptor, F_OFD_SETLK, struct.pack(_FORM, F_WRLCK, 0, _ALONE, 1, 0))
        except OSError as error:
            return error.errno not in (EACCES, EAGAIN)
    return True
