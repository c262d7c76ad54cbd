"""Pulling from a consumer of a cluster (ADR-13), with nothing lost on the way.

Design: A pull has both ``no_wait`` and an expiry, which nats-server takes as: send the available messages, or wait
for the first, then stop, with a status message as the last word. Three things end a pull without that word: a
consumer that may not deliver more for now (``max_ack_pending``), a lost connection, and a consumer whose leader
died, which shows in missing heartbeats. Then the subscription is drained (unsubscribed, and messages on their way are
received), so that the server does not deliver to a client that no longer listens; the next pull subscribes again. A
cancelled pull gives back what it got. The last word may arrive ahead of messages, which wait for the replicas of their
consumer: it tells how many of the requested messages were not sent, and the others are awaited.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final

import nats.errors

from pelton.api import Delivered, PullRequest, api_error, delivery_of
from pelton.api.errors import from_reply
from pelton.api.message import (
    CONSUMER_DELETED,
    EXPIRED,
    HEARTBEAT,
    LEADERSHIP_CHANGE,
    NO_MESSAGES,
    REQUESTS_PENDING,
    SHUTDOWN,
    TOO_LARGE,
    NextRequest,
    encode_next,
    next_request,
)
from pelton.cluster.client import NO_RESPONDERS, NatsClient, Status, status_of
from pelton.cluster.connection import Connection, Interrupted
from pelton.runtime import Deadline, Signal, within

_LONGEST_S: Final = 30.0
_SLACK_S: Final = 2.0
_FIRST_S: Final = 0.05
_QUIET_S: Final = 0.01
_LAST_WORD_S: Final = 1.0
_ROUND_TRIP_S: Final = 5
_DRAIN_S: Final = 3.0
# The server sends one when it has nothing else to send; pulls shorter than two of them have none.
_HEARTBEAT_S: Final = 1.5
_BEATS: Final = 2.5
_LOST_WORD: Final = Status(-1, "")
_SILENT_WORD: Final = Status(-2, "")
_TIMED_OUT: Final = (NO_MESSAGES.code, EXPIRED.code)
_NOT_SENT: Final = b"Nats-Pending-Messages: "
_ASK_AGAIN: Final = (LEADERSHIP_CHANGE.text.lower(), SHUTDOWN.text.lower())
# Idle subscriptions that a connection keeps, over all consumers.
_FREE_AT_MOST: Final = 256

Key = tuple[str, str]
"""Names of a stream and a consumer."""


class FreeChannels:
    """Channels that are not in use, for later pulls; bounded, since consumers come and go."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The least recently used comes first.
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
    """A subscription for the replies to the pulls of one consumer, one pull at a time."""

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

    async def ask(self, subject: str, asked: NextRequest) -> None:
        """Send a pull; its replies go to ``messages`` and ``last_word``."""
        self.last_word = self._early_word = None
        client = await self._connection.client()
        if client is not self._client:
            if self._client is None:
                self._connection.on_lost.append(self._on_lost)
            self._client = client
            self._subscription = await client.listen(f"{self._inbox}.*", self._on_message)
        self._number += 1
        self._asked, self._came = asked.batch, 0
        try:
            await self._connection.tell(subject, encode_next(asked), f"{self._inbox}.{self._number}")
        except Interrupted:
            self.last_word = _LOST_WORD

    async def gather(self, batch: int, first_s: float, beat_s: float = 0.0) -> bool:
        """Wait for the first message and those that come with it; return whether the pull has ended.

        With ``beat_s`` the server sends something at least that often, or is gone.
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
                # Sent messages are certain to come, and so is the last word if nothing is left to deliver.
                certain = self._early_word is not None or not self.messages[-1].num_pending
                end = clock.monotonic() + (_LAST_WORD_S if certain else _QUIET_S)
                beat_s = 0.0
        return not self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether nothing more can come: the connection was lost, or the consumer's leader."""
        return self.last_word in (_LOST_WORD, _SILENT_WORD)

    async def retire(self) -> None:
        """Unsubscribe, but receive messages on their way; bounded in time."""
        if self._client is None:
            return
        self._connection.on_lost.remove(self._on_lost)
        subscription, self._client, self._subscription = self._subscription, None, None
        try:
            await within(self._connection.clock, _DRAIN_S, subscription.drain())
        except (nats.errors.Error, OSError, TimeoutError):
            # Without a connection the server cannot deliver either; once it is back, it must not.
            with suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    def _on_message(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        status = status_of(block)
        if not status.code:
            # Its subject is its own; a channel with messages of an earlier pull on their way is not used again.
            self.messages.append(delivery_of(subject, reply, block, data))
            self._came += 1
            if self._early_word is not None and self._came >= self._sent:
                self.last_word = self._early_word
            elif len(self.messages) != 1 and len(self.messages) < self._enough:
                # The waiting pull only checks when there is enough, or when messages pause.
                return
        elif status.code != HEARTBEAT.code and subject.endswith(f".{self._number}"):
            self._sent = self._asked - _not_sent(block, self._asked)
            if self._came < self._sent:
                self._early_word = status
            else:
                self.last_word = status
        self._signal.notify()

    def _on_lost(self) -> None:
        self.last_word = _LOST_WORD
        self._signal.notify()


def _not_sent(block: bytes | None, asked: int) -> int:
    """Return how many requested messages were not sent according to a last word; all of them if it has no count."""
    digits = (block or b"").partition(_NOT_SENT)[2].partition(b"\r\n")[0]
    return int(digits) if digits.isdigit() else asked


class Pull:
    """One pull, from the request to its messages. ``subject`` is the API subject of the consumer's next message."""

    def __init__(self, connection: Connection, subject: str, request: PullRequest, where: tuple[str, str]) -> None:
        self._connection = connection
        self._subject = subject
        self._request = request
        self._where = where
        self._busy = False
        self._deadline = Deadline(connection.clock, None if request.expires_ns is None else request.expires_ns / 1e9)

    async def run(self, channel: Channel) -> bool:
        """Fill ``channel.messages``; return whether the channel can be reused. Raises ApiError, StoreError."""
        while True:
            asked, first_s = self._question()
            await channel.ask(self._subject, asked)
            beat_s = _HEARTBEAT_S * _BEATS if asked.idle_heartbeat else 0.0
            ended = await channel.gather(self._request.batch, first_s, beat_s)
            if not ended and not channel.messages and self._request.no_wait:
                # No reply from a distant server, or from a consumer that may not deliver now: a round trip tells.
                ended = await self._round_trip() and await channel.gather(self._request.batch, _FIRST_S)
            if channel.messages or not ended or self._is_over(channel.last_word):
                return ended

    async def _round_trip(self) -> bool:
        try:
            await (await self._connection.client()).flush(_ROUND_TRIP_S)
        except (nats.errors.Error, OSError):
            return False
        return True

    def _question(self) -> tuple[NextRequest, float]:
        """Return the request, and how long the first reply may take."""
        request = self._request
        # If others are already waiting, one message is all that can be requested with a certain end.
        batch = 1 if self._busy else request.batch
        if request.no_wait:
            return next_request(request, expires_ns=0, no_wait=True, batch=batch, heartbeat_ns=0), _FIRST_S
        # A server drops a pin whose holder waits longer than its timeout: another pull renews it.
        longest = min(_LONGEST_S, request.renew_ns / 1e9 or _LONGEST_S)
        left = self._deadline.left
        left = longest if left is None else min(max(left, 0.001), longest)
        beat_ns = int(_HEARTBEAT_S * 1e9) if left > 2 * _HEARTBEAT_S else 0
        asked = next_request(
            request, expires_ns=int(left * 1e9), no_wait=not self._busy, batch=batch, heartbeat_ns=beat_ns
        )
        return asked, left + _SLACK_S

    def _is_over(self, last_word: Status | None) -> bool:
        """Judge the last word of a pull that got nothing: over, to be repeated, or an error."""
        assert last_word is not None
        (status, text), (stream, consumer) = last_word, self._where
        known = text.lower()
        if status in _TIMED_OUT:
            if known == REQUESTS_PENDING.text.lower() and not self._request.no_wait:
                self._busy = True
                return False
            return self._request.no_wait or self._deadline.is_over
        if status == TOO_LARGE.code and known == TOO_LARGE.text.lower():
            return True
        if status == SHUTDOWN.code and known in _ASK_AGAIN:
            return False
        if status == NO_RESPONDERS or known == CONSUMER_DELETED.text.lower():
            raise api_error("JSConsumerNotFoundErr", stream=stream, consumer=consumer)
        raise from_reply(status, 0, text, stream=stream, consumer=consumer)
