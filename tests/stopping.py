"""Stopping a process (SIGSTOP) where it hinders nobody."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import apsw

from tests.storage.stores import raw


def stand_still(pid: int | None, path: str | Path, keys: Callable[[], Iterable[str | None]] = lambda: (None,)) -> None:
    """Stop a process outside of a transaction: one stopped in the middle of one keeps the write lock from everybody.

    The lock is asked for only when every thread of the process has stopped, which is later than the signal was sent.
    ``keys``: those that the store may have.
    """
    assert pid is not None
    while True:
        os.kill(pid, signal.SIGSTOP)
        while not _stopped(pid):
            os.sched_yield()
        if "://" in str(path):
            # A cluster, where nobody keeps others waiting.
            return
        for key in keys():
            with raw(Path(path), key) as connection, suppress(apsw.BusyError, apsw.NotADBError):
                connection.execute("BEGIN IMMEDIATE")
                return
        os.kill(pid, signal.SIGCONT)


def _stopped(pid: int) -> bool:
    """Tell by Linux's /proc: a stopped process need not be a child of ours, which `waitid` asks for."""
    states = [task.read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) <= {"T"}
