"""Failures below the engine, in storage's own terms.

Storage knows rows and files, not the public vocabulary, so it raises :class:`Fault` with a kind; the engine maps each
kind to one public error in one place (``engine/host.py``). SQLite's exceptions never leave this room:
:func:`translated` is the only boundary.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import apsw

from pelton.storage.rows import DamagedRowError

FaultKind = Literal[
    "busy",
    "newer",
    "foreign",
    "key",
    "read_only",
    "full",
    "descriptors",
    "closed",
    "forked",
    "failed",
    "gone",
    "settings",
    "standby",
    "corrupt",
    "too_large",
    "io",
]

# After these, a connection cannot be used again; the corresponding public errors are ``FINAL_ERRORS``.
FINAL_FAULTS: Final[frozenset[FaultKind]] = frozenset(
    {"failed", "gone", "closed", "forked", "key", "newer", "foreign", "standby"}
)
_HARDLY_ANY: Final = 64 * 1024
# For a file that is open already; `keys.py` explains why a file does not open.
REOPEN: Final = "close it and open it again, which rewrites the log"
_SHORT: Final = "the process, or the machine, has reached its limit of open files"
_UNREADABLE: Final = "another process has changed its key, or its first page is damaged: open it again with its new key"


class Fault(Exception):  # noqa: N818  # a fault is not an error yet: the engine makes one of it
    """A storage failure: its ``kind``, the ``path`` of the store, and the ``detail`` of what happened."""

    def __init__(self, kind: FaultKind, path: str, detail: str) -> None:
        super().__init__(kind, path, detail)
        self.kind: FaultKind = kind
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


_KINDS: tuple[tuple[type[Exception], FaultKind], ...] = (
    (apsw.BusyError, "busy"),
    (apsw.LockedError, "busy"),
    (apsw.FullError, "full"),
    (apsw.ReadOnlyError, "read_only"),
    (apsw.PermissionsError, "read_only"),
    (apsw.CorruptError, "corrupt"),
    (DamagedRowError, "corrupt"),
    (UnicodeDecodeError, "corrupt"),
    (apsw.TooBigError, "too_large"),
    (apsw.ConnectionClosedError, "closed"),
    (apsw.ForkingViolationError, "forked"),
)


FAILURES: Final = (apsw.Error, OSError, DamagedRowError, UnicodeDecodeError)
"""What SQLite, the operating system, and rows of a damaged file raise; damaged text cannot be decoded."""
_FAILED_SYNCS: Final = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def is_failed_sync(error: Exception) -> bool:
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) in _FAILED_SYNCS


def fault_of(error: Exception, path: str) -> Fault:
    """Return the fault for one of :data:`FAILURES`."""
    if is_failed_sync(error):
        return Fault("failed", path, f"syncing it to disk failed ({error}); {REOPEN}")
    if _is_short_of_descriptors(error):
        return Fault("descriptors", path, _SHORT)
    if isinstance(error, apsw.NotADBError):
        return Fault("key", path, _UNREADABLE)
    for kind_of_error, kind in _KINDS:
        if isinstance(error, kind_of_error):
            return Fault(kind, path, str(error))
    if (isinstance(error, OSError) and error.errno in _NO_ROOM) or (isinstance(error, apsw.IOError) and _is_full(path)):
        return Fault("full", path, str(error))
    return Fault("io", path, str(error))


def _is_short_of_descriptors(error: Exception) -> bool:
    """Whether a file could not be opened because too many are open; SQLite does not report the reason."""
    if isinstance(error, OSError):
        return error.errno in _NO_DESCRIPTOR
    if not isinstance(error, apsw.CantOpenError):
        return False
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as found:
        return found.errno in _NO_DESCRIPTOR
    return False


def _is_full(path: str) -> bool:
    """Whether no more can be written beside a store: SQLite does not always say that a disk, or a quota, is full."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(path) or ".") as probe:
            left = _HARDLY_ANY
            while left > 0:
                left -= os.write(probe.fileno(), bytes(left))
    except OSError as error:
        return error.errno in _NO_ROOM
    return False


def as_fault(error: BaseException, path: str) -> BaseException:
    """Return the fault for one of :data:`FAILURES`; any other exception unchanged."""
    return fault_of(error, path) if isinstance(error, FAILURES) else error


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn :data:`FAILURES` raised in the block into a :class:`Fault`."""
    try:
        yield
    except FAILURES as error:
        raise fault_of(error, path) from error


class ConnectionEnd:
    """Records the fault that ended one connection to the store ``path``, if any; from any thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._told: Callable[[Fault], None] | None = None
        self.fault: Fault | None = None

    def tell(self, told: Callable[[Fault], None]) -> None:
        """Call ``told`` once, when the connection ends, or now if it has ended."""
        self._told = told
        if self.fault is not None:
            told(self.fault)

    def end(self, fault: Fault) -> None:
        """Record that the connection has ended. A second fault replaces the first without another call."""
        is_first, self.fault = self.fault is None, fault
        if is_first and self._told is not None:
            self._told(fault)

    def met(self, error: Exception) -> Fault:
        """Return an exception as a fault; if it is final, record that the connection has ended."""
        fault = error if isinstance(error, Fault) else fault_of(error, self._path)
        if fault.kind in FINAL_FAULTS:
            self.end(fault)
        return fault
