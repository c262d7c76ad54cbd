"""Reading a queue's streams from their beginning to their present end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from pelton.api import Delivered, MessageNotFoundError, StoredMessage, StoreReadOnlyError
from pelton.api.json_values import UNREADABLE
from pelton.queue.model.orders import Order, decode

if TYPE_CHECKING:
    from pelton.jet import Stream

_PAGE: Final = 256
_FIRST: Final = 4
_AT_ONCE: Final = 64
_BEYOND: Final = 2**40


async def scan(stream: Stream, filter_subject: str) -> AsyncGenerator[tuple[int, bytes], None]:
    """Read sequences and data of a stream from its beginning to its present end."""
    async with aclosing(deliveries(stream, filter_subject)) as found:
        async for delivered in found:
            yield delivered.seq, delivered.data


async def number_of_subjects(stream: Stream, filter_subject: str) -> int:
    """Return how many subjects with messages match, without a list of them: there may be millions."""
    return (await stream.info(subjects_filter=filter_subject, offset=_BEYOND)).total


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


async def stored_messages(stream: Stream, filter_subject: str, seq: int = 1) -> AsyncGenerator[StoredMessage]:
    """Read a stream from a sequence to its present end, without a consumer; some messages at a time, at last many."""
    read = _page if stream.config.allow_direct else _side_by_side
    number = _FIRST
    while page := await read(stream, filter_subject, seq, number):
        for stored in page:
            yield stored
        seq, number = page[-1].seq + 1, min(2 * number, _PAGE)


async def orders_in(stream: Stream, filter_subject: str) -> list[Order]:
    """Return the orders of a filter that hold, or were taken back a moment ago, in the order of their sequences."""
    found: list[Order] = []
    async with aclosing(stored_messages(stream, filter_subject)) as stored:
        async for one in stored:
            # One that cannot be read is of a newer version.
            with suppress(*UNREADABLE):
                found.append(decode(one.data))
    return found


async def _page(stream: Stream, filter_subject: str, seq: int, number: int) -> Sequence[StoredMessage]:
    return await stream.get_messages(number, seq=seq, subject=filter_subject)


async def _side_by_side(stream: Stream, filter_subject: str, seq: int, number: int) -> Sequence[StoredMessage]:
    """Ask at several sequences at once, for where messages are dense, these are as many messages."""
    asked = range(seq, seq + min(number, _AT_ONCE))
    answers = await asyncio.gather(*(_next(stream, filter_subject, each) for each in asked))
    found = {stored.seq: stored for stored in answers if stored is not None}
    return [found[each] for each in sorted(found)]


async def _next(stream: Stream, filter_subject: str, seq: int) -> StoredMessage | None:
    try:
        return await stream.get_next_message(filter_subject, seq)
    except MessageNotFoundError:
        return None


async def messages_of_filters(stream: Stream, filters: Sequence[str], seq: int = 1) -> AsyncGenerator[StoredMessage]:
    """Read what matches any of some filters, none of which overlap, in the order of sequences."""
    heads: list[tuple[int, int, StoredMessage]] = []
    async with AsyncExitStack() as reads:
        sources = [await reads.enter_async_context(aclosing(stored_messages(stream, each, seq))) for each in filters]
        waiting = list(range(len(sources)))
        while True:
            for number in waiting:
                stored = await anext(sources[number], None)
                if stored is not None:
                    heappush(heads, (stored.seq, number, stored))
            if not heads:
                return
            _, number, stored = heappop(heads)
            yield stored
            waiting = [number]
