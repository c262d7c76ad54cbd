"""Which event loop something belongs to.

Futures, sockets, timers and connections to SQLite belong to one event loop and its thread. Used from another loop they
mostly work, until both do something at once: so whoever keeps them looks first where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# As asyncio.get_running_loop, which raises where none runs: None there. It is asyncio's own for this.
running_loop: Final = asyncio._get_running_loop


class Home:
    """The event loop that something belongs to: the one given, or else the first that uses it."""

    __slots__ = ("loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """At home on ``loop``."""
        self.loop = loop

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is used on another event loop than its own. Outside of any nothing can be awaited."""
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
        """Call a function at home: now if this is there, else soon. No effect when its event loop has ended."""
        if self.loop is None or running_loop() is self.loop:
            function()
        else:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(function)
