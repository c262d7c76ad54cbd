"""The subscriptions of one engine: they join the bus, are woken by other processes, and leave again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final

from pelton.api import Incoming, PeltonError, StoreClosedError
from pelton.api.admission import check_listening
from pelton.engine.delivery.pushes import Pushes
from pelton.engine.host import Host
from pelton.runtime import Clock, Deadline, Signal

_log: Final = logging.getLogger("pelton.engine")
_KEPT: Final = 65_536
# A push consumer of this process fills the buffer up to here, and continues when half of it is read.
_WINDOW: Final = 2048
_WINDOW_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 64 << 20


class EngineSubscription:
    """A Subscription on an embedded store, with a bounded buffer."""

    is_relay = False

    def __init__(self, subject: str, owner: Subscriptions) -> None:
        self._subject = subject
        self._owner = owner
        self._door = owner.host.door
        self._waiting: deque[Incoming] = deque()
        self._bytes = 0
        self._is_full = False
        self._signal = Signal()
        self._closed = False
        self._failure: Exception | None = None
        self._complained = False

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
                    self._owner.path,
                    self._subject,
                    extra={"store": self._owner.path, "subject": self._subject},
                )
        self._waiting.extend(messages)
        self._bytes += sum([len(message.data) for message in messages])
        self._signal.notify()

    async def next(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message; None if no message came within ``timeout`` seconds.

        Raises StoreClosedError, and once the buffer is empty, the error that ended the store's opener.
        """
        self._door.check_loop()
        if self._waiting and not self._closed:
            return self._first()
        deadline = Deadline(self._owner.clock, timeout)
        while True:
            seen = self._signal.generation
            if self._closed:
                raise StoreClosedError(self._owner.path)
            if self._waiting:
                return self._first()
            if self._failure is not None:
                raise self._failure
            if deadline.is_over:
                return None
            await self._signal.wait_at_most(self._owner.clock, deadline.left, seen)

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
            # A push consumer may go on.
            self._owner.pushes.poke()

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
        self._door.check_loop()
        self._closed = True
        self._signal.notify()
        # Even if the caller is cancelled: a closed subscription must not receive messages for ever.
        await asyncio.shield(self._owner.leave(self))


# --- the subscriptions of one engine: they join the bus, are woken by other processes, and leave

POLL_S: Final = 0.05


class Subscriptions:
    """The open subscriptions of this process. ``polled``: no other process can wake this one, so it polls."""

    def __init__(self, host: Host, pushes: Pushes, clock: Clock, path: str, *, polled: bool) -> None:
        self.host = host
        self.pushes = pushes
        self.clock = clock
        self.path = path
        self._polled = polled
        # Each resolves to the id of the subscription's row once it has joined the bus.
        self._open: dict[EngineSubscription, asyncio.Future[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    async def subscribe(self, subject: str, queue: str) -> EngineSubscription:
        """Subscribe to what any process publishes from now on. Raises ConfigError."""
        check_listening(subject, queue)
        subscription = EngineSubscription(subject, self)
        bus = self.host.session.bus
        joined = self.host.stage(lambda: bus.join(subject, queue, subscription), durable=False)
        self._open[subscription] = joined
        if self._polled and len(self._open) == 1:
            self._poll()
        try:
            await asyncio.shield(joined)
        except BaseException:
            try:
                await subscription.close()
            finally:
                self._return(subscription)
            raise
        return subscription

    def _return(self, subscription: EngineSubscription) -> None:
        """Give back what push consumers delivered to a subscription that is closed."""
        delivered = [message.delivered for message in subscription.take_all() if message.delivered is not None]
        for (stream, consumer), group in groupby(delivered, lambda one: (one.stream, one.consumer)):
            self.host.hand_back(stream, consumer, list(group))

    async def leave(self, subscription: EngineSubscription) -> None:
        self.host.door.check_outside()
        joined = self._open.pop(subscription)
        # If the store is closed or has failed, there is no row to remove.
        with suppress(PeltonError):
            row = await joined
            await self.host.stage(lambda: self.host.session.bus.leave(row), durable=False)

    def fail(self, error: Exception) -> None:
        """End all of them with an error, which callers that wait get."""
        self._polled = False
        for subscription in self._open:
            subscription.fail(error)

    async def close(self) -> None:
        """End all of them."""
        for subscription in list(self._open):
            await subscription.close()

    def _poll(self) -> None:
        if self._open and self._polled:
            self.host.woken()
            self.clock.call_later(POLL_S, self._poll)
