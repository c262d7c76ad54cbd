"""Wakes other processes that have the same store open, without polling and without a port.

Every opener binds a datagram socket ``<file>-wake/<pid>-<n>``. After a commit, an opener sends one byte to each of the
others; a full socket buffer means that a wake-up is waiting there already, so errors are not retried. A socket whose
owner died refuses the byte, and the sender unlinks it. The byte carries no data: the woken process reads the store.

The list of peers is read again only when the folder's time stamp has changed. Without sockets (Windows, a folder that
is not writable or trusted, see ``wake_folder.py``), :attr:`WakeChannel.polled` is True and the engine falls back to
polling, with a warning. Some openers of a store may have a socket and others not. So a name shows whether it has a
socket; if not, its process is checked instead, and a process in another pid namespace (a container), which is not
visible from here, is never regarded as gone.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final

from pelton.storage.wake_folder import FolderRefused, WakeFolder, is_name

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
        """Return whether an opener of this name is alive."""
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
        """Return whether an opener of this name is alive."""
        with self._lock:
            return any(member.name == name for member in self._members.get(self._path, ()))

    def is_gone(self, name: str) -> bool:
        """Return whether an opener of this name is gone."""
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
