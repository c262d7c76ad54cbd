"""What clients publish to streams: all of one round of the event loop in one group, each answered when it is durable.

While too much waits for the store, the clients that publish are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from pelton.api import Outgoing, PeltonError, PubAck
from pelton.api.pub_acks import encode_pub_ack, encode_pub_error
from pelton.engine.serving import Serving
from pelton.runtime import Signal
from pelton.server.interest import RelayedInterest
from pelton.server.ports import Client

_MOST_WAITING: Final = 16_384
_MOST_BYTES: Final = 64 << 20


class _Place(NamedTuple):
    """Where a message is answered, and the stream that takes it."""

    reply: str
    stream: str


class Storing:
    """Stores messages of clients; ``answer`` sends a reply subject its answer. ``domain`` is JetStream's, or ""."""

    def __init__(
        self, serving: Serving, interest: RelayedInterest, answer: Callable[[str, bytes], object], domain: str
    ) -> None:
        self._serving = serving
        self._interest = interest
        self._answer = answer
        self._domain = domain
        self._messages: list[Outgoing] = []
        self._places: list[_Place] = []
        self._waiting = 0
        self._bytes = 0
        self._finished = 0
        self._paused: set[Client] = set()
        self._done = Signal()

    def add(self, client: Client | None, message: Outgoing, reply: str, stream: str) -> None:
        """Store a message at the end of this round."""
        if not self._messages:
            self._serving.soon(self._flush)
        self._messages.append(message)
        self._places.append(_Place(reply, stream))
        self._waiting += 1
        self._bytes += len(message.data)
        is_behind = self._waiting > _MOST_WAITING or self._bytes > _MOST_BYTES
        if is_behind and client is not None and client not in self._paused:
            self._paused.add(client)
            client.stop_reading()

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        places, self._places = self._places, []
        if self._interest.is_adjusting and self._serving.has_republishers:
            # Who has subscribed before a publish gets what a stream republishes of it.
            self._interest.after_adjusting(partial(self._store, messages, places))
        else:
            self._store(messages, places)

    def _store(self, messages: Sequence[Outgoing], places: Sequence[_Place]) -> None:
        size = sum([len(message.data) for message in messages])
        self._serving.store(messages, partial(self._answered, places, size, [len(messages)]))

    def _answered(
        self, places: Sequence[_Place], size: int, left: list[int], first: int, results: Sequence[PubAck | PeltonError]
    ) -> None:
        answer, domain = self._answer, self._domain
        for (reply, stream), result in zip(places[first:], results, strict=False):
            if reply:
                if isinstance(result, PubAck):
                    answer(reply, encode_pub_ack(result, domain))
                else:
                    answer(reply, encode_pub_error(result, stream))
        self._waiting -= len(results)
        left[0] -= len(results)
        if not left[0]:
            self._bytes -= size
        if self._paused and 2 * self._waiting <= _MOST_WAITING and 2 * self._bytes <= _MOST_BYTES:
            paused, self._paused = self._paused, set()
            for client in paused:
                client.read_again()
        self._finished += len(results)
        self._done.notify()

    async def up_to_here(self) -> None:
        """Wait until everything that was added so far is stored and answered."""
        wanted = self._finished + self._waiting
        while self._finished < wanted:
            await self._done.wait(self._done.generation)
