"""Processes: what this one and others of its machine do, and how signals end one.

**What this process and others of its machine do: whether one still runs, what it uses, its collector of garbage.** A
process id is used again after a while, and means something else in another container. So a process is named by the run
of the machine, the namespaces that its numbers belong to, its number, and when it started. Only Linux tells that.

**The collector of garbage** is kept from stopping a process for long that has many objects. A full collection looks at
every object: a tenth of a second for a quarter of a million subscriptions, in which no client is answered. What has
survived one is *frozen*, so that the next one looks at what is new. What becomes cyclic garbage while it is frozen is
found when all is looked at again, once an hour; what is in no cycle is freed at once as ever.

**Handles SIGTERM and SIGINT while something runs that can be stopped, unless other handlers are there.** Python calls a
signal's handler on the main thread, between two of its instructions. If the signal comes just before the loop begins to
wait, or is delivered to another thread, the wait is not interrupted, and the handler would not be called before
something else wakes the loop.

A web server, a notebook or your own program installs handlers because it runs the process: replacing them would
make it miss its signal. So a signal is handled only if it still has Python's default behaviour, and none is if SIGTERM
has another one: whoever handles it decides how the process ends. (A library that handles SIGINT alone, such as Spark,
does not.) The first one requests an orderly stop and restores all handlers: a second one does what it did before.

``signal.signal`` rather than the event loop's own handlers: these replace one another silently, and it could not be
known whether a handler is still ours when it is to be restored.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
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
        # Else /proc shows another namespace.
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
    return time.process_time()


def memory_bytes() -> int:
    """Return the memory that this process holds now; where the system does not tell, the most it ever held."""
    with suppress(OSError, ValueError, IndexError), open(_STATM, "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KIB


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


class SignalWakeup:
    """Wakes the ``loop`` of the main thread until closed, unless somebody else is woken by signals already."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        loop.add_reader(self._reader, self._drain)
        before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if before != -1:
            # A loop with handlers of its own; more than one can't be woken.
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def close(self) -> None:
        """Wake the loop no more. Idempotent; on the loop's thread, and not within a signal's handler."""
        if self._reader.fileno() == -1:
            return
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._writer.fileno()):
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._reader)
        self._reader.close()
        self._writer.close()

    def close_soon(self) -> None:
        """Close when the loop goes on: for a signal's handler, which may have interrupted the loop anywhere."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.close)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Calls ``stop`` once, on the main thread and between two of its instructions, at the first handled signal."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._is_active = False
        self._wakeup: SignalWakeup | None = None

    @property
    def taken(self) -> bool:
        """Whether a signal would be handled."""
        return self._is_active

    def take(self) -> None:
        """Handle the signals, if nobody else decides how the process ends; only possible on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not _is_default(signal.getsignal(signal.SIGTERM)):
            return
        self._is_active = True
        with suppress(RuntimeError):
            # Without one, the main thread runs the program itself, and is interrupted.
            self._wakeup = self._wakeup or SignalWakeup(asyncio.get_running_loop())
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if _is_default(before):
                self._before[number] = before
                signal.signal(number, self._on_signal)

    def give_back(self) -> None:
        """Restore the original handlers where ours are still installed. Idempotent."""
        self._is_active = False
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None
        self._restore()

    def _restore(self) -> None:
        for number, before in list(self._before.items()):
            # A later handler may have saved ours, to restore it in the end: see _on_signal.
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before)
                del self._before[number]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_active:
            self._is_active = False
            self._restore()
            if self._wakeup is not None:
                self._wakeup.close_soon()
            self._stop()
            return
        # We had given up the signal, but our handler was restored since.
        signal.signal(number, self._before.pop(number, signal.SIG_DFL))
        signal.raise_signal(number)


def is_interrupt(error: BaseException) -> bool:
    """Whether SIGINT may have raised an error, and not the code that was running on this thread."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if _is_of_runner(handler):
        frames = error.__traceback__
        while frames is not None and frames.tb_next is not None:
            frames = frames.tb_next
        return frames is not None and frames.tb_frame.f_code.co_name == "_on_sigint"
    # Ours raises nothing. Python's own leaves no trace.
    return callable(handler) and not isinstance(getattr(handler, "__self__", None), StopSignals)


def _is_default(handler: Any) -> bool:
    """Whether a handler is Python's own, or asyncio.run's, which cancels the main task at a SIGINT."""
    return handler in (signal.SIG_DFL, signal.default_int_handler) or _is_of_runner(handler)


def _is_of_runner(handler: Any) -> bool:
    return isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
