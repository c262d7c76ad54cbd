"""Connections that a forked child has inherited: it must not use them, and closes them before it opens the store.

It must do so: SQLite keeps one table of the locks that a process holds, and a child that inherits the table would rely
on locks that the kernel gave only to its parent. A connection that another thread was using when the process forked
cannot be closed in the child. So a fork waits until all threads that have event loops of their own stand still between
two operations; the thread that forks is not in the middle of one.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import apsw

from pelton.runtime import Standstill
from pelton.storage.faults import Fault


class Inheritable(Protocol):
    """A connection to a store."""

    path: str

    @property
    def in_transaction(self) -> bool: ...

    def let_go(self) -> None:
        """Close the child's copy without affecting the parent."""


opened: weakref.WeakSet[Inheritable] = weakref.WeakSet()
# One for each process; to compare it costs no system call, as to ask for the process id does.
_process: object = object()
_inherited: list[Inheritable] = []
_standstill = Standstill()


def _are_idle() -> bool:
    try:
        return not any(connection.in_transaction for connection in list(opened))
    except (apsw.ThreadingViolationError, RuntimeError):
        # One is in use, or another thread opens one.
        return False
    except apsw.ConnectionClosedError:
        # One that another thread has closed just now.
        return True


def _before_fork() -> None:
    if opened:
        _standstill.begin(_are_idle)


def _after_fork_in_parent() -> None:
    _standstill.end()


def _after_fork_in_child() -> None:
    global _process, _standstill
    _process = object()
    _standstill = Standstill()
    _inherited.extend(opened)
    opened.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def this_process() -> object:
    """Return an identity of this process, which a forked child has not inherited."""
    return _process


def let_go_of_inherited(path: str) -> None:
    """Close inherited connections to a store that this process is about to open itself."""
    for connection in [candidate for candidate in _inherited if candidate.path == path]:
        if connection.in_transaction:
            detail = "this process was forked in the middle of a transaction; start it with spawn or forkserver instead"
            raise Fault("forked", path, detail)
        connection.let_go()
        _inherited.remove(connection)
