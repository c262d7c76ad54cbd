"""Messages: what a user publishes, the handle of a delivered one, and what tracers hear of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import isawaitable
from typing import Any, Final, Literal, TypedDict, cast

from pelton.api import AckKind, AckOp, Backend, ConfigError, Delivered, Headers, Outgoing, PeltonError, PubAck, headers
from pelton.api.arguments import check_instance, check_known, check_text, check_whole, items_of, message_of
from pelton.api.build import seconds_to_ns, ttl_text
from pelton.api.times import Seconds
from pelton.api.tracing import Tracing


def send(
    backend: Backend, messages: Sequence[Outgoing], store: Callable[[Sequence[Outgoing]], Awaitable[list[PubAck]]]
) -> Awaitable[list[PubAck]]:
    """Store messages with ``store``, and return their acknowledgements."""
    return store(messages) if backend.tracing is None else _send_traced(backend.tracing, messages, store)


async def _send_traced(
    tracing: Tracing, messages: Sequence[Outgoing], store: Callable[[Sequence[Outgoing]], Awaitable[list[PubAck]]]
) -> list[PubAck]:
    with tracing.sending(messages) as span:
        acks = await store(span.messages)
        span.on_stored(acks)
        return acks


async def send_one(backend: Backend, message: Outgoing) -> PubAck:

    async def store(messages: Sequence[Outgoing]) -> list[PubAck]:
        return [await backend.publish(one.subject, one.data, one.headers) for one in messages]

    return (await send(backend, [message], store))[0]


AckPort = Callable[[str, str, Sequence[AckOp]], Awaitable[list[PeltonError | None]]]


def settle(
    backend: Backend, delivered: Sequence[Delivered], acks: Sequence[AckOp], port: AckPort
) -> Awaitable[list[PeltonError | None]]:
    """Acknowledge deliveries of one consumer, each with its ack, through ``port``; return why which had no effect."""
    tracing = backend.tracing
    if tracing is None or acks[0].kind == "progress":
        return port(delivered[0].stream, delivered[0].consumer, acks)
    return _settle_traced(tracing, delivered, acks, port)


async def _settle_traced(
    tracing: Tracing, delivered: Sequence[Delivered], acks: Sequence[AckOp], port: AckPort
) -> list[PeltonError | None]:
    with tracing.settling(acks[0].kind, delivered) as span:
        answers = await port(delivered[0].stream, delivered[0].consumer, acks)
        span.on_answers(answers)
        return answers


# --- the handle of a delivered message


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
        """Settle the message so that it is never redelivered; ``reason`` is part of the advisory.

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


# --- what a program does with a message, as the tracer of its opening sees it


def processing(message: Message) -> AbstractContextManager[None]:
    """Cover what a program does with a message that it has fetched."""
    tracing = message._backend.tracing  # one package
    return nullcontext() if tracing is None else tracing.processing(message.delivered, is_new=False)


def traced_callback(tracing: Tracing, callback: Callable[[Message], object]) -> Callable[[Message], Awaitable[Any]]:
    """Return a callback that reports each of its calls to the tracer."""

    async def call(message: Message) -> None:
        with tracing.processing(message.delivered, is_new=True):
            result = callback(message)
            if result is not None and isawaitable(result):
                await result

    return call


# --- turns a user's values into the messages that a backend publishes

HeaderValues = Mapping[str, str | Sequence[str]]
AnyMessage = tuple[str, bytes] | tuple[str, bytes, HeaderValues | None]
"""Subject, data, and headers if there are any."""
_MESSAGES: Final = "(subject, data) or (subject, data, headers)"
_LARGEST_BATCH: Final = 1000
_BATCH_HEADERS: Final = (headers.BATCH_ID, headers.BATCH_SEQUENCE, headers.BATCH_COMMIT)
_TEXTS: Final = {
    "msg_id": headers.MSG_ID,
    "expected_stream": headers.EXPECTED_STREAM,
    "expected_last_msg_id": headers.EXPECTED_LAST_MSG_ID,
    "expected_last_subject_seq_subject": headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
}
_NUMBERS: Final = {
    "expected_last_seq": headers.EXPECTED_LAST_SEQUENCE,
    "expected_last_subject_seq": headers.EXPECTED_LAST_SUBJECT_SEQUENCE,
}


def batch_of(messages: Iterable[AnyMessage]) -> list[Outgoing]:
    """Return the messages of a batch that is stored as one, in the port's form. Raises ConfigError."""
    batch = all_outgoing(messages)
    if not 1 <= len(batch) <= _LARGEST_BATCH:
        raise ConfigError(f"a batch of {len(batch)} messages: 1 to {_LARGEST_BATCH} are stored together or not at all")
    for message in batch:
        for name in _BATCH_HEADERS if message.headers is not None else ():
            if headers.first(message.headers or b"", name) is not None:
                raise ConfigError(f"header {name}: publish_atomic makes the batch itself; leave it out")
    return batch


def all_outgoing(messages: Iterable[AnyMessage]) -> list[Outgoing]:
    """Return the messages of a batch in the port's form. Raises ConfigError, which names the one that is wrong."""
    given = items_of("a batch", "messages", messages, _MESSAGES)
    try:
        return [outgoing(*message) for message in given]
    except (TypeError, ConfigError):
        for number, message in enumerate(given):
            _check_member(number, message)
        raise


def _check_member(number: int, message: object) -> None:
    where = f"message {number} of the batch"
    if not isinstance(message, Sequence) or isinstance(message, str | bytes) or len(message) not in (2, 3):
        raise ConfigError(f"{where} is {message!r}: give {_MESSAGES}")
    try:
        outgoing(*message)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def header_block(values: HeaderValues | None, asked: Mapping[str, object]) -> bytes | None:
    """Return the encoded header block of a message.

    The user's headers and the conditions that are not None.
    """
    given = {name: str(value) for name, value in asked.items() if value is not None}
    if not given:
        return headers.encode(values) if values else None
    return headers.encode({**headers.as_lists(values), **given} if values else given)


class PublishOptions(TypedDict, total=False):
    """Options of a message beside subject and data: see :meth:`Jet.publish`."""

    msg_id: str | None
    headers: HeaderValues | None
    expected_stream: str | None
    expected_last_msg_id: str | None
    expected_last_seq: int | None
    expected_last_subject_seq: int | None
    expected_last_subject_seq_subject: str | None
    ttl: Seconds | Literal["never"] | None


def publish_block(options: PublishOptions) -> bytes | None:
    """Return the encoded header block of a message that is published with these options. Raises ConfigError."""
    values: HeaderValues | None = None
    asked: dict[str, object] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _TEXTS:
            check_text("publish", name, value)
            asked[_TEXTS[name]] = value
        elif name in _NUMBERS:
            check_whole("publish", name, value, None)
            asked[_NUMBERS[name]] = value
        elif name == "ttl":
            asked[headers.TTL] = ttl_text(cast(Seconds, value))
        elif name == "headers":
            values = cast(HeaderValues, value)
        else:
            check_known("publish", (name,), PublishOptions.__annotations__)
    return header_block(values, asked) if asked or values else None


def outgoing(subject: str, data: bytes, values: HeaderValues | None = None) -> Outgoing:
    """Return a message in the port's form. Raises ConfigError."""
    if type(subject) is not str or type(data) is not bytes:
        subject, data = message_of(subject, data)
    return Outgoing(subject, data, headers.encode(values) if values else None)
