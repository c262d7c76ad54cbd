"""The handle of a delivered message."""

from __future__ import annotations

from pelton.api import (
    AckKind,
    AckOp,
    Backend,
    Delivered,
    Headers,
    headers,
)
from pelton.api.arguments import check_instance
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds
from pelton.jet.traced import settle


class Message:
    """A delivered message. ``delivered`` is the delivery itself (sequences, counts, time, fencing token)."""

    __slots__ = ("_backend", "_headers", "delivered", "is_settled")

    def __init__(self, backend: Backend, delivered: Delivered) -> None:
        self._backend = backend
        self._headers: Headers | None = None
        self.delivered: Delivered = delivered
        # Whether this handle has settled it.
        self.is_settled: bool = False

    def __repr__(self) -> str:
        d = self.delivered
        return f"<Message {d.stream}/{d.seq} {d.subject!r} {len(d.data)} bytes, delivery {d.num_delivered}>"

    @property
    def _about(self) -> str:
        return f"message {self.delivered.seq} of stream {self.delivered.stream!r}"

    @property
    def subject(self) -> str:
        """The subject it was stored under."""
        return self.delivered.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.delivered.data

    @property
    def headers(self) -> Headers:
        """The headers; empty when the message has none."""
        if self._headers is None:
            block = self.delivered.headers
            self._headers = Headers() if not block else headers.decode(block)
        return self._headers

    @property
    def metadata(self) -> Metadata:
        """The message's origin, and how often it was delivered."""
        return Metadata(self.delivered)

    async def ack(self) -> None:
        """Settle the message.

        Returns when that is durable. Raises AckRejectedError if the message was redelivered.
        """
        if self._backend.tracing is not None:
            await self._say("ack")
            return
        d = self.delivered
        ack = AckOp(seq=d.seq, consumer_seq=d.consumer_seq, num_delivered=d.num_delivered, token=d.token)
        answers = await self._backend.ack(d.stream, d.consumer, (ack,))
        self.is_settled = True
        if answers[0] is not None:
            raise answers[0]

    async def ack_sync(self) -> None:
        """The same as :meth:`ack`, which already awaits durability; NATS's name for it."""
        await self._say("ack")

    async def nak(self, *, delay: Seconds = 0) -> None:
        """Give the message back, to be redelivered after ``delay`` seconds. Raises AckRejectedError."""
        await self._say("nak", delay_ns=seconds_to_ns("delay", delay, self._about))

    async def in_progress(self) -> None:
        """Restart the ack wait, because you are still working. Raises AckRejectedError."""
        await self._say("progress")

    async def term(self, *, reason: str = "") -> None:
        """Settle the message so that it is never redelivered; ``reason`` is told in the advisory.

        Raises AckRejectedError.
        """
        await self._say("term", reason=reason_text(self._about, reason))

    async def _say(self, kind: AckKind, *, delay_ns: int = 0, reason: str = "") -> None:
        d = self.delivered
        ack = ack_of(d, kind, delay_ns=delay_ns, reason=reason)
        answers = await settle(self._backend, (d,), (ack,), self._backend.ack)
        self.is_settled = self.is_settled or kind != "progress"
        if answers[0] is not None:
            raise answers[0]


def reason_text(of: str, reason: str) -> str:
    """Return the reason for a term in a form that can be sent. Raises ConfigError if it is no text."""
    check_instance(of, "reason", reason, str, "give text (str)")
    # Free text, such as an error message: characters without a UTF-8 form are escaped.
    return reason.encode(errors="backslashreplace").decode()


def ack_of(delivered: Delivered, kind: AckKind, *, delay_ns: int = 0, reason: str = "", cause: int = 0) -> AckOp:
    """Return the ack of a delivery, in the port's form."""
    return AckOp(
        kind=kind,
        seq=delivered.seq,
        consumer_seq=delivered.consumer_seq,
        delay_ns=delay_ns,
        reason=reason,
        num_delivered=delivered.num_delivered,
        token=delivered.token,
        cause=cause,
    )


class Metadata:
    """NATS's metadata of a delivery, under NATS's names.

    ``timestamp`` is wall nanoseconds since the epoch.
    """

    __slots__ = (
        "consumer",
        "consumer_seq",
        "num_delivered",
        "num_pending",
        "stream",
        "stream_seq",
        "timestamp",
        "token",
    )

    def __init__(self, delivered: Delivered) -> None:
        self.stream: str = delivered.stream
        self.consumer: str = delivered.consumer
        self.stream_seq: int = delivered.seq
        self.consumer_seq: int = delivered.consumer_seq
        self.num_delivered: int = delivered.num_delivered
        self.num_pending: int = delivered.num_pending
        self.timestamp: int = delivered.time_ns
        self.token: int = delivered.token
