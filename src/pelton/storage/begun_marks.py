"""Marks of deliveries that were begun: they outlive the process that made them, and cost no transaction.

Design: when a process dies, its deliveries alone do not tell what it has begun and what only waited there. So each
opener that begins deliveries maps a file of its own in the folder ``<store>-wake``. A mark is 24 bytes of that memory:
it costs no call of the system, and a killed process leaves it to the kernel. A power loss may take it: then the
delivery counts as not begun.

The owner holds a shared ``flock``. A file whose owner is gone stays until none of its deliveries is pending. Where
there is no such folder (a store in memory, a folder that is not trusted), the marks are this process's memory, and go
with it.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final
from weakref import WeakSet

from pelton.storage.wake import FolderRefused, WakeFolder

_NAME: Final = re.compile(r"begun-[0-9]{1,9}-[0-9]{1,9}")
_FORM: Final = struct.Struct("=QQQ")
_pack: Final = _FORM.pack_into
_NO_MARK: Final = bytes(_FORM.size)
_FIRST: Final = 256 * _FORM.size
_PATIENCE: Final = 100
_count = itertools.count(1)


Mark = tuple[int, int, int]
"""A delivery that was begun: of which stream, which message, and which delivery of it; all 0 for none."""


class BegunMarks:
    """The marks of one opener of the store ``path``, from any of its threads; ``folder`` is False for one in memory."""

    _in_memory: ClassVar[dict[str, dict[Mark, None]]] = {}

    def __init__(self, path: str, *, folder: bool) -> None:
        self._path = path
        self._has_folder = folder
        self._folder: WakeFolder | None = None
        self._name = ""
        self.file: mmap.mmap | None = None
        self._size = 0
        # Where each mark is, and where there is room: negative for one that this process remembers.
        self.places: dict[Mark, int] = {}
        self.free: list[int] = []
        self._lock = threading.Lock()
        _all.add(self)

    @property
    def remembered(self) -> dict[Mark, None]:
        """The marks of this process, of those that are in no file."""
        return self._in_memory.setdefault(self._path, {})

    def grown(self) -> int:
        """Return a free place, after making more; a negative one if there can be no file."""
        with self._lock:
            if self.free:
                return self.free.pop()
            with suppress(OSError, FolderRefused):
                self._grow()
            return self.free.pop() if self.free else -1

    def _grow(self) -> None:
        if not self._has_folder or (self.file is None and self._size):
            return
        descriptor = self._make_file() if self.file is None else self._open(self._name, os.O_RDWR)
        size = 2 * self._size or _FIRST
        try:
            # Written, so that a full disk is found here and not by a signal.
            os.pwrite(descriptor, bytes(size - self._size), self._size)
            # The mapping keeps the lock. An older one may be in use by another thread.
            self.file = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.free += range(size - _FORM.size, self._size - _FORM.size, -_FORM.size)
        self._size = size

    def _make_file(self) -> int:
        """Make the file, and return its descriptor, which holds the lock."""
        if self._folder is None:
            self._folder = WakeFolder(self._path)
        for _ in range(_PATIENCE):
            self._name = f"begun-{os.getpid()}-{next(_count)}"
            with suppress(FileExistsError, FileNotFoundError):
                descriptor = self._open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if os.fstat(descriptor).st_nlink:
                    self._folder.share(self._name)
                    return descriptor
                # Another opener took it for one of a dead process.
                os.close(descriptor)
        raise OSError(f"no file for marks can be made beside {self._path}")

    def _open(self, name: str, flags: int) -> int:
        assert self._folder is not None
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._folder.descriptor)

    # --- for what others have left

    def numbers_by_message(self, stream: int) -> dict[int, set[int]]:
        """Return the numbers of the deliveries of a stream that are marked, by message; of all openers."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        marks = itertools.chain(list(self._in_memory.get(self._path, ())), _marks_beside(self._path))
        for its_stream, seq, number in marks:
            if its_stream == stream:
                found[seq].add(number)
        return found

    def sweep(self, is_pending: Callable[[int, int], bool]) -> None:
        """Remove the files of openers that are gone, once none of their messages is pending in its stream."""
        if not self._has_folder:
            return
        for name in _files_beside(self._path):
            with suppress(OSError):
                descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not any(is_pending(stream, seq) for stream, seq, _ in _marks_in(descriptor) if stream):
                        os.unlink(name)
                finally:
                    os.close(descriptor)

    def disown(self) -> None:
        """Have no part in the file any more: this is a copy of its process, which settles nothing."""
        self.file, self.places, self.free, self._has_folder = None, {}, [], False

    def close(self) -> None:
        """Leave: what is marked stays for others. Idempotent."""
        if self._folder is None:
            return
        if self.file is not None:
            self.file = None
            if not self.places:
                with suppress(OSError):
                    os.unlink(self._name, dir_fd=self._folder.descriptor)
        self._folder.close()
        self._folder = None


_all: Final[WeakSet[BegunMarks]] = WeakSet()


def _disown_all() -> None:
    for marks in list(_all):
        marks.disown()


os.register_at_fork(after_in_child=_disown_all)


class StreamMarks:
    """The marks of one stream's deliveries."""

    __slots__ = ("_marks", "_stream")

    def __init__(self, marks: BegunMarks, stream: int) -> None:
        self._marks = marks
        self._stream = stream

    def mark(self, seq: int, number: int) -> None:
        """Mark a delivery of a message, by its number: it is about to be begun."""
        marks, mark = self._marks, (self._stream, seq, number)
        if mark in marks.places:
            return
        try:
            place = marks.free.pop()
        except IndexError:
            place = marks.grown()
        marks.places[mark] = place
        if place < 0 or marks.file is None:
            marks.remembered[mark] = None
        else:
            _pack(marks.file, place, *mark)

    def unmark(self, deliveries: Collection[tuple[int, int]]) -> None:
        """Forget deliveries, each a message and its number, begun or not: they are settled."""
        stream, marks = self._stream, self._marks
        found = [marks.places.pop((stream, seq, number), None) for seq, number in deliveries]
        # Afterwards: another thread may have made it larger.
        file = marks.file
        if file is None or -1 in found:
            for seq, number in deliveries:
                marks.remembered.pop((stream, seq, number), None)
        if file is not None:
            free = [place for place in found if place is not None and place >= 0]
            for place in free:
                file[place : place + _FORM.size] = _NO_MARK
            marks.free += free

    def numbers_by_message(self) -> dict[int, set[int]]:
        """Return the numbers of the marked deliveries, by message; of all openers of the store."""
        return self._marks.numbers_by_message(self._stream)


def _files_beside(path: str) -> list[str]:
    folder = os.path.abspath(path) + "-wake"
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except OSError:
        return []


def _marks_beside(path: str) -> Iterator[Mark]:
    for name in _files_beside(path):
        with suppress(OSError):
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                yield from _marks_in(descriptor)
            finally:
                os.close(descriptor)


def _marks_in(descriptor: int) -> Iterator[Any]:
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return _FORM.iter_unpack(data[: len(data) // _FORM.size * _FORM.size])
