"""Pausing a process (SIGSTOP) where it does not block others."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import apsw

from tests.storage.stores import raw


def stand_still(pid: int | None, path: str | Path, keys: Callable[[], Iterable[str | None]] = lambda: (None,)) -> None:
    """Pause a process outside of a transaction: one paused in the middle of one keeps the write lock.

    The lock is requested only when every thread of the process has stopped, which is later than the signal was sent.
    ``keys``: those that the store may have.
    """
    assert pid is not None
    while True:
        os.kill(pid, signal.SIGSTOP)
        while not _stopped(pid):
            os.sched_yield()
        if "://" in str(path):
            # A cluster, where a paused process blocks no others.
            return
        for key in keys():
            with raw(Path(path), key) as connection, suppress(apsw.BusyError, apsw.ProtocolError, apsw.NotADBError):
                # Who has the lock may be the process that stands still.
                connection.set_busy_timeout(0)
                connection.execute("BEGIN IMMEDIATE")
                return
        os.kill(pid, signal.SIGCONT)


def _stopped(pid: int) -> bool:
    """Check with Linux's /proc: a paused process need not be our child, which `waitid` requires."""
    states = [task.read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) <= {"T"}
