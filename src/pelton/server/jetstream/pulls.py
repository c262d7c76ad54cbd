"""Pulls of clients: each stands in the engine until it is filled or over, and answers on its reply subject (ADR-13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pelton.api import ApiError, Delivered, headers
from pelton.api.pulling import (
    BATCH_COMPLETED,
    EXPIRED,
    HEARTBEAT,
    PIN_TAKEN,
    TOO_LARGE,
    NextRequest,
    PullStatus,
    decode_next,
)
from pelton.engine.serving import Serving
from pelton.server.jetstream.link import Send
from pelton.server.ports import Published
from pelton.wire import status_block

_COUNTED: Final = (EXPIRED, TOO_LARGE, BATCH_COMPLETED, PIN_TAKEN)


class ClientPulls:
    """The pulls of one account's clients.

    ``receives``: whether a subject has a subscriber, ``has_room``: whether one of them keeps up.
    """

    def __init__(
        self,
        serving: Serving,
        send: Send,
        answer: Callable[[str, bytes | None, bytes], None],
        receives: Callable[[str], bool],
        has_room: Callable[[str], bool],
    ) -> None:
        self._has_room = has_room
        self._serving = serving
        self._send = send
        self._answer = answer
        self._receives = receives

    def take(self, names: str, message: Published) -> bool:
        """Let a pull stand; False if there is no such consumer."""
        stream, _, consumer = names.partition(".")
        config = self._serving.consumer(stream, consumer)
        if config is None:
            return False
        if not message.reply:
            return True
        try:
            request = decode_next(message.data)
        except ApiError as error:
            self._answer(message.reply, status_block(error.code, error.description), b"")
            return True
        self.pull(stream, consumer, request, message.reply)
        return True

    def pull(self, stream: str, consumer: str, asked: NextRequest, reply: str) -> None:
        """Let a pull stand."""
        sink = _ClientSink(self._send, self._receives, self._has_room, reply)
        self._serving.pull(stream, consumer, asked.request, max(asked.idle_heartbeat, 0) / 1e9, sink)


class _ClientSink:
    """Sends what a pull gets to its reply subject."""

    def __init__(
        self, send: Send, receives: Callable[[str], bool], has_room: Callable[[str], bool], reply: str
    ) -> None:
        self._send = send
        self._room = has_room
        self._receives = receives
        self._reply = reply

    @property
    def is_gone(self) -> bool:
        """Whether nobody subscribes to the reply subject any more."""
        return not self._receives(self._reply)

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it gets."""
        return self._room(self._reply)

    def deliver(self, messages: Sequence[Delivered]) -> None:
        """Send messages, each with the subject that acknowledges it."""
        for message in messages:
            self._send(self._reply, message.subject, message.reply, message.headers, message.data)

    def beat(self, last_consumer: int, last_stream: int) -> None:
        """Send a sign of life."""
        values = {headers.LAST_CONSUMER: last_consumer, headers.LAST_STREAM: last_stream}
        self._send(self._reply, self._reply, "", status_block(HEARTBEAT.code, HEARTBEAT.text, **values), b"")

    def end(self, status: PullStatus, left: int, left_bytes: int) -> None:
        """Tell how the pull ended, and what it did not get."""
        counts = {headers.PENDING_MESSAGES: left, headers.PENDING_BYTES: left_bytes} if status in _COUNTED else {}
        self._send(self._reply, self._reply, "", status_block(status.code, status.text, **counts), b"")
