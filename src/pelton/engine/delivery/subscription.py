"""One subscription of this process: it buffers received messages until you take them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pelton.api import Incoming, StoreClosedError
from pelton.runtime import Clock, Deadline, Signal

_log: Final = logging.getLogger("pelton.engine")
_KEPT: Final = 65_536
# A push consumer of this process fills the buffer up to here, and continues when half of it is read.
_WINDOW: Final = 2048
_WINDOW_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 64 << 20


class EngineSubscription:
    """A Subscription on an embedded store, with a bounded buffer.

    ``leave`` is awaited when it is closed, ``on_room`` is called when a full buffer is half read.
    """

    is_relay = False

    def __init__(
        self,
        subject: str,
        path: str,
        clock: Clock,
        *,
        check_loop: Callable[[], None],
        leave: Callable[[EngineSubscription], Awaitable[object]],
        on_room: Callable[[], None],
    ) -> None:
        self._subject = subject
        self._check_loop = check_loop
        self._path = path
        self._clock = clock
        self._waiting: deque[Incoming] = deque()
        self._bytes = 0
        self._is_full = False
        self._signal = Signal()
        self._closed = False
        self._failure: Exception | None = None
        self._complained = False
        self._leave = leave
        self._on_room = on_room

    @property
    def capacity(self) -> int:
        """How many more messages a push consumer should deliver."""
        room = 0 if self._bytes >= _WINDOW_BYTES else _WINDOW - len(self._waiting)
        self._is_full = self._is_full or room <= 0
        return room

    @property
    def reserve(self) -> int:
        """How many more messages fit."""
        left = 0 if self._bytes >= _KEPT_BYTES else _KEPT - len(self._waiting)
        # Whoever finds no room waits until the buffer is half read.
        self._is_full = self._is_full or left <= 0
        return left

    def receive(self, route: str, messages: Sequence[Incoming]) -> None:
        """Buffer messages; drop those that do not fit."""
        if len(messages) > (left := self.reserve):
            messages = messages[:left]
            if not self._complained:
                self._complained = True
                _log.warning(
                    "store %s: the subscription to %r is read too slowly: messages are lost",
                    self._path,
                    self._subject,
                    extra={"store": self._path, "subject": self._subject},
                )
        self._waiting.extend(messages)
        self._bytes += sum([len(message.data) for message in messages])
        self._signal.notify()

    async def next(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message; None if no message came within ``timeout`` seconds.

        Raises StoreClosedError, and once the buffer is empty, the error that ended the store's opener.
        """
        self._check_loop()
        if self._waiting and not self._closed:
            return self._first()
        deadline = Deadline(self._clock, timeout)
        while True:
            seen = self._signal.generation
            if self._closed:
                raise StoreClosedError(self._path)
            if self._waiting:
                return self._first()
            if self._failure is not None:
                raise self._failure
            if deadline.is_over:
                return None
            await self._signal.wait_at_most(self._clock, deadline.left, seen)

    def take(self, limit: int) -> list[Incoming]:
        """Return up to ``limit`` messages that were received already."""
        pop = self._waiting.popleft
        found = [pop() for _ in range(min(limit, len(self._waiting)))]
        self._bytes -= sum([len(message.data) for message in found])
        self._tell_capacity()
        return found

    def _first(self) -> Incoming:
        message = self._waiting.popleft()
        self._bytes -= len(message.data)
        self._tell_capacity()
        return message

    def _tell_capacity(self) -> None:
        if self._is_full and 2 * len(self._waiting) <= _WINDOW and 2 * self._bytes <= _WINDOW_BYTES:
            self._is_full = False
            self._on_room()

    def take_all(self) -> list[Incoming]:
        """Return all messages that were received already."""
        return self.take(len(self._waiting))

    def fail(self, error: Exception) -> None:
        """Raise this error once all received messages are taken."""
        self._failure = error
        self._signal.notify()

    async def close(self) -> None:
        """Unsubscribe. Idempotent."""
        if self._closed:
            return
        self._check_loop()
        self._closed = True
        self._signal.notify()
        # Even if the caller is cancelled: a closed subscription must not receive messages for ever.
        await asyncio.shield(self._leave(self))
