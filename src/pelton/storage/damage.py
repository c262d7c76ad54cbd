"""What was found damaged in a store, remembered beside it until the store is verified.

Whoever finds damage may have opened the store to read only, and writing into a damaged file could make it worse: so
finds are lines of the file ``<store>-damage``. A line is the checksum of what was found, which counts it once; what it
was, ``pelton.verify`` tells, and an encrypted store shows nothing of itself. Whoever can write no such file, on a full
disk or in a folder that belongs to others, still reports what it has found.

**No find is lost between processes, although nobody waits for another: one that was stopped would hold up all.**
Whoever has written a line looks whether the file still has its name, and writes the line again if it does not. Whoever
replaces the file, or removes it, reads it once more afterwards: what was written until then is written again.

A file that is there and cannot be read, or has anything else in it, counts as one find: so does the beginning of a line
that a full disk has kept. A link, a pipe or a folder is no such file; nothing is read from one or written to it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from zlib import crc32

_SUFFIX: Final = "-damage"
_MOST: Final = 1000
_LINE_BYTES: Final = 9
_TRIES: Final = 10
_OTHER: Final = b""
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_lines: Final = re.compile(rb"^[0-9a-f]{8}\n", re.MULTILINE)


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


def _append(path: str, lines: Iterable[bytes]) -> None:
    # Those who may read the store may read this; where there is no store, there is nothing to remember.
    mode, data = os.stat(path).st_mode & 0o666, b"".join(lines)
    for _ in range(_TRIES):
        descriptor = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
        try:
            os.write(descriptor, data)
            if _has_its_name(path, descriptor):
                return
        finally:
            os.close(descriptor)


def _open(path: str, flags: int, mode: int = 0) -> int:
    """Return a descriptor of the file. Raises OSError, also for what is no regular file."""
    descriptor = os.open(path + _SUFFIX, flags | _FLAGS, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path + _SUFFIX} is no file")
    return descriptor


def _has_its_name(path: str, descriptor: int) -> bool:
    """Whether nobody has replaced or removed a file that is open."""
    with suppress(OSError):
        return os.path.samestat(os.stat(path + _SUFFIX, follow_symlinks=False), os.fstat(descriptor))
    return False


def damage_known(path: str) -> frozenset[bytes]:
    """Return what was found damaged, a line for each; an empty one for what cannot be read or was not written so."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except PermissionError:
        return frozenset({_OTHER})
    except OSError:
        return frozenset()
    try:
        return _read(descriptor)
    except OSError:
        return frozenset({_OTHER})
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> frozenset[bytes]:
    data = os.pread(descriptor, _MOST * _LINE_BYTES, 0)
    found = frozenset(_lines.findall(data))
    return found if found and not _lines.sub(b"", data) else found | {_OTHER}


def damage_verified(path: str, finds: list[str], before: frozenset[bytes]) -> None:
    """Remember the ``finds`` of a whole look at a store, and what others have found since ``before`` it began."""
    note_damage(path, *finds)
    if healed := before - {_line(find) for find in finds}:
        with suppress(OSError):
            descriptor = _open(path, os.O_RDONLY)
            try:
                # Of two that have verified the store at once, one does it.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _has_its_name(path, descriptor):
                    known = _read(descriptor)
                    _replace(path, known - healed)
                    if late := _read(descriptor) - known - {_OTHER}:
                        _append(path, late)
            finally:
                os.close(descriptor)


def _replace(path: str, lines: frozenset[bytes]) -> None:
    """Put a file with these lines in the place of the other, or none."""
    if not lines:
        os.unlink(path + _SUFFIX)
        return
    draft = f"{path}{_SUFFIX}-{os.getpid()}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, os.stat(path).st_mode & 0o666)
        try:
            os.write(descriptor, b"".join(lines))
        finally:
            os.close(descriptor)
        os.replace(draft, path + _SUFFIX)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def forget_damage(path: str) -> None:
    """Forget what was found damaged in another store that had the name of a new one."""
    with suppress(OSError):
        os.close(_open(path, os.O_RDONLY))
        os.unlink(path + _SUFFIX)
