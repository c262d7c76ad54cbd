"""Pulls: how much they get, and how long they wait."""

from __future__ import annotations

import asyncio

from pelton.api import ConsumerNotFoundError, NotFoundError
from pelton.connect import Jet
from pelton.jet import Consumer
from pelton.runtime import Signal
from tests.conformance.cases.eventually import pending, taken
from tests.conformance.cases.table import case, fails


async def _consumer(jet: Jet, messages: int, **config: object) -> Consumer:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b"%d" % n) for n in range(messages)])
    return await stream.create_consumer(durable_name="c", **config)


async def _waiting(consumer: Consumer) -> None:
    """Return once a pull of this consumer waits."""
    while (await consumer.info()).num_waiting < 1:  # the number is the event
        await asyncio.sleep(0)


@case
async def messages_come_in_order_with_their_metadata(jet: Jet) -> None:
    consumer = await _consumer(jet, 3)
    messages = await consumer.fetch(3)
    assert [message.data for message in messages] == [b"0", b"1", b"2"]
    metadata = [message.metadata for message in messages]
    assert [(m.stream, m.consumer) for m in metadata] == [("S", "c")] * 3
    assert [(m.stream_seq, m.consumer_seq, m.num_delivered) for m in metadata] == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]
    assert [m.num_pending for m in metadata] == [2, 1, 0]
    assert abs(metadata[0].timestamp - jet.runtime.clock.now()) < 60 * 10**9


@case
async def no_more_than_asked_for(jet: Jet) -> None:
    consumer = await _consumer(jet, 5)
    assert [len(await consumer.fetch(2)) for _ in range(3)] == [2, 2, 1]


@case
async def what_is_there_is_returned_at_once(jet: Jet) -> None:
    consumer = await _consumer(jet, 2)
    assert len(await asyncio.wait_for(consumer.fetch(10, timeout=300), 60)) == 2


@case
async def nothing_without_waiting(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    assert await consumer.fetch(5, no_wait=True) == []


@case
async def nothing_within_the_time(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    assert await consumer.fetch(5, timeout=0.1) == []


@case
async def a_waiting_pull_gets_what_is_published(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    pull = asyncio.ensure_future(consumer.fetch(5, timeout=10))  # ends with the case
    await _waiting(consumer)
    await jet.publish("s.a", b"now")
    assert [message.data for message in await pull] == [b"now"]


@case
async def a_waiting_pull_for_ever(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    pull = asyncio.ensure_future(consumer.fetch(1, timeout=None))  # ends with the case
    await _waiting(consumer)
    await jet.publish("s.a", b"now")
    assert [message.data for message in await pull] == [b"now"]


@case
async def two_waiting_pulls_share(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    pulls = [asyncio.ensure_future(consumer.fetch(1, timeout=60)) for _ in range(2)]  # end with the case
    await _waiting(consumer)
    await jet.publish_batch([("s.a", b"1"), ("s.a", b"2")])
    found = [message for messages in await asyncio.gather(*pulls) for message in messages]
    assert sorted(message.data for message in found) == [b"1", b"2"]


@case
async def a_pull_of_a_consumer_that_is_not_there(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    await consumer.delete()
    await fails(ConsumerNotFoundError, consumer.fetch(1))
    await fails(ConsumerNotFoundError, consumer.fetch(1, no_wait=True))


@case
async def a_consumer_deleted_under_a_waiting_pull(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    pull = asyncio.ensure_future(consumer.fetch(1, timeout=60))  # ends with the case
    await _waiting(consumer)
    await consumer.delete()
    await fails(ConsumerNotFoundError, pull)


@case
async def a_stream_deleted_under_a_waiting_pull(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    pull = asyncio.ensure_future(consumer.fetch(1, timeout=60))  # ends with the case
    await _waiting(consumer)
    await jet.delete_stream("S")
    await fails(NotFoundError, pull)


@case
async def a_cancelled_pull_takes_nothing_with_it(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    pull = asyncio.ensure_future(consumer.fetch(1, timeout=30))  # ends with the case
    await _waiting(consumer)
    pull.cancel()
    await asyncio.wait([pull])
    await jet.publish("s.a", b"1")
    assert [message.data for message in await consumer.fetch(1, timeout=60)] == [b"1"]


@case
async def no_more_bytes_than_asked_for(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"x" * 100)] * 4)
    consumer = await stream.create_consumer(durable_name="c")
    await pending(consumer, 4)
    # Each counts with its subject and overhead, differently on each side: two fit here and three do not.
    assert len(await consumer.fetch(4, max_bytes=370, timeout=1)) == 2
    assert len(await consumer.fetch(4, timeout=1)) == 2


@case
async def a_message_larger_than_the_bytes_asked_for_stays(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", b"x" * 1000)
    consumer = await stream.create_consumer(durable_name="c")
    assert await consumer.fetch(1, max_bytes=100, timeout=5) == []
    assert len(await consumer.fetch(1)) == 1


@case
async def consumers_do_not_take_from_each_other(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", b"1")
    for name in ("a", "b"):
        consumer = await stream.create_consumer(durable_name=name)
        assert len(await consumer.fetch(1)) == 1


@case
async def headers_are_delivered(jet: Jet) -> None:
    consumer = await _consumer(jet, 0)
    await jet.publish("s.a", b"", headers={"A": ["1", "2"], "b": "x"})
    await jet.publish("s.a", b"")
    with_headers, without = await taken(consumer, 2)
    assert (with_headers.headers.get_all("A"), with_headers.headers["b"]) == (["1", "2"], "x")
    assert dict(without.headers) == {}


@case
async def iterating_gets_one_after_another(jet: Jet) -> None:
    consumer = await _consumer(jet, 3)
    seen = []
    messages = consumer.messages()
    async for message in messages:
        await message.ack()
        seen.append(message.data)
        if len(seen) == 3:
            break
    await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator
    assert seen == [b"0", b"1", b"2"]
    assert (await consumer.info()).num_ack_pending == 0


@case
async def info_counts_what_is_left(jet: Jet) -> None:
    consumer = await _consumer(jet, 5)
    await consumer.fetch(2)
    info = await consumer.info()
    assert (info.num_pending, info.num_ack_pending, info.delivered.stream_seq) == (3, 2, 2)
    assert (info.delivered.consumer_seq, info.ack_floor.stream_seq) == (2, 0)


@case
async def many_pulls_lose_and_double_nothing(jet: Jet) -> None:
    consumer = await _consumer(jet, 300, max_ack_pending=50)
    seen: list[bytes] = []
    full = Signal()

    async def take() -> None:
        while len(seen) < 300:
            messages = await consumer.fetch(7, timeout=0.5)
            await consumer.ack(messages)
            seen.extend(message.data for message in messages)
        full.notify()

    await asyncio.gather(*(take() for _ in range(4)))
    assert sorted(seen) == sorted(b"%d" % n for n in range(300))
