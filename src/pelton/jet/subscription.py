"""Core subscriptions: messages published while you are subscribed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from pelton.api import (
    BackendSubscription,
    Headers,
    Incoming,
    headers,
)
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds
from pelton.runtime import at_home


class Subscription:
    """A subscription to messages as they are published; returned by :meth:`Streams.subscribe`."""

    def __init__(self, subscription: BackendSubscription, check_loop: Callable[[], None]) -> None:
        self._subscription = subscription
        self._check_loop = check_loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def next(self, *, timeout: Seconds | None = None) -> CoreMessage | None:
        """Return the next message, or None after ``timeout`` seconds (None: wait for ever). Raises StoreClosedError."""
        limit = None if timeout is None else seconds_to_ns("timeout", timeout, "a subscription") / 1e9
        found = await self._subscription.next(limit)
        return None if found is None else CoreMessage(found)

    @at_home
    async def __aiter__(self) -> AsyncIterator[CoreMessage]:
        while True:
            found = await self._subscription.next()
            if found is not None:
                yield CoreMessage(found)

    async def close(self) -> None:
        """Unsubscribe. Idempotent."""
        await self._subscription.close()


class CoreMessage:
    """A message received by a subscription."""

    __slots__ = ("_incoming",)

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def __repr__(self) -> str:
        return f"<CoreMessage {self.subject!r} {len(self.data)} bytes>"

    @property
    def subject(self) -> str:
        """The subject it was published under."""
        return self._incoming.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._incoming.data

    @property
    def headers(self) -> Headers:
        """The headers; empty when the message has none."""
        block = self._incoming.headers
        return Headers() if not block else headers.decode(block)

    @property
    def reply(self) -> str:
        """The subject on which its publisher awaits an answer, or empty."""
        return self._incoming.reply
