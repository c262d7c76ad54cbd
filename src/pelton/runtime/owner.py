"""Identifies the caller, so that what belongs to one caller is found by it alone.

The caller is the running task, or, for the blocking API, which runs each call in its own task, the waiting thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any, Final

from pelton.runtime.home import running_loop

_waiting: Final[ContextVar[tuple[Hashable, object] | None]] = ContextVar("pelton_waiting", default=None)


def calls_for(waiter: Hashable) -> None:
    """Note that the running task works for a waiting thread; tasks that it spawns do not."""
    _waiting.set((waiter, asyncio.current_task()))


def this_thread() -> Hashable:
    """Return an identity of the calling thread."""
    return ("thread", threading.get_ident())


def owner() -> Hashable | None:
    """Return the identity of the caller; None outside a task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else _identity(task)


def _identity(task: asyncio.Task[Any]) -> Hashable:
    waiting = _waiting.get()
    return waiting[0] if waiting is not None and waiting[1] is task else task


class Caller:
    """Who calls now, to be recognised in later calls; ``identity`` is its `owner`."""

    __slots__ = ("_loop", "_thread", "identity")

    def __init__(self) -> None:
        self.identity: Hashable | None = owner()
        self._loop = running_loop()
        self._thread = threading.get_ident()

    @property
    def calls_again(self) -> bool:
        """Whether it is the caller."""
        # To find the running loop takes Python 3.11 a system call. A thread runs one loop at a time, so if this loop
        # runs a task, and this is its thread, the task is the caller.
        if self._loop is not None and threading.get_ident() == self._thread:
            task = asyncio.current_task(self._loop)
            if task is not None:
                return _identity(task) == self.identity
        return owner() == self.identity
