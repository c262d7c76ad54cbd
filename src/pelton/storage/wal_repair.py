"""The repair of the log after a failed sync: it rewrites what the kernel only pretends to have written.

The log is read frame by frame; each frame is verified by SQLite's own checksums (a chain over all frames since the log
was restarted, of the bytes in the file: encrypted pages too), and written back in place. Then a sync has to write every
page. This needs SQLite's write lock, so that no process appends to the log or restarts it; readers and other openers
are not disturbed. It can be repeated: a kill or a power loss at any moment leaves the frames as they are.

A frame that does not verify was dropped from the kernel's cache, and the medium has something older. No acknowledged
frame is lost: none was acknowledged from that frame on. But SQLite's index still points at it, so it must not be folded
into the store. If no other process has the store open, SQLite recovers the log up to that frame; otherwise it has to be
closed everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from struct import iter_unpack, unpack_from
from typing import Final

import apsw

from pelton.storage.faults import Fault
from pelton.storage.wal import Medium, SyncRecord, WriteFile

_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_PORTION: Final = 64
_MASK: Final = 0xFFFFFFFF
_BIG_ENDIAN: Final = 1
_FAILED: Final = "a sync of its log to disk has failed"
_ELSEWHERE: Final = (
    "if the disk does not recover, copy the file together with its -wal file to another disk, and open it there"
)
_CLOSE_ALL: Final = "close the store in every process, then open it again: nothing acknowledged is missing then"


def rewrite_log(descriptor: int, frames: int, write_file: WriteFile) -> bool:
    """Rewrite this many frames of a log; return False if one does not verify: later frames are then not written."""
    if not frames:
        return True
    header = os.pread(descriptor, _HEADER, 0)
    if len(header) < _HEADER:
        return False
    magic, _, page_size, _, *salts, first, second = unpack_from(">8I", header)
    order = ">" if magic & _BIG_ENDIAN else "<"
    sums = _checksum(header[: _HEADER - 8], order, 0, 0)
    if sums != (first, second):
        return False
    _write_all(descriptor, header, 0, write_file)
    size = _FRAME_HEADER + page_size
    for begin in range(0, frames, _PORTION):
        count = min(_PORTION, frames - begin)
        offset = _HEADER + begin * size
        portion = os.pread(descriptor, count * size, offset)
        verified = _verify(portion, count, size, order, salts, sums)
        if verified is None:
            return False
        sums = verified
        _write_all(descriptor, portion, offset, write_file)
    return True


def _verify(
    portion: bytes, count: int, size: int, order: str, salts: list[int], sums: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the checksums after these frames; None if one of them does not verify."""
    if len(portion) != count * size:
        return None
    for start in range(0, len(portion), size):
        frame = portion[start : start + size]
        _, _, *found, first, second = unpack_from(">6I", frame)
        sums = _checksum(frame[:8], order, *sums)
        sums = _checksum(frame[_FRAME_HEADER:], order, *sums)
        if found != salts or sums != (first, second):
            return None
    return sums


def _checksum(data: bytes, order: str, first: int, second: int) -> tuple[int, int]:
    for even, odd in iter_unpack(f"{order}2I", data):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second


def _write_all(descriptor: int, data: bytes, offset: int, write_file: WriteFile) -> None:
    while data:
        done = write_file(descriptor, data, offset)
        data, offset = data[done:], offset + done


def is_whole(
    path: str,
    record: SyncRecord,
    medium: Medium,
    writing: Callable[[], AbstractContextManager[None]],
    connect: Callable[[], apsw.Connection],
) -> bool:
    """Whether the next sync covers the whole log of a store. If not, open it again: SQLite may recover the log then.

    If the result of an earlier sync is unknown, because its process was killed or takes long, the repaired log is
    whole: this opener's descriptors report later failures, as those of all others do. After the repair of a failed
    sync, every opener has to open the store again. ``writing`` holds SQLite's write lock, ``connect`` opens another
    connection. Raises Fault of kind ``failed`` if the disk fails again.
    """
    suspects = record.suspects()
    if suspects:
        with writing():
            # Another process may have repaired it while this one waited.
            if suspects := record.remaining(suspects):
                if not _mend(path, _frames(connect()), medium):
                    return False
                record.clear(suspects)
    return not record.is_doubtful


def _frames(connection: apsw.Connection) -> int:
    """Return the number of frames in the log that SQLite counts on."""
    try:
        # SQLite reads the log's index at its first statement.
        connection.execute("PRAGMA schema_version")
        frames = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        assert frames >= 0, "an open store has a log"
        return frames
    finally:
        connection.close()


def _mend(path: str, frames: int, medium: Medium) -> bool:
    """Rewrite the log and sync it; return False if it cannot be read."""
    try:
        # Use a new descriptor: one that was open when a sync failed may still report that error.
        descriptor = os.open(os.path.realpath(path) + "-wal", os.O_RDWR | os.O_CLOEXEC)
        try:
            is_read = rewrite_log(descriptor, frames, medium.write)
            if is_read:
                medium.sync(descriptor)
            return is_read
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Fault("failed", path, f"{_FAILED}, and so did writing the log again ({error}); {_ELSEWHERE}") from error


def broken(path: str) -> Fault:
    """Return the fault for a log that could not be read again while others have the store open."""
    return Fault("failed", path, f"{_FAILED}, and part of the log can no longer be read; {_CLOSE_ALL}")
