"""What this process and others of its machine do: whether one still runs, what it uses, its collector of garbage.

A process id is used again after a while, and means something else in another container. So a process is named by the
run of the machine, the namespaces that its numbers belong to, its number, and when it started. Only Linux tells that.

**The collector of garbage** is kept from stopping a process for long that has many objects. A full collection looks at
every object: a tenth of a second for a quarter of a million subscriptions, in which no client is answered. What has
survived one is *frozen*, so that the next one looks at what is new. What becomes cyclic garbage while it is frozen is
found when all is looked at again, once an hour; what is in no cycle is freed at once as ever.
"""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pelton.runtime.clock import boot_id

LOOK_S: Final = 0.3
"""How often to ask whether a process has ended."""
_APART_S: Final = 0.25
_MOST_KNOWN: Final = 1024
# Of what follows the name of a program in /proc/<pid>/stat.
_STATE: Final = 0
_THREADS: Final = 17
_STARTED: Final = 19
_ENDED: Final = ("Z", "X")


class ProcessIdentity(NamedTuple):
    """One process: on which machine, since when it is up, and in which namespaces (``host``); and which one there."""

    host: str
    pid: int
    started: int


def own_identity() -> ProcessIdentity | None:
    """Return the identity of this process; None if the system does not tell it."""
    pid, host = os.getpid(), _host()
    with suppress(OSError, ValueError, IndexError):
        # Else the files of /proc are those of another namespace.
        if host and os.readlink("/proc/self") == str(pid):
            return ProcessIdentity(host, pid, int(_stat(pid)[_STARTED]))
    return None


def has_ended(process: ProcessIdentity) -> bool:
    """Return whether a process is known to have ended; False also if that can't be known here."""
    if process.host != _host():
        return False
    try:
        os.kill(process.pid, 0)
        fields = _stat(process.pid)
        # One that ends is there until its parent has looked, and until its last thread has ended.
        is_dead = fields[_STATE] in _ENDED and int(fields[_THREADS]) <= 1
        return is_dead or int(fields[_STARTED]) != process.started
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError):
        # It is there, but is another user's.
        return False


def _host() -> str:
    """Return a name of the namespaces of this process, on this run of the machine; empty if the system tells none."""
    boot = boot_id()
    with suppress(OSError):
        spaces = (os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "time"))
        if boot:
            return hashlib.blake2b(repr((boot, *spaces)).encode(), digest_size=9).hexdigest()
    return ""


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name of the program may have any character.
        return file.read().rpartition(")")[2].split()


class ProcessWatch:
    """Looks now and then at processes of this machine that hold something; times in seconds since boot.

    A process counts as ended when two looks have found it so: until then its children have noticed.
    """

    def __init__(self, has_ended: Callable[[ProcessIdentity], bool] = has_ended) -> None:
        self.own: ProcessIdentity | None = own_identity()
        self._has_ended = has_ended
        # When each was looked at last, and since when it has been known to have ended.
        self._known: dict[ProcessIdentity, tuple[float, float | None]] = {}

    def is_near(self, process: ProcessIdentity | None) -> bool:
        """Return whether the end of a process, another one than this, can be known here."""
        own = self.own
        return process is not None and own is not None and process.host == own.host and process != own

    def is_gone(self, process: ProcessIdentity | None, now: float) -> bool:
        """Return whether a process has ended."""
        if process is None or not self.is_near(process):
            return False
        looked, since = self._known.get(process, (float("-inf"), None))
        if since is None and now - looked >= _APART_S:
            since = now if self._has_ended(process) else None
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[process] = now, since
        return since is not None and now - since >= _APART_S


# --- what this process uses of its machine

_STATM: Final = "/proc/self/statm"
_KIB: Final = 1024


def cpu_seconds() -> float:
    """Return the CPU time of this process, in all its threads."""
    return time.process_time()


def memory_bytes() -> int:
    """Return the memory that this process holds now; where the system does not tell, the most it ever held."""
    with suppress(OSError, ValueError, IndexError), open(_STATM, "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KIB


# --- how long a thread was ready to run but had to wait for a CPU

_NS: Final = 1e9
_PLACE: Final = "/proc/thread-self/schedstat"


def cpu_wait() -> float:
    """Return the seconds that the calling thread waited for a CPU since its start; 0 if the system does not tell."""
    with suppress(OSError, ValueError, IndexError), open(_PLACE, "rb", buffering=0) as file:
        return int(file.read().split()[1]) / _NS
    return 0.0


_EVERY_S: Final = 3600.0
_FULL: Final = 2


class ShortCollections:
    """For a process of its own: the collector is everybody's. ``now`` is seconds of the monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.on_collection)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self.on_collection)
        gc.unfreeze()

    def on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        """Freeze what has survived a full collection, or let the next one look at everything."""
        if phase != "stop" or info["generation"] != _FULL:
            return
        if self._now() - self._since < _EVERY_S:
            gc.freeze()
        else:
            self._since = self._now()
            gc.unfreeze()
