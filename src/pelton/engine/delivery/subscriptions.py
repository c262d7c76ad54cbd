"""The subscriptions of one engine: they join the bus, are woken by other processes, and leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from typing import Final

from pelton.api import PeltonError
from pelton.api.admission import check_listening
from pelton.engine.delivery.pushes import Pushes
from pelton.engine.delivery.subscription import EngineSubscription
from pelton.engine.host import Host
from pelton.runtime import Clock

POLL_S: Final = 0.05


class Subscriptions:
    """The open subscriptions of this process. ``polled``: no other process can wake this one, so it polls."""

    def __init__(self, host: Host, pushes: Pushes, clock: Clock, path: str, *, polled: bool) -> None:
        self._host = host
        self._pushes = pushes
        self._clock = clock
        self._path = path
        self._polled = polled
        # Each resolves to the id of the subscription's row once it has joined the bus.
        self._open: dict[EngineSubscription, asyncio.Future[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    async def subscribe(self, subject: str, queue: str) -> EngineSubscription:
        """Subscribe to what any process publishes from now on. Raises ConfigError."""
        check_listening(subject, queue)
        subscription = EngineSubscription(
            subject,
            self._path,
            self._clock,
            check_loop=self._host.check_loop,
            leave=self._leave,
            on_room=self._pushes.poke,
        )
        bus = self._host.session.bus
        joined = self._host.stage(lambda: bus.join(subject, queue, subscription), durable=False)
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
            self._host.hand_back(stream, consumer, list(group))

    async def _leave(self, subscription: EngineSubscription) -> None:
        self._host.check_outside()
        joined = self._open.pop(subscription)
        # If the store is closed or has failed, there is no row to remove.
        with suppress(PeltonError):
            row = await joined
            await self._host.stage(lambda: self._host.session.bus.leave(row), durable=False)

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
            self._host.woken()
            self._clock.call_later(POLL_S, self._poll)
