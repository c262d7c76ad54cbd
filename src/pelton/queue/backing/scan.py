"""Reading a queue's streams from their beginning to their present end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from pelton.api import Delivered, MessageNotFoundError, StoreReadOnlyError

if TYPE_CHECKING:
    from pelton.jet import Stream

_PAGE: Final = 256


async def scan(stream: Stream, filter_subject: str) -> AsyncGenerator[tuple[int, bytes], None]:
    """Read sequences and data of a stream from its beginning to its present end."""
    try:
        async with aclosing(deliveries(stream, filter_subject)) as found:
            async for delivered in found:
                yield delivered.seq, delivered.data
    except StoreReadOnlyError:
        # No consumer could be made, so nothing was read yet.
        async with aclosing(_looked_up(stream, filter_subject or ">")) as found_one_by_one:
            async for seq, data in found_one_by_one:
                yield seq, data


async def deliveries(stream: Stream, filter_subject: str) -> AsyncGenerator[Delivered, None]:
    """Read a stream from its beginning to its present end, with an ephemeral consumer."""
    consumer = await stream.create_consumer(ack_policy="none", filter_subject=filter_subject)
    try:
        while found := await consumer.fetch(_PAGE, no_wait=True):
            for message in found:
                yield message.delivered
    finally:
        await consumer.delete()


async def _looked_up(stream: Stream, filter_subject: str) -> AsyncGenerator[tuple[int, bytes], None]:
    seq = 1
    while True:
        try:
            stored = await stream.get_next_message(filter_subject, seq)
        except MessageNotFoundError:
            return
        yield stored.seq, stored.data
        seq = stored.seq + 1
