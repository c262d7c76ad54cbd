"""Identifies the caller, so that what belongs to one caller is found by it alone.

The caller is the running task, or, for the blocking API, which runs each call in its own task, the waiting thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final

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
    waiting = _waiting.get()
    return waiting[0] if waiting is not None and waiting[1] is task else task
