"""Who is calling: what belongs to one caller is found again by it, and by nobody else.

That is the task that runs, or, for calls that a blocking face makes one task each, the thread that waits for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final

_waiting: Final[ContextVar[tuple[Hashable, object] | None]] = ContextVar("pelton_waiting", default=None)


def calls_for(waiter: Hashable) -> None:
    """Note that the running task does its work for a thread that waits for it; what it spawns does not."""
    _waiting.set((waiter, asyncio.current_task()))


def this_thread() -> Hashable:
    """Return what stands for the calling thread."""
    return ("thread", threading.get_ident())


def owner() -> Hashable | None:
    """Return who is calling; None outside a task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    waiting = _waiting.get()
    return waiting[0] if waiting is not None and waiting[1] is task else task
