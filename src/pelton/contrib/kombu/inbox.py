"""What arrives from the store's event loop for the thread of a kombu connection, and a descriptor to wait on."""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from pelton.queue import ClaimedJob, Claims


class Arrival(msgspec.Struct, frozen=True):
    """A message. ``exchange`` and ``routing_key`` are those of a broadcast; the rest is of a queue, with its job."""

    message: dict[str, Any]
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    claims: Claims | None = None
    job: ClaimedJob | None = None


class Inbox:
    """Filled on one thread, emptied on another. Raises what ended it, once."""

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque()
        self._error: Exception | None = None
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._arrivals)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something."""
        return self._readable

    def put(self, arrival: Arrival) -> None:
        """Add a message."""
        self._arrivals.append(arrival)
        self.signal()

    def fail(self, error: Exception) -> None:
        """Make the next call of `pop` raise an error."""
        self._error = error
        self.signal()

    def signal(self) -> None:
        """Make the descriptor readable."""
        # A full pipe is readable, too.
        with suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._writable, b"!")

    def clear_signal(self) -> None:
        """Make the descriptor unreadable; call it before the inbox is emptied."""
        with suppress(BlockingIOError):
            os.read(self._readable, 4096)

    def pop(self) -> Arrival | None:
        """Return the oldest message, or None."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._arrivals.popleft() if self._arrivals else None

    def take_all(self) -> list[Arrival]:
        """Return all messages that are left."""
        taken: list[Arrival] = []
        while self._arrivals:
            taken.append(self._arrivals.popleft())
        return taken

    def wait(self, timeout: float | None) -> None:
        """Wait until there may be something, for so many seconds at most (None: for ever)."""
        if not (self._arrivals or self._error):
            select.select([self._readable], [], [], timeout)
        self.clear_signal()

    def close(self) -> None:
        """Close the descriptors."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._readable)
            os.close(self._writable)
