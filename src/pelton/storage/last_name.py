"""The path by which a store was last opened, recorded on the file itself, as an extended attribute.

A process that was killed leaves a log beside that path. If the file is then opened by another name (a hard link, or
because it was moved without its log), the log, and the messages acknowledged last, are not found there. The attribute
records where to look. File systems without extended attributes record nothing.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

_ATTRIBUTE: Final = "user.pelton.path"


def note_path(descriptor: int, path: str) -> None:
    """Record on an open file the path by which it is used."""
    note = _note(descriptor, path)
    if sys.platform == "linux" and _read(descriptor) != note:
        with suppress(OSError):
            os.setxattr(descriptor, _ATTRIBUTE, note)


def log_left_behind(descriptor: int, path: str) -> str | None:
    """Return the path of a log that belongs to a file, but is beside another name of it; None if there is none."""
    inode, _, last = _read(descriptor).partition(b":")
    found = os.fstat(descriptor)
    if inode != b"%d" % found.st_ino or last == os.fsencode(path):
        return None
    try:
        taken = not os.path.samestat(os.stat(last), found)
    except OSError:
        taken = False
    log = os.fsdecode(last) + "-wal"
    try:
        return log if os.stat(log).st_size and not taken else None
    except OSError:
        return None


def _note(descriptor: int, path: str) -> bytes:
    # The inode number tells the file from a copy with the same attributes.
    return b"%d:" % os.fstat(descriptor).st_ino + os.fsencode(path)


def _read(descriptor: int) -> bytes:
    if sys.platform != "linux":
        return b""
    try:
        return os.getxattr(descriptor, _ATTRIBUTE)
    except OSError:
        return b""
