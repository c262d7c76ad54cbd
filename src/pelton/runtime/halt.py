"""Long work on a thread that ends soon, and before its caller goes on, when the caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Halted(Exception):  # noqa: N818  # nobody sees it: who waited was cancelled
    """The work was given up because nobody waits for it any more."""


class Halt:
    """Whether work on a thread is to end; looked at by the work now and then."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_asked_for(self) -> bool:
        """Whether the work is to end now."""
        return self._event.is_set()

    def ask(self) -> None:
        """Let the work end; from any thread."""
        self._event.set()

    def check(self) -> None:
        """Raise Halted if the work is to end."""
        if self._event.is_set():
            raise Halted


async def on_thread(work: Callable[[Halt], T]) -> T:
    """Return what ``work`` returns on a thread.

    If the caller is cancelled the work is asked to halt, and has ended when this does: whatever it has half done it
    has undone by then.
    """
    halt = Halt()
    running = asyncio.ensure_future(asyncio.to_thread(work, halt))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        halt.ask()
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                # It ends soon anyway, and may not be left behind.
                continue
        if not running.cancelled():
            # Whatever it ended with, nobody asks any more.
            running.exception()
        raise
