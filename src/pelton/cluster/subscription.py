"""Subscribing to published messages, stored or not, and which clients of a cluster are still connected.

**Subscribing to published messages, stored or not: NATS's own publish and subscribe, at most once.** A subscription
outlasts lost connections, but misses what is published in between. If it is read too slowly, it keeps a bounded number
of messages and loses further ones.

**Which clients of a cluster are still connected.** A client that others may ask about subscribes to a subject of its
own. To check on it, send a request to that subject: a server reports no responders at once, and it unsubscribes a
client as soon as the connection ends, which even a killed process cannot prevent. A client whose machine vanished is
detected by its server's pings, after minutes.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import Any, Final

import nats.errors

from pelton.api import Incoming, PeltonError, ServerPermissionError, StoreClosedError
from pelton.cluster.client import NatsClient
from pelton.cluster.connection import Connection, Interrupted
from pelton.runtime import Deadline, Signal, within

_log: Final = logging.getLogger("pelton.cluster")
_KEPT: Final = 65_536
_CLOSE_S: Final = 2.0


class ClusterSubscription:
    """A Subscription on a cluster."""

    def __init__(self, connection: Connection, subject: str, queue: str) -> None:
        self._connection = connection
        self._subject = subject
        self._queue = queue
        self._waiting: deque[Incoming] = deque()
        self._signal = Signal()
        self._complained = False
        self._client: NatsClient | None = None
        self._subscription: Any = None
        self._refused: PeltonError | None = None
        self._closed = False

    async def open(self) -> None:
        """Subscribe; returns when the server has registered the subscription."""
        self._connection.on_lost.append(self._signal.notify)
        self._connection.on_denied.append(self._on_denied)
        await self._attach()
        with suppress(nats.errors.Error):
            assert self._client is not None
            await self._client.flush()
        if self._refused is not None:
            raise self._refused

    async def next(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message; None if none came within ``timeout`` seconds.

        Raises StoreClosedError, and ServerRefusedError if the servers no longer accept the login.
        """
        self._connection.belonging.check()
        clock = self._connection.clock
        deadline = Deadline(clock, timeout)
        while True:
            seen = self._signal.generation
            if self._closed:
                raise StoreClosedError(self._connection.settings.name)
            if self._waiting:
                return self._waiting.popleft()
            if self._refused is not None:
                raise self._refused
            await self._attach()
            if deadline.is_over:
                return None
            await self._signal.wait_at_most(clock, deadline.left, seen)

    def take(self, limit: int) -> list[Incoming]:
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._closed:
            return
        self._connection.belonging.check()
        self._closed = True
        self._connection.on_lost.remove(self._signal.notify)
        self._connection.on_denied.remove(self._on_denied)
        self._signal.notify()
        if self._subscription is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await within(self._connection.clock, _CLOSE_S, self._subscription.unsubscribe())

    async def _attach(self) -> None:
        """Subscribe with the present client; nats-py repeats that when it reconnects."""
        client = await self._connection.client()
        if client is not self._client:
            self._client = client
            self._subscription = await client.listen(self._subject, self._hear, self._queue)

    def _hear(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        if len(self._waiting) < _KEPT:
            self._waiting.append(Incoming(subject, data, block, reply))
            self._signal.notify()
        elif not self._complained:
            self._complained = True
            name = self._connection.settings.name
            _log.warning(
                "cluster %s: the subscription to %r is read too slowly: messages are lost",
                name,
                self._subject,
                extra={"store": name, "subject": self._subject},
            )

    def _on_denied(self, subject: str, error: PeltonError) -> None:
        if subject == self._subject.lower():
            self._refused = error
            self._signal.notify()


_ROUND_TRIP_S: Final = 2


class Presence:
    """The subject that stands for this client, and checks of other clients."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: NatsClient | None = None
        self._subject = ""
        self._may_ask = True

    async def subject(self) -> str:
        """Return the subject that has a subscriber for as long as the connection is open."""
        client = await self._connection.client()
        if client is not self._client:
            subject = self._connection.new_inbox()
            await client.listen(subject, _ignore)
            self._client, self._subject = client, subject
        return self._subject

    async def is_unheard(self, subject: str) -> bool:
        """Whether a subject has no subscribers; False if our server does not report it."""
        if not self._may_ask:
            return False
        try:
            return await self._connection.is_unheard(subject, _ROUND_TRIP_S)
        except ServerPermissionError:
            # The request would be refused, and logged, each time.
            self._may_ask = False
        except (Interrupted, PeltonError, nats.errors.Error, OSError):
            pass
        return False


def _ignore(subject: str, reply: str, block: bytes | None, data: bytes) -> None:
    """Ignore the request: that it has a subscriber is the reply."""
