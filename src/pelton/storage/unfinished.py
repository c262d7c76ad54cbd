"""Writes a file under another name until it is complete, readable for those who may read its source.

The other name, ``<target>-unfinished``, is locked while it is written: two copies to one target do not mix, and what a
killed process left is overwritten. A link, or anything else that is not a regular file, is not touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pelton.storage.faults import Fault
from pelton.storage.shared_byte import lock_alone

_TRIES: Final = 100
_BESIDE: Final = ("-wal", "-shm", "-journal")


def copied_mode(source: str) -> int:
    """Return the permissions of a copy: those of its source, and write permission for its owner."""
    return (stat.S_IMODE(os.stat(source).st_mode) & 0o666) | 0o600


@contextmanager
def unfinished(target: str, source: str) -> Iterator[str]:
    """Yield the name of a new, empty file for a copy of ``source``; sync and rename it after the block.

    Raises Fault of kind ``settings`` if ``target`` exists, ``busy`` if another copy to it is being written.
    """
    _check_free(target)
    file = target + "-unfinished"
    descriptor = _taken(target, file)
    try:
        os.fchmod(descriptor, copied_mode(source))
        yield file
        sync_file(file)
        _check_free(target)
        os.replace(file, target)
        file = target
        sync_file(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        _forget(file, "", *_BESIDE)
        raise
    finally:
        # Not before: another process must not mistake the file for an abandoned one.
        os.close(descriptor)


def _check_free(target: str) -> None:
    if os.path.lexists(target):
        raise Fault("settings", target, "the file exists already; name another, or remove it")


def _taken(target: str, file: str) -> int:
    """Return a descriptor of the file, which is empty and locked for this process."""
    for _ in range(_TRIES):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if os.path.islink(file) or os.path.isdir(file):
                raise _in_the_way(target, file) from error
            raise
        try:
            if _is_ours(target, file, descriptor):
                os.ftruncate(descriptor, 0)
                _forget(file, *_BESIDE)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise _in_the_way(target, file)


def _is_ours(target: str, file: str, descriptor: int) -> bool:
    """Return whether the file is locked and still has its name; False if it was just renamed or removed."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise _in_the_way(target, file)
    if not lock_alone(descriptor):
        raise Fault("busy", target, f"another copy to it is being written, to {file}; wait for it")
    try:
        return os.path.samestat(os.lstat(file), found)
    except FileNotFoundError:
        return False


def _in_the_way(target: str, file: str) -> Fault:
    return Fault("settings", target, f"{file}, the temporary name of the copy, is something else; remove or rename it")


def _forget(file: str, *suffixes: str) -> None:
    for suffix in suffixes:
        with suppress(FileNotFoundError):
            os.unlink(file + suffix)


def sync_file(path: str) -> None:
    """Force a file, or a folder's names, to the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
