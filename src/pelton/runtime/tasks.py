"""Background tasks that neither vanish nor fail silently.

The event loop holds tasks weakly: an unreferenced one can be collected in mid-flight, and its error
shows, if ever, at collection. Here a task is held until it is done, and an unobserved error is logged
when it happens.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_log = logging.getLogger("pelton.runtime")


class Tasks:
    """The live background tasks."""

    def __init__(self) -> None:
        """An empty set."""
        # In the order in which they began: equal runs are equal.
        self._alive: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def spawn(self, coro: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run `coro` as a task of the running event loop, called `name` in logs and debuggers."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._alive[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._alive.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %r failed", task.get_name(), exc_info=error)
