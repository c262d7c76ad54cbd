"""The event loop that an object belongs to.

Futures, sockets, timers and connections to SQLite belong to one event loop and its thread. Used from another loop they
mostly work, until both use them at once: so their owner first checks which loop it is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# Like asyncio.get_running_loop, but returns None if no loop runs; asyncio itself uses it for this.
running_loop: Final = asyncio._get_running_loop


class Home:
    """The event loop that an object belongs to: the given one, or else the first that uses it."""

    __slots__ = ("loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Belong to ``loop``; None: to the first loop that uses it."""
        self.loop = loop

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is used on another event loop; False outside of any loop, where nothing can be awaited."""
        running = running_loop()
        if running is self.loop or running is None:
            return False
        if self.loop is None:
            self.loop = running
            return False
        return True

    @property
    def is_over(self) -> bool:
        """Whether its event loop has ended."""
        return self.loop is not None and self.loop.is_closed()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop: now if it is the running one, else soon. No effect if the loop has ended."""
        if self.loop is None or running_loop() is self.loop:
            function()
        else:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(function)
