"""Receives from a push consumer: answers status messages, notices missed heartbeats.

Design: A push consumer sends messages to its deliver subject, and status messages of its own (100): heartbeats when
it is idle, and flow control requests, which must be answered before it continues. :class:`Pushed` subscribes to the
subject, answers, and hands out only deliveries. If heartbeats are configured and two in a row are missed, the sender is
gone or unreachable: :class:`HeartbeatMissedError`.
"""

from __future__ import annotations

from typing import Final

from pelton.api import Backend, BackendSubscription, ConsumerConfig, Delivered, HeartbeatMissedError, Incoming, headers
from pelton.api import delivery_of as parsed

_MISSED: Final = 2
_ALL: Final = 1 << 30
_STATUS: Final = b"NATS/1.0 100"


class Pushed:
    """The deliveries of one push consumer, from :meth:`open` on. ``path`` names the store in errors."""

    last_consumer_seq: int
    is_idle: bool

    def __init__(self, backend: Backend, config: ConsumerConfig, stream: str) -> None:
        self._backend = backend
        self._config = config
        self._stream = stream
        self._subscription: BackendSubscription | None = None
        self._statuses: list[Incoming] = []
        self.last_consumer_seq = 0
        self.is_idle = False
        self._got = (0, 0)

    async def open(self) -> None:
        """Start listening."""
        self._subscription = await self._backend.subscribe(self._config.deliver_subject, self._config.deliver_group)

    async def close(self) -> list[Delivered]:
        """Stop listening; return deliveries that arrived and were not taken. Idempotent."""
        if self._subscription is None:
            return []
        await self._subscription.close()
        rest = self.take(_ALL)
        self._subscription = None
        return rest

    async def next(self, timeout: float | None = None) -> Delivered | None:
        """Return the next delivery, or None for a status or on timeout.

        A status sets :attr:`last_consumer_seq`, and :attr:`is_idle` if everything was sent.
        Raises HeartbeatMissedError, StoreClosedError.
        """
        assert self._subscription is not None
        if self._statuses:
            status = self._statuses.pop(0)
            await self._answer(status, status.headers or b"")
            return None
        beat = self._config.idle_heartbeat.seconds * _MISSED
        limit = min((value for value in (timeout, beat or None) if value is not None), default=None)
        message = await self._subscription.next(limit)
        if message is None:
            if timeout is not None and (not beat or timeout < beat):
                return None
            raise HeartbeatMissedError(self._stream, self._config.name, beat)
        if message.delivered is None and message.headers is not None and message.headers.startswith(_STATUS):
            await self._answer(message, message.headers)
            return None
        return self._received(message)

    def _received(self, message: Incoming) -> Delivered:
        one = message.delivered or parsed(message.subject, message.reply, message.headers, message.data)
        self._got = (one.consumer_seq, one.seq)
        return one

    def take(self, limit: int) -> list[Delivered]:
        """Return deliveries that have already arrived; statuses among them are answered by the next :meth:`next`."""
        assert self._subscription is not None
        found: list[Delivered] = []
        for message in self._subscription.take(limit):
            if message.delivered is None and message.headers is not None and message.headers.startswith(_STATUS):
                self._statuses.append(message)
            else:
                found.append(self._received(message))
        return found

    async def _answer(self, message: Incoming, block: bytes) -> None:
        stalled = message.reply or headers.first(block, headers.CONSUMER_STALLED)
        self.is_idle = not stalled
        if stalled:
            # If flow control acknowledges, the answer names the last message received (ADR-60).
            consumer_seq, seq = self._got
            said = {headers.LAST_CONSUMER: str(consumer_seq), headers.LAST_STREAM: str(seq)}
            await self._backend.send(stalled, headers=headers.encode(said))
        last = headers.first(block, headers.LAST_CONSUMER)
        if last and last.isdecimal():
            self.last_consumer_seq = int(last)
