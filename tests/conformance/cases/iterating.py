"""Iterating over the messages of a pull consumer one by one, and stopping at any moment."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from pelton.api import BadRequestError, ConsumerNotFoundError, PullRefusedError
from pelton.connect import Jet
from pelton.jet import Consumer
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case, fails


async def _consumer(jet: Jet, messages: int, **config: Any) -> Consumer:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"%d" % n) for n in range(messages)])
    return await stream.create_consumer(durable_name="c", ack_wait=600, **config)


async def _unsettled(consumer: Consumer) -> int:
    return (await consumer.info()).num_ack_pending


async def _waiting(consumer: Consumer) -> None:
    while not (await consumer.info()).num_waiting:  # the number is the event
        await asyncio.sleep(0)


async def _take(consumer: Consumer, count: int, **options: Any) -> list[bytes]:
    """Take that many messages, acknowledge each, and stop."""
    seen: list[bytes] = []
    messages = consumer.messages(**options)
    async for message in messages:
        await message.ack()
        seen.append(message.data)
        if len(seen) == count:
            break
    await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator
    return seen


@case
async def the_next_message_or_none(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    message = await consumer.next(timeout=60)
    assert message is not None
    assert message.data == b"0"
    assert await consumer.next(timeout=0.1) is None
    assert await consumer.next(no_wait=True) is None
    await consumer.delete()
    await fails(ConsumerNotFoundError, consumer.next())


@case
async def all_of_them_in_order(jet: Jet) -> None:
    consumer = await _consumer(jet, 50)
    assert await _take(consumer, 50, prefetch=8) == [b"%d" % n for n in range(50)]
    await eventually(lambda: _unsettled(consumer), 0)


@case
async def what_lies_ready_goes_back_at_the_end(jet: Jet) -> None:
    consumer = await _consumer(jet, 50)
    assert len(await _take(consumer, 5, prefetch=16)) == 5
    # At once, not after the ack wait.
    rest = await _take(consumer, 45, prefetch=16)
    assert sorted(rest, key=int) == [b"%d" % n for n in range(5, 50)]
    await eventually(lambda: _unsettled(consumer), 0)


@case
async def a_loop_that_is_left_gives_back_what_lies_ready(jet: Jet) -> None:
    consumer = await _consumer(jet, 10)
    async for message in consumer.messages(prefetch=8):
        await message.ack()
        break
    # The iterator has no reference left: Python closes it.
    rest = await asyncio.wait_for(_take(consumer, 9, prefetch=8), 30)
    assert sorted(rest, key=int) == [b"%d" % n for n in range(1, 10)]


@case
async def an_iteration_that_is_kept_holds_what_lies_ready_until_it_is_closed(jet: Jet) -> None:
    consumer = await _consumer(jet, 4)
    async with aclosing(consumer.messages(prefetch=4)) as messages:  # type: ignore[type-var]  # it is an async generator
        async for message in messages:
            await message.ack()
            break
        # As many as one pull takes embedded, and as a cluster may have in flight.
        while found := await consumer.next(timeout=0.2):
            await found.ack()
        held = (await consumer.info()).num_ack_pending
        assert held
    rest = await asyncio.wait_for(_take(consumer, held), 30)
    assert len(rest) == held
    await eventually(lambda: _unsettled(consumer), 0)


@case
async def no_more_lies_ready_than_asked_for(jet: Jet) -> None:
    consumer = await _consumer(jet, 50)
    messages = consumer.messages(prefetch=4)
    first = await anext(messages)
    assert await _unsettled(consumer) <= 4
    await first.ack()
    await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator


@case
async def what_was_taken_goes_back_when_cancelled(jet: Jet) -> None:
    consumer = await _consumer(jet, 20)
    held = asyncio.Event()

    async def hold() -> None:
        messages = consumer.messages(prefetch=8)
        try:
            async for _ in messages:
                held.set()
                await asyncio.Event().wait()
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator

    holding = jet.runtime.spawn(hold(), "an iteration")
    await held.wait()
    holding.cancel()
    await asyncio.wait([holding])
    # The one that was handed out belongs to its holder.
    await eventually(lambda: _unsettled(consumer), 1 + await _given_back(consumer))


async def _given_back(consumer: Consumer) -> int:
    """How many are redelivered: those come first, so they are taken here, and stay unsettled."""
    found = await consumer.fetch(19, timeout=5)
    while len(found) < 19:
        found += await consumer.fetch(19 - len(found), timeout=5)
    assert sorted(message.metadata.stream_seq for message in found) == list(range(2, 21))
    return len(found)


@case
async def one_that_waits_can_be_cancelled(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    waiting = jet.runtime.spawn(_take(consumer, 1), "an iteration")
    await _waiting(consumer)
    waiting.cancel()
    await asyncio.wait([waiting])
    await jet.publish("s", b"x")
    message = await consumer.next(timeout=60)
    assert message is not None
    assert message.metadata.num_delivered <= 2


@case
async def a_message_too_large_is_told(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    await jet.publish("s", b"small")
    await jet.publish("s", b"x" * 5000)
    messages = consumer.messages(max_bytes=1000)
    await (await anext(messages)).ack()
    error = await fails(PullRefusedError, anext(messages))
    assert (error.code, error.description) == (409, "Message Size Exceeds MaxBytes")


@case
async def a_limit_of_the_consumer_bounds_what_lies_ready(jet: Jet) -> None:
    consumer = await _consumer(jet, 9, max_batch=2)
    assert len(await _take(consumer, 9)) == 9


@case
async def a_consumer_deleted_meanwhile_is_told(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    messages = consumer.messages()
    await (await anext(messages)).ack()
    await consumer.delete()
    await fails(ConsumerNotFoundError, anext(messages))


@case
async def a_push_consumer_is_not_pulled_from(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, deliver_subject="to.me")
    error = await fails(BadRequestError, consumer.next())
    assert (error.code, error.description) == (409, "Consumer is push based")
