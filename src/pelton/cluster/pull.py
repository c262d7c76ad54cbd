"""Pulling from a consumer of a cluster (ADR-13), with nothing lost on the way.

Design: A pull asks for a batch with ``no_wait`` and an expiry at once, which nats-server takes as: send
what there is, or wait for the first, then stop, with a status message as the last word. Three things end a pull
without that word: a consumer that may not deliver more for now (``max_ack_pending``), a lost connection, and
a consumer whose leader died, which shows in heartbeats that stay away. Then the subscription is drained
(unsubscribed, and what was on its way is taken in), so that the server does not deliver to somebody who no
longer listens; the next pull subscribes anew. A pull that is cancelled gives back what it got. The last word may
come ahead of messages, which wait for the replicas of their consumer: it says how many of those asked for were not
sent, and the others are awaited.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors

from pelton.api import Delivered, PullRequest, api_error, delivery_of
from pelton.api.errors import from_reply
from pelton.cluster.client import NatsClient
from pelton.cluster.connection import Connection, Interrupted
from pelton.cluster.status import NO_RESPONDERS, Status, status_of
from pelton.runtime import Deadline, Signal, within

_LONGEST_S: Final = 30.0
_SLACK_S: Final = 2.0
_FIRST_S: Final = 0.05
_QUIET_S: Final = 0.01
_LAST_WORD_S: Final = 1.0
_ROUND_TRIP_S: Final = 5
_DRAIN_S: Final = 3.0
# The server sends one where it has nothing else to say; shorter pulls than two of them go without.
_HEARTBEAT_S: Final = 1.5
_BEATS: Final = 2.5
_LOST_WORD: Final = Status(-1, "")
_SILENT_WORD: Final = Status(-2, "")
_HEARTBEAT: Final = 100
_TIMED_OUT: Final = (404, 408)
_CONFLICT: Final = 409
_BUSY: Final = "requests pending"
_TOO_LARGE: Final = "message size exceeds maxbytes"
_NOT_SENT: Final = b"Nats-Pending-Messages: "
_CONSUMER_GONE: Final = "consumer deleted"
_ASK_AGAIN: Final = ("leadership change", "server shutdown")
# Idle subscriptions that a connection keeps, of whichever consumers.
_FREE_AT_MOST: Final = 256
_encode: Final = msgspec.json.Encoder().encode

Key = tuple[str, str]
"""Names of a stream and a consumer."""


class FreeChannels:
    """Channels that no pull uses just now, to be used again; bounded, since consumers come and go."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The longest unused comes first.
        self._free: OrderedDict[Key, list[Channel]] = OrderedDict()
        self._count = 0

    def take(self, key: Key) -> Channel:
        """Return a channel for pulls of a consumer."""
        free = self._free.get(key)
        if free is None:
            return Channel(self._connection)
        channel = free.pop()
        self._count -= 1
        if not free:
            del self._free[key]
        return channel

    def put_back(self, key: Key, channel: Channel) -> tuple[Key, Channel] | None:
        """Keep a channel for the next pull of its consumer; if there are too many, return one to retire and its key."""
        self._free.setdefault(key, []).append(channel)
        self._free.move_to_end(key)
        self._count += 1
        if self._count <= _FREE_AT_MOST:
            return None
        oldest = next(iter(self._free))
        return oldest, self.take(oldest)


class Channel:
    """A subscription that the pulls of one consumer answer to, one pull at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox = connection.new_inbox()
        self._signal = Signal()
        self._client: NatsClient | None = None
        self._subscription: Any = None
        self._number = 0
        self._enough = 0
        self._asked = 0
        self._came = 0
        self._early_word: Status | None = None
        self._sent = 0
        self.messages: list[Delivered] = []
        self.last_word: Status | None = None

    async def ask(self, subject: str, batch: int, body: dict[str, object]) -> None:
        """Send a pull; what comes back is in ``messages`` and ``last_word``."""
        self.last_word = self._early_word = None
        client = await self._connection.client()
        if client is not self._client:
            if self._client is None:
                self._connection.on_lost.append(self._lost)
            self._client = client
            self._subscription = await client.listen(f"{self._inbox}.*", self._arrived)
        self._number += 1
        self._asked, self._came = batch, 0
        try:
            await self._connection.tell(subject, _encode({"batch": batch, **body}), f"{self._inbox}.{self._number}")
        except Interrupted:
            self.last_word = _LOST_WORD

    async def gather(self, batch: int, first_s: float, beat_s: float = 0.0) -> bool:
        """Wait for the first message and what comes with it; whether the pull has come to its end.

        With ``beat_s`` the server says something that often at least, or is gone.
        """
        clock = self._connection.clock
        end = clock.monotonic() + first_s
        self._enough = batch
        while len(self.messages) < batch and self.last_word is None:
            left = max(end - clock.monotonic(), 0.0)
            seen, generation = len(self.messages), self._signal.generation
            heard = await self._signal.wait_at_most(clock, min(left, beat_s) if beat_s else left, generation)
            if heard == generation and len(self.messages) == seen:
                if beat_s and beat_s < left:
                    self.last_word = _SILENT_WORD
                return False
            if self.messages or self._early_word is not None:
                # What was sent is certain to come, and with nothing left to deliver the last word is.
                certain = self._early_word is not None or not self.messages[-1].num_pending
                end = clock.monotonic() + (_LAST_WORD_S if certain else _QUIET_S)
                beat_s = 0.0
        return not self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether nothing more can come: the connection was lost, or the consumer's leader."""
        return self.last_word in (_LOST_WORD, _SILENT_WORD)

    async def retire(self) -> None:
        """Listen no more, but take in what was on its way; bounded, whatever the connection does."""
        if self._client is None:
            return
        self._connection.on_lost.remove(self._lost)
        subscription, self._client, self._subscription = self._subscription, None, None
        try:
            await within(self._connection.clock, _DRAIN_S, subscription.drain())
        except (nats.errors.Error, OSError, TimeoutError):
            # Without a connection there is nobody to deliver either; when it is back, nobody must.
            with suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    def _arrived(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        status = status_of(block)
        is_of_this = subject.endswith(f".{self._number}")
        if not status.code:
            self.messages.append(delivery_of(subject, reply, block, data))
            self._came += is_of_this
            if self._early_word is not None and self._came >= self._sent:
                self.last_word = self._early_word
            elif len(self.messages) != 1 and len(self.messages) < self._enough:
                # Whoever waits looks when there is enough, or when it is quiet.
                return
        elif status.code != _HEARTBEAT and is_of_this:
            self._sent = self._asked - _not_sent(block, self._asked)
            if self._came < self._sent:
                self._early_word = status
            else:
                self.last_word = status
        self._signal.notify()

    def _lost(self) -> None:
        self.last_word = _LOST_WORD
        self._signal.notify()


def _not_sent(block: bytes | None, asked: int) -> int:
    """Return how many of the messages asked for a last word says were not sent; all where it says nothing."""
    digits = (block or b"").partition(_NOT_SENT)[2].partition(b"\r\n")[0]
    return int(digits) if digits.isdigit() else asked


class Pull:
    """One pull, from asking to what it got. ``subject`` is the API subject of the consumer's next message."""

    def __init__(self, connection: Connection, subject: str, request: PullRequest, where: tuple[str, str]) -> None:
        self._connection = connection
        self._subject = subject
        self._request = request
        self._where = where
        self._busy = False
        self._deadline = Deadline(connection.clock, None if request.expires_ns is None else request.expires_ns / 1e9)

    async def run(self, channel: Channel) -> bool:
        """Fill ``channel.messages``; whether the channel may be used again. Raises ApiError, StoreError."""
        while True:
            body, first_s = self._body()
            # Where others wait already, one message is all that can be asked for and ended for certain.
            await channel.ask(self._subject, 1 if self._busy else self._request.batch, body)
            beat_s = _HEARTBEAT_S * _BEATS if "idle_heartbeat" in body else 0.0
            ended = await channel.gather(self._request.batch, first_s, beat_s)
            if not ended and not channel.messages and self._request.no_wait:
                # Silence from a server far away, or from a consumer that may not deliver now: a round trip tells.
                ended = await self._round_trip() and await channel.gather(self._request.batch, _FIRST_S)
            if channel.messages or not ended or self._is_over(channel.last_word):
                return ended

    async def _round_trip(self) -> bool:
        try:
            await (await self._connection.client()).flush(_ROUND_TRIP_S)
        except (nats.errors.Error, OSError):
            return False
        return True

    def _body(self) -> tuple[dict[str, object], float]:
        """Return what to ask, and how long the first answer may take."""
        request = self._request
        body: dict[str, object] = {}
        for key, value in (
            ("max_bytes", request.max_bytes),
            ("group", request.group),
            ("id", request.pin_id),
            ("priority", request.priority),
            ("min_pending", request.min_pending),
            ("min_ack_pending", request.min_ack_pending),
        ):
            if value:
                body[key] = value
        if request.no_wait:
            return body | {"no_wait": True}, _FIRST_S
        # A server forgets the holder of a pin that waits longer than its timeout: a pull again is its sign of life.
        longest = min(_LONGEST_S, request.renew_ns / 1e9 or _LONGEST_S)
        left = self._deadline.left
        left = longest if left is None else min(max(left, 0.001), longest)
        body["expires"] = int(left * 1e9)
        if left > 2 * _HEARTBEAT_S:
            body["idle_heartbeat"] = int(_HEARTBEAT_S * 1e9)
        return body | ({} if self._busy else {"no_wait": True}), left + _SLACK_S

    def _is_over(self, last_word: Status | None) -> bool:
        """Judge the last word of a pull that got nothing: over, to be asked again, or an error."""
        assert last_word is not None
        (status, text), (stream, consumer) = last_word, self._where
        known = text.lower()
        if status in _TIMED_OUT:
            if known == _BUSY and not self._request.no_wait:
                self._busy = True
                return False
            return self._request.no_wait or self._deadline.is_over
        if status == _CONFLICT and known == _TOO_LARGE:
            return True
        if status == _CONFLICT and known in _ASK_AGAIN:
            return False
        if status == NO_RESPONDERS or known == _CONSUMER_GONE:
            raise api_error("JSConsumerNotFoundErr", stream=stream, consumer=consumer)
        raise from_reply(status, 0, text, stream=stream, consumer=consumer)
