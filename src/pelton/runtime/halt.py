"""Long work on a thread that ends soon after its caller is cancelled, and before the caller continues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class Halted(Exception):  # noqa: N818  # never seen: its caller was cancelled
    """The work was abandoned because its caller was cancelled."""


class Halt:
    """A request to end work on a thread; the work checks it periodically."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_asked_for(self) -> bool:
        """Whether the work should end now."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask the work to end; from any thread."""
        self._event.set()

    def check(self) -> None:
        """Raise Halted if the work should end."""
        if self._event.is_set():
            raise Halted


async def on_thread(work: Callable[[Halt], T], undo: Callable[[T], object] | None = None) -> T:
    """Run ``work`` on a thread and return its result.

    If the caller is cancelled, the work is asked to halt, and this returns only after it has ended and undone its
    incomplete steps. If it was complete all the same, ``undo`` is called with its result, which nobody gets.
    """
    halt = Halt()
    # Not a task, which the end of asyncio.run() would cancel while the thread runs on.
    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work, halt)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        halt.ask()
        await until_ended(running)
        if undo is not None and not running.cancelled() and running.exception() is None:
            undo(running.result())
        raise


async def until_ended(running: asyncio.Future[Any]) -> None:
    """Wait for the end of what must not be left behind, however often the caller is cancelled meanwhile."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        # Retrieve the error, which no one awaits any more, so that asyncio does not log it.
        running.exception()
