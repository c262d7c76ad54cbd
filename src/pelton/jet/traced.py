"""Sending and settling messages, told to whoever traces the opening."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pelton.api import AckOp, Backend, Delivered, Outgoing, PeltonError, PubAck


async def send(
    backend: Backend, messages: Sequence[Outgoing], store: Callable[[Sequence[Outgoing]], Awaitable[list[PubAck]]]
) -> list[PubAck]:
    """Store messages with ``store``, and return their acknowledgements."""
    if backend.tracing is None:
        return await store(messages)
    with backend.tracing.sending(messages) as span:
        acks = await store(span.messages)
        span.stored(acks)
        return acks


async def send_one(backend: Backend, message: Outgoing) -> PubAck:
    """Publish a message."""

    async def store(messages: Sequence[Outgoing]) -> list[PubAck]:
        return [await backend.publish(one.subject, one.data, one.headers) for one in messages]

    return (await send(backend, [message], store))[0]


async def settle(
    backend: Backend,
    delivered: Sequence[Delivered],
    acks: Sequence[AckOp],
    port: Callable[[str, str, Sequence[AckOp]], Awaitable[list[PeltonError | None]]],
) -> list[PeltonError | None]:
    """Acknowledge deliveries of one consumer, each with its ack, through ``port``; return why which had no effect."""
    stream, consumer = delivered[0].stream, delivered[0].consumer
    if backend.tracing is None or acks[0].kind == "progress":
        return await port(stream, consumer, acks)
    with backend.tracing.settling(acks[0].kind, delivered) as span:
        answers = await port(stream, consumer, acks)
        span.answered(answers)
        return answers
