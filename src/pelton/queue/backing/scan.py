"""Reading a queue's streams from their beginning to their present end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from pelton.api import Delivered, MessageNotFoundError, StoredMessage, StoreReadOnlyError

if TYPE_CHECKING:
    from pelton.jet import Stream

_PAGE: Final = 256


async def scan(stream: Stream, filter_subject: str) -> AsyncGenerator[tuple[int, bytes], None]:
    """Read sequences and data of a stream from its beginning to its present end."""
    async with aclosing(deliveries(stream, filter_subject)) as found:
        async for delivered in found:
            yield delivered.seq, delivered.data


async def deliveries(stream: Stream, filter_subject: str) -> AsyncGenerator[Delivered | StoredMessage, None]:
    """Read a stream from its beginning to its present end: with an ephemeral consumer, if one can be made."""
    try:
        consumer = await stream.create_consumer(ack_policy="none", filter_subject=filter_subject)
    except StoreReadOnlyError:
        async with aclosing(stored_messages(stream, filter_subject or ">")) as found_one_by_one:
            async for stored in found_one_by_one:
                yield stored
        return
    try:
        while found := await consumer.fetch(_PAGE, no_wait=True):
            for message in found:
                yield message.delivered
    finally:
        await consumer.delete()


async def stored_messages(stream: Stream, filter_subject: str, seq: int = 1) -> AsyncGenerator[StoredMessage, None]:
    """Read a stream from a sequence to its present end, without a consumer, one message at a time."""
    while True:
        try:
            stored = await stream.get_next_message(filter_subject, seq)
        except MessageNotFoundError:
            return
        yield stored
        seq = stored.seq + 1


async def messages_of_filters(
    stream: Stream, filters: Sequence[str], seq: int = 1
) -> AsyncGenerator[StoredMessage, None]:
    """Read what matches any of some filters, none of which overlap, in the order of sequences."""
    heads: dict[str, StoredMessage] = {}
    wanted = list(filters)
    while True:
        for each in wanted:
            with suppress(MessageNotFoundError):
                heads[each] = await stream.get_next_message(each, seq)
        if not heads:
            return
        first = min(heads, key=lambda each: heads[each].seq)
        stored = heads.pop(first)
        yield stored
        wanted, seq = [first], stored.seq + 1
