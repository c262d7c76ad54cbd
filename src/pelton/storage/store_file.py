"""The open file of a store: private to its user, used under only one name, and checked for replacement.

**The shared byte** marks a file, for all processes of this machine, with the name by which a process uses it. Each name
has a byte far beyond the end of any file, and each process that uses the file by that name holds a shared lock on the
byte: an *open file description* lock, which belongs to a descriptor, is released by the kernel when its process dies,
and does not conflict with SQLite's own locks. If another byte of the region is locked, the file is in use by another
name. Without such locks in the file system or operating system, nothing is detected.

**The last name** is the path by which a store was last opened, recorded on the file itself, as an extended attribute. A
process that was killed leaves a log beside that path. If the file is then opened by another name (a hard link, or
because it was moved without its log), the log, and the messages acknowledged last, are not found there. The attribute
records where to look. File systems without extended attributes record nothing.

A store is its file and the log beside it, and the log is found by the file's name. So one file under two names (hard
links, a file that is moved while it is open, one that a container mounts by itself) has two logs, and each loses what
the other writes. And everything written to a file after its name is removed is lost. SQLite notices neither. Hence:

- Every opener holds a :class:`SharedByte` of the file for its name, and one for the very log found there. If another
name, or another log, is in use, the store does not open.
- The file records its name (its last name), by which the log of a killed process is found.
- Before acknowledging, every opener checks that its path still leads to the file and the log that it has open.

All connections of the process share one descriptor of the file, which outlives them: closing any descriptor of a file
drops all POSIX locks that the process has on it, SQLite's as well. A connection that nobody closes is closed by the
garbage collector (:func:`close_collected`): SQLite removes the log with its last connection, and our marks must go with
it, or nobody could open the store until this process ends.

**The note** ``<file>-standby`` is beside a standby, and beside a store that was one (``standby.py``).
"""

from __future__ import annotations

import logging
import os
import stat
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from glob import glob
from hashlib import blake2b
from typing import Final, Literal

import apsw
import msgspec

from pelton.runtime import pause, stopwatch
from pelton.storage.damage import forget_damage
from pelton.storage.faults import Fault

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


OWNER_ONLY: Final = 0o600

_log: Final = logging.getLogger("pelton.storage")
_TRIES: Final = 100
_BESIDE: Final = ("-wal", "-shm", "-journal")
# A process that is closing the store removes its log, and its locks disappear a moment later.
_CLOSING_S: Final = 1.0
_RETRY_S: Final = 0.001
_TICK_S: Final = 0.1
_ONE_NAME: Final = (
    "it is open by another name in {}: a hard link, a file that was moved while it was open, or one that is mounted by "
    "itself. Each name has a log of its own, so that messages would be lost. Use one name everywhere"
)
_OTHER_LOG: Final = (
    "its log was removed, or moved, while it is open in {}: close it there first, which folds the log into the file"
)

FileId = tuple[int, int]


def file_id(path: str | int) -> FileId | None:
    """Return the identity of the file at a path or descriptor; None if it does not exist."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


class _Inode(msgspec.Struct, eq=False):
    """A file that any connections of this process have open; ``spare`` descriptors are closed with it."""

    id: FileId
    descriptor: int
    users: int = 0
    spare: list[int] = msgspec.field(default_factory=list)
    name: object = None
    log: object = None
    readers: int = 0


_inodes: dict[FileId, _Inode] = {}
_guard = threading.Lock()
_collected: Final[deque[Callable[[], None]]] = deque()
_warned: set[FileId] = set()


@contextmanager
def _guarding() -> Iterator[None]:
    try:
        with _guard:
            yield
    finally:
        _close_collected()


def close_collected(close: Callable[[], None]) -> None:
    """Close a connection that the garbage collector found, now or soon: it runs anywhere, in a guarded block, too."""
    _collected.append(close)
    _close_collected()


def _close_collected() -> None:
    # If the guard is taken, whoever holds it comes here next.
    while _collected and not _guard.locked():
        with suppress(IndexError, apsw.Error, OSError, Fault):
            _collected.popleft()()


def _after_fork_in_child() -> None:
    global _guard
    _collected.clear()
    # The parent keeps the locks: it has the same descriptors.
    for inode in _inodes.values():
        for descriptor in (inode.descriptor, *inode.spare):
            os.close(descriptor)
    _inodes.clear()
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class StoreFile:
    """The file at ``path`` for one connection, created with the permissions ``mode`` if it is missing.

    ``read_only``: it must exist, and neither it nor its attributes are written.

    Raises Fault of kind ``settings`` or ``foreign`` if it must not be opened, OSError.
    """

    def __init__(self, path: str, mode: int, *, read_only: bool = False) -> None:
        self._path = os.path.realpath(path)
        self._is_read_only = read_only
        self._folder = os.path.dirname(self._path)
        self._seen = 0
        self._seen_since = 0.0
        self._is_trusted = False
        self._log: FileId | None = None
        self._closed = False
        _check_beside(self._path)
        _refuse_orphan(self._path)
        with _guarding():
            self._inode = _enter(self._path, None if read_only else mode)
            try:
                self._claim_name()
            except BaseException:
                self._release()
                raise

    def _claim_name(self) -> None:
        inode, name = self._inode, (file_id(self._folder), os.path.basename(self._path))
        byte = SharedByte(inode.descriptor, NAMES, name)
        if inode.name not in (None, name):
            raise Fault("settings", self._path, _ONE_NAME.format("this process"))
        if inode.name is None:
            byte.hold()
            inode.name = name
        if byte.has_rival():
            raise Fault("settings", self._path, _ONE_NAME.format(byte.rivals()))
        if (log := log_left_behind(inode.descriptor, self._path)) is not None:
            detail = (
                f"its log, which may hold the last messages, is beside another name of the file: {log}. Open the "
                "store once by that name and close it, or move the log here with it"
            )
            raise Fault("settings", self._path, detail)
        if not self._is_read_only:
            note_path(inode.descriptor, self._path)

    def claim_log(self) -> None:
        """Record which log SQLite has opened beside the file. Raises Fault if others have another log open."""
        deadline = stopwatch() + _CLOSING_S
        while not self._is_log_claimed():
            if stopwatch() > deadline:
                byte = SharedByte(self._inode.descriptor, LOGS, self._log_there())
                raise Fault("settings", self._path, _OTHER_LOG.format(byte.rivals()))
            pause(_RETRY_S)

    def _log_there(self) -> tuple[FileId | None, FileId | None]:
        return file_id(self._path + "-wal"), file_id(self._path + "-shm")

    def _is_log_claimed(self) -> bool:
        inode, log = self._inode, self._log_there()
        with _guarding():
            if inode.readers and inode.log != log:
                return False
            byte = SharedByte(inode.descriptor, LOGS, log)
            byte.hold()
            if byte.has_rival():
                if not inode.readers:
                    byte.let_go()
                return False
            inode.log = log
            inode.readers += 1
            self._log = log[0]
            return True

    @property
    def is_at_path(self) -> bool:
        """Whether the path still leads to this file."""
        return file_id(self._path) == self._inode.id

    def loss(self) -> str | None:
        """Return what happened to the file or its log if the path no longer leads there; else None.

        A check costs one query of the folder's time stamp, which changes when a name in it is created or removed.
        """
        try:
            stamp = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            stamp = -1
        except OSError:
            # This process or the folder lost permissions: open files stay open.
            return None
        if self._is_trusted and stamp == self._seen:
            return None
        now = stopwatch()
        if stamp != self._seen:
            self._seen, self._seen_since = stamp, now
        # Changes within the same tick of the stamp do not change it.
        self._is_trusted = now - self._seen_since > _TICK_S
        try:
            return self._loss()
        except OSError:
            return None

    def _loss(self) -> str | None:
        if not self.is_at_path:
            return "the file was removed, moved or replaced while it was open"
        if self._log is not None and file_id(self._path + "-wal") != self._log:
            return "its log was removed, moved or replaced while it was open"
        return None

    def leaving(self) -> None:
        """Release the log: the connection is about to be closed, and may remove it."""
        with _guarding():
            inode = self._inode
            if self._log is None or _inodes.get(inode.id) is not inode:
                return
            self._log = None
            inode.readers -= 1
            if not inode.readers:
                SharedByte(inode.descriptor, LOGS, inode.log).let_go()

    def close(self) -> None:
        """Release the file after the connection is closed. Idempotent."""
        with _guarding():
            self._release()

    def _release(self) -> None:
        inode = self._inode
        if self._closed or _inodes.get(inode.id) is not inode:
            return
        self._closed = True
        inode.users -= 1
        if inode.users:
            return
        del _inodes[inode.id]
        if inode.name is not None:
            SharedByte(inode.descriptor, NAMES, inode.name).let_go()
        for descriptor in (inode.descriptor, *inode.spare):
            os.close(descriptor)


def _enter(path: str, mode: int | None) -> _Inode:
    """Return the file at a path for one more user, created with ``mode`` if it is missing; None: only to be read."""
    for _ in range(_TRIES):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            if mode is None:
                raise
            try:
                return _inode_of(_make_file(path, mode))
            except FileExistsError:
                continue
        if not stat.S_ISREG(found.st_mode):
            raise Fault("foreign", path, "this is not a regular file; name another")
        _warn_of_links(path, found)
        inode = _inodes.get((found.st_dev, found.st_ino))
        if inode is not None:
            inode.users += 1
            return inode
        return _inode_of(os.open(path, (os.O_RDONLY if mode is None else os.O_RDWR) | os.O_CLOEXEC))
    raise Fault("busy", path, "it is created and removed again and again; check what else uses this name")


def _make_file(path: str, mode: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    forget_damage(path)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        # The caller's mode takes precedence over the umask.
        os.fchmod(descriptor, mode)
    return descriptor


def _inode_of(descriptor: int) -> _Inode:
    found = file_id(descriptor)
    assert found is not None
    inode = _inodes.get(found)
    if inode is None:
        inode = _inodes[found] = _Inode(found, descriptor)
    else:
        # Another thread has just opened it. Do not close this descriptor: that would drop SQLite's locks.
        inode.spare.append(descriptor)
    inode.users += 1
    return inode


def _warn_of_links(path: str, found: os.stat_result) -> None:
    if found.st_nlink > 1 and (found.st_dev, found.st_ino) not in _warned:
        _warned.add((found.st_dev, found.st_ino))
        _log.warning(
            "store %r has %d names (hard links). Open it by one of them only: each has a log of its own",
            path,
            found.st_nlink,
            extra={"store": path},
        )


def _check_beside(path: str) -> None:
    """Refuse links and other irregular files that have the name of one of SQLite's files."""
    for suffix in _BESIDE:
        try:
            found = os.lstat(path + suffix)
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode):
            kind = "a link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
            detail = f"{path + suffix} is {kind}, and has the name of a file of the store: remove or rename it"
            raise Fault("settings", path, detail)


def _refuse_orphan(path: str) -> None:
    """Refuse to create a store beside a log, which SQLite would delete: it may hold the last writes of another store.

    While another process creates a store, the log appears after the first page of its file.
    """
    if _size(path + "-wal") and not _size(path):
        detail = (
            f"there is no store, but a log of one that was removed or moved: {path}-wal. It may hold the last messages "
            "of that store: move it beside the store, or remove it"
        )
        raise Fault("settings", path, detail)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class Access(msgspec.Struct, frozen=True):
    """The owner of a store, and who else may write to it."""

    mode: int
    uid: int
    gid: int

    @property
    def socket_mode(self) -> int:
        """The permissions of a socket for everyone who may write to the store."""
        return sum(rights for rights in (0o060, 0o006) if self.mode & rights == rights) | 0o600

    @property
    def folder_mode(self) -> int:
        """The permissions of a folder of such sockets."""
        return self.socket_mode | (self.socket_mode & 0o222) >> 1

    def trusts(self, folder: os.stat_result, user: int) -> bool:
        """Return whether a folder was created by a user with whom ``user`` shares the store."""
        if folder.st_uid in (user, self.uid, 0):
            return True
        of_group = bool(self.socket_mode & 0o020) and folder.st_gid == self.gid
        return of_group or bool(self.socket_mode & 0o002)


def access_of(store: str) -> Access:
    """Return a store's access; for a store that does not exist, the access of a new one."""
    try:
        found = os.stat(store)
    except OSError:
        return Access(0o600, os.geteuid(), os.getegid())
    return Access(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


# --- what a file is, if it is or was a standby

NOTE: Final = "-standby"
_STANDBY: Final = (
    "it is a standby of {}, and only to be read: write to the store itself, or make this one the store with "
    "`pelton promote {}`"
)
PROMOTING: Final = "it is being promoted; if that was interrupted, do it again: `pelton promote {}`"


class StandbyNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file is: a ``standby`` of the store at ``source``, ``promoting``, or a ``store`` that was a standby.

    ``copied_ns`` is the wall time at which it was last all that the store was, ``last_seqs`` the sum of the last
    sequences of its streams then; ``problem`` is what keeps the follower from going on.
    """

    state: Literal["standby", "promoting", "store"]
    source: str
    copied_ns: int = 0
    last_seqs: int = 0
    problem: str = ""


def note_of(path: str) -> StandbyNote | None:
    """Return the note beside a file, of which ``path`` is the real path; None if there is none, or an empty one.

    Raises Fault of kind ``settings`` if it cannot be read.
    """
    for _ in range(_TRIES):
        try:
            with open(path + NOTE, "rb") as file:
                found = file.read()
            return msgspec.json.decode(found, type=StandbyNote) if found.strip() else None
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            # It is being written.
            pause(_RETRY_S)
    raise Fault("settings", path, f"{path + NOTE}, which says whether it is a standby, is damaged: remove it if not")


_admitted: Final[ContextVar[frozenset[str]]] = ContextVar("admitted", default=frozenset())


@contextmanager
def admitting(path: str) -> Iterator[None]:
    """Let the block open a file for writing, although it is a standby, or was replaced; nobody else in the process."""
    reset = _admitted.set(_admitted.get() | {path})
    try:
        yield
    finally:
        _admitted.reset(reset)


def is_admitted(path: str) -> bool:
    """Whether the caller may write to a file whatever it is."""
    return path in _admitted.get()


def check_no_standby(path: str) -> None:
    """Raise Fault of kind ``standby`` for a file that is none to write to."""
    path = os.path.realpath(path)
    if os.path.lexists(path + NOTE) and not is_admitted(path) and (note := note_of(path)) is not None:
        if note.state == "standby":
            raise Fault("standby", path, _STANDBY.format(note.source, path))
        if note.state == "promoting":
            raise Fault("standby", path, PROMOTING.format(path))
