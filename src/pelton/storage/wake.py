"""What the processes of a store leave in the folder beside it: sockets to be woken by, and marks of what has begun.

Others that have the store open are woken without polling and without a port.

**The folder** ``<store>-wake`` is used by its descriptor and never by its name alone. Something else may have that
name: from an unpacked archive, or from another user of a shared folder. So links are not followed, a stranger's folder
is refused, and in a folder with other contents only sockets with our names are touched. Everyone who may write to the
store may use what is created here.

Every opener binds a datagram socket ``<file>-wake/<pid>-<n>``. After a commit, an opener sends one byte to each of the
others; a full socket buffer means that a wake-up is waiting there already, so errors are not retried. A socket whose
owner died refuses the byte, and the sender unlinks it. The byte carries no data: the woken process reads the store.

The list of peers is read again only when the folder's time stamp has changed. Without sockets (Windows, a folder that
is not writable or trusted), :attr:`WakeChannel.polled` is True and the engine falls back to polling, with a warning.
Some openers of a store may have a socket and others not. So a name shows whether it has a socket; if not, its process
is checked instead, and a process in another pid namespace (a container), which is not visible from here, is never
regarded as gone.

**Marks of deliveries that were begun outlive the process that made them, and cost no transaction.** When a process
dies, its deliveries alone do not tell what it has begun and what only waited there. So each opener that begins
deliveries maps a file of its own in the folder. A mark is 24 bytes of that memory: it costs no call of the system, and
a killed process leaves it to the kernel. A power loss may take it: then the delivery counts as not begun. The owner
holds a shared ``flock``. A file whose owner is gone stays until none of its deliveries is pending. Where there is no
such folder (a store in memory, a folder that is not trusted), the marks are this process's memory, and go with it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import logging
import mmap
import os
import re
import socket
import stat
import struct
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final
from weakref import WeakSet

from pelton.storage.store_file import access_of

_NAME: Final = re.compile(r"[0-9]{1,9}-[0-9]{1,18}")
_LONGEST_ADDRESS: Final = 100


class FolderRefused(Exception):  # noqa: N818  # not an error: polling is another way to notice what others write
    """The folder cannot be trusted; the text is the reason."""


def is_name(name: str) -> bool:
    """Return whether this may be the name of a socket of ours."""
    return _NAME.fullmatch(name) is not None


class WakeFolder:
    """The folder, created if it is missing. Raises FolderRefused, OSError."""

    def __init__(self, store: str) -> None:
        self.path: str = os.path.abspath(store) + "-wake"
        self._access = access_of(store)
        try:
            os.mkdir(self.path, self._access.folder_mode)
            made = True
        except FileExistsError:
            made = False
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            raise FolderRefused("it is a link or a file, not a folder") from None
        self._release = weakref.finalize(self, os.close, self._fd)
        self._is_ours = self._examine(made=made)

    def _examine(self, *, made: bool) -> bool:
        """Return whether an opener of the store created it; raise FolderRefused if it cannot be trusted."""
        found = os.fstat(self._fd)
        if made:
            self._hand_over(self._fd, found)
            with suppress(OSError):
                os.fchmod(self._fd, self._access.folder_mode)
        elif not self._access.trusts(found, os.geteuid()):
            raise FolderRefused(f"it belongs to another user (uid {found.st_uid})")
        return made or stat.S_IMODE(found.st_mode) == self._access.folder_mode

    def _hand_over(self, made: int | str, found: os.stat_result) -> None:
        """Give what we created to the store's owner and group, as far as permitted, so that they can use it."""
        access = self._access
        if (found.st_uid, found.st_gid) != (access.uid, access.gid):
            user = access.uid if os.geteuid() == 0 else -1
            with suppress(OSError):
                if isinstance(made, int):
                    os.chown(made, user, access.gid)
                else:
                    os.chown(made, user, access.gid, dir_fd=self._fd, follow_symlinks=False)

    @property
    def descriptor(self) -> int:
        return self._fd

    @property
    def stamp(self) -> int:
        """The time when a name in it was last created or removed."""
        return os.fstat(self._fd).st_mtime_ns

    def address(self, name: str) -> str:
        """Return an address short enough for a socket: long paths go through the folder's descriptor."""
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
            return path
        return f"/proc/self/fd/{self._fd}/{name}"

    def adopt(self, name: str) -> None:
        """Let everyone who may write to the store use a new socket. Raises FileNotFoundError if it is not here."""
        if self._socket(name) is None:
            # The folder was replaced between our opening it and binding in it.
            raise FileNotFoundError(name)
        self.share(name)

    def share(self, name: str) -> None:
        """Let everyone who may write to the store use what we created here."""
        self._hand_over(name, os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        with suppress(OSError):
            os.chmod(name, self._access.socket_mode, dir_fd=self._fd)

    def names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._fd) if is_name(name) and self._socket(name) is not None]
        except OSError:
            return []

    def remove(self, name: str) -> None:
        """Remove a socket; anything else is left alone."""
        if is_name(name) and self._socket(name) is not None:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._fd)

    def _socket(self, name: str) -> os.stat_result | None:
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return None
        return found if stat.S_ISSOCK(found.st_mode) else None

    def close(self) -> None:
        """Release the folder, and remove it if it is empty and an opener of the store created it."""
        with suppress(OSError):
            if self._is_ours and os.path.samestat(os.fstat(self._fd), os.lstat(self.path)):
                os.rmdir(self.path)
        self._release()


_log: Final = logging.getLogger("pelton.storage")
_count = itertools.count(1)
# Stores whose folder was warned about: all openers of a process use the same folder.
_warned: set[str] = set()
_TICK_S: Final = 0.1
_BIND_TRIES: Final = 100
_DIGITS: Final = 6
# The suffix of the names of openers without a socket.
_POLLED: Final = "-polled"


def _new_name() -> str:
    """Return a name for an opener: its process id, and a number that begins with its pid namespace."""
    return f"{os.getpid()}-{_namespace()}{next(_count) % 10**_DIGITS:0{_DIGITS}d}"


def _namespace() -> str:
    """Return the number of this process's pid namespace; empty if the system has none."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def may_run(name: str) -> bool:
    """Return False if no opener has this name, or its process is known not to run."""
    if not is_name(name.removesuffix(_POLLED)):
        return False
    process, number = name.removesuffix(_POLLED).split("-")
    namespace = number[:-_DIGITS]
    return bool(namespace and namespace != _namespace()) or _runs(int(process))


class WakeChannel:
    """One opener's end of the wake-up channel of a store file; belongs to one event loop.

    ``monotonic`` counts seconds: the wall clock may be wrong.
    """

    name: str

    def __init__(self, path: str, on_wake: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._path = path
        self.name = _new_name()
        self._on_wake = on_wake
        self._folder: WakeFolder | None = None
        self._stamp = 0
        self._stamp_since = 0.0
        self._trusted = False
        self._peers: list[str] = []
        self._socket: socket.socket | None = None
        self.polled: bool = not (hasattr(socket, "AF_UNIX") and self._join())
        if self.polled:
            self.name += _POLLED

    def _join(self) -> bool:
        # Another opener that leaves last may remove the folder between our creating it and binding in it.
        for _ in range(_BIND_TRIES):
            try:
                self._bind()
            except FileNotFoundError:
                continue
            except (OSError, FolderRefused) as error:
                if isinstance(error, FolderRefused) or error.errno != errno.EADDRINUSE:
                    self._warn(error)
                    return False
                # Another process with our pid died and left its socket; in a container, pids are reused.
                self.name = _new_name()
                continue
            return True
        return False

    def _warn(self, error: Exception) -> None:
        if self._path not in _warned:
            _warned.add(self._path)
            _log.warning(
                "store %r: the folder %r cannot be used to wake other processes (%s); this process polls the store "
                "instead. Remove or rename the folder, then open the store again",
                self._path,
                self._path + "-wake",
                error,
                extra={"store": self._path},
            )

    def _bind(self) -> None:
        self._leave_folder()
        self._folder = WakeFolder(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            sock.bind(self._folder.address(self.name))
            self._folder.adopt(self.name)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def _leave_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _readable(self) -> None:
        assert self._socket is not None
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(16)
        self._on_wake()

    def wake_others(self) -> None:
        """Send one byte to every other opener of the store."""
        if self._socket is None:
            return
        for name in self._others():
            self.wake(name)

    def wake(self, name: str) -> None:
        """Send one byte to another opener; if it has died, remove its socket."""
        if self._socket is None or self._folder is None or not is_name(name):
            return
        try:
            self._socket.sendto(b"\x01", self._folder.address(name))
        except (ConnectionRefusedError, FileNotFoundError):
            self._folder.remove(name)
        except OSError:
            return

    def is_alive(self, name: str) -> bool:
        if self._socket is None or name.endswith(_POLLED):
            return may_run(name)
        return name == self.name or name in self._others()

    def is_gone(self, name: str) -> bool:
        """Return whether an opener of this name is known to be gone; sends a wake-up, to detect killed ones."""
        if self._socket is None:
            # A pid proves little: it may belong to another container, or be reused by another process.
            return False
        self.wake(name)
        return not self.is_alive(name)

    def _others(self) -> list[str]:
        assert self._folder is not None
        stamp = self._folder.stamp
        if stamp != self._stamp:
            self._stamp, self._stamp_since, self._trusted = stamp, self._monotonic(), False
        if not self._trusted:
            # A stamp's tick is some milliseconds: a socket bound in the same tick as our reading would be missed,
            # so trust a stamp only once it is older than that.
            self._trusted = self._monotonic() - self._stamp_since > _TICK_S
            self._peers = [name for name in self._folder.names() if name != self.name]
        return self._peers

    def close(self) -> None:
        """Leave the channel; the last to leave removes the folder."""
        if self._socket is not None:
            # This removes the sockets of killed openers.
            self.wake_others()
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            assert self._folder is not None
            self._folder.remove(self.name)
        self._leave_folder()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It runs, but belongs to another user.
        return True
    return True


class MemoryChannel:
    """The same for a memory store.

    Its openers are event loops of this process, perhaps in several threads.
    """

    _members: ClassVar[dict[str, list[MemoryChannel]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()
    polled = False

    def __init__(self, path: str, on_wake: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self._path = path
        self.name: str = f"{os.getpid()}-{next(_count)}"
        self._on_wake = on_wake
        self._loop = asyncio.get_running_loop()
        self._is_held = False
        with self._lock:
            self._members.setdefault(path, []).append(self)

    def is_alive(self, name: str) -> bool:
        with self._lock:
            return any(member.name == name for member in self._members.get(self._path, ()))

    def is_gone(self, name: str) -> bool:
        return not self.is_alive(name)

    def wake_others(self) -> None:
        """Wake every other opener of the store on its own event loop."""
        with self._lock:
            others = [member for member in self._members.get(self._path, ()) if member is not self]
        for member in others:
            # A closing loop needs no wake-up.
            with suppress(RuntimeError):
                member._loop.call_soon_threadsafe(member._on_wake)

    def hold(self, held: bool) -> None:
        """Note whether this opener holds the store: the others can't read it then. They are woken when it ends."""
        self._is_held = held
        if not held:
            self.wake_others()

    @property
    def is_held(self) -> bool:
        """Whether any opener holds the store."""
        with self._lock:
            return any(member._is_held for member in self._members.get(self._path, ()))

    def wake(self, name: str) -> None:
        """Do nothing: openers in one process do not die alone."""

    def close(self) -> None:
        with self._lock:
            members = self._members.get(self._path, [])
            if self in members:
                members.remove(self)
            if not members:
                self._members.pop(self._path, None)


_MARKS_NAME: Final = re.compile(r"begun-[0-9]{1,9}-[0-9]{1,9}")
_FORM: Final = struct.Struct("=QQQ")
_pack: Final = _FORM.pack_into
_NO_MARK: Final = bytes(_FORM.size)
_FIRST: Final = 256 * _FORM.size
_PATIENCE: Final = 100
_files = itertools.count(1)


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
            self._name = f"begun-{os.getpid()}-{next(_files)}"
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
        return self._marks.numbers_by_message(self._stream)


def _files_beside(path: str) -> list[str]:
    folder = os.path.abspath(path) + "-wake"
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if _MARKS_NAME.fullmatch(name)]
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
