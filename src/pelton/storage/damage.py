"""What was found damaged in a store, remembered beside it until the store is verified.

Whoever finds damage may have opened the store to read only, and writing into a damaged file could make it worse: so
finds are lines of the file ``<store>-damage``. A line is the checksum of what was found, which counts it once; what it
was, ``pelton.verify`` tells, and an encrypted store shows nothing of itself. Whoever can write no such file, on a full
disk or in a folder that belongs to others, still reports what it has found.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final
from zlib import crc32

_SUFFIX: Final = "-damage"
_MOST: Final = 1000
_LINE_BYTES: Final = 9


def note_damage(path: str, *finds: str) -> None:
    """Remember that something of the store ``path`` was found damaged, as `verify` words it."""
    with suppress(OSError):
        known = damage_known(path)
        if new := dict.fromkeys(line for find in finds if (line := _line(find)) not in known):
            _append(path, list(new)[: max(_MOST - len(known), 0)])


def note_damaged_message(path: str, stream: str, seq: int) -> None:
    """Remember that a message of a store does not match its checksum."""
    note_damage(path, f"stream {stream!r}: message {seq} does not match its checksum")


def _line(find: str) -> bytes:
    return b"%08x\n" % crc32(find.encode(errors="replace"))


def _append(path: str, lines: list[bytes]) -> None:
    # Those who may read the store may read this; where there is no store, there is nothing to remember.
    mode = os.stat(path).st_mode & 0o666
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path + _SUFFIX, flags, mode)
    try:
        os.write(descriptor, b"".join(lines))
    finally:
        os.close(descriptor)


def damage_known(path: str) -> frozenset[bytes]:
    """Return what was found damaged, a line for each; an empty one if a full disk has kept nothing else."""
    try:
        with open(path + _SUFFIX, "rb") as file:
            return frozenset(file.read(_MOST * _LINE_BYTES).splitlines(keepends=True)) or frozenset({b""})
    except OSError:
        return frozenset()


def damage_verified(path: str, finds: list[str], before: frozenset[bytes]) -> None:
    """Remember the ``finds`` of a whole look at a store, and what others have found since ``before`` it began."""
    since = damage_known(path) - before
    with suppress(OSError):
        if before:
            os.unlink(path + _SUFFIX)
        if since:
            _append(path, sorted(since))
    note_damage(path, *finds)
