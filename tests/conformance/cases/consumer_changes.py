"""What a consumer does after a change of its configuration, and after a reset."""

from __future__ import annotations

import asyncio
from typing import Any

from pelton.api import ConsumerNames, StreamState
from pelton.connect import Jet
from pelton.jet import Consumer, Stream
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case, only, refused


async def _nine(jet: Jet, **config: Any) -> Stream:
    stream = await jet.create_stream("S", subjects=["s.>"], **config)
    await jet.publish_batch([(f"s.{'abc'[n % 3]}", b"") for n in range(9)])
    return stream


async def _numbered(consumer: Consumer, batch: int = 20) -> list[tuple[int, int]]:
    """Sequences, each with the number pending after it."""
    found = await consumer.fetch(batch, no_wait=True)
    return [(message.metadata.stream_seq, message.metadata.num_pending) for message in found]


async def _waiting(consumer: Consumer) -> None:
    while not (await consumer.info()).num_waiting:  # the number is the event
        await asyncio.sleep(0)


@case
async def other_filters_count_anew(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c", filter_subjects=["s.a", "s.b"])
    assert await _numbered(consumer, 2) == [(1, 5), (2, 4)]
    consumer = await stream.create_consumer(durable_name="c", filter_subjects=["s.b", "s.c"])
    await eventually(lambda: _left(consumer), 5)
    consumer = await stream.create_consumer(durable_name="c", filter_subjects=["s.c"])
    await eventually(lambda: _left(consumer), 3)
    assert await _numbered(consumer) == [(3, 2), (6, 1), (9, 0)]
    consumer = await stream.create_consumer(durable_name="c")
    assert await _left(consumer) == 0
    assert (await consumer.info()).num_ack_pending == 5


async def _left(consumer: Consumer) -> int:
    return (await consumer.info()).num_pending


@case
async def other_filters_wake_a_waiting_pull(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.d")
    waiting = jet.runtime.spawn(consumer.fetch(1, timeout=20), "a pull")
    await _waiting(consumer)
    await stream.create_consumer(durable_name="c", filter_subject="s.b")
    await jet.publish("s.b")
    assert [message.metadata.stream_seq for message in await asyncio.wait_for(waiting, 60)] == [10]


@case
async def more_may_await_acks_from_now_on(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending=1)
    assert len(await consumer.fetch(5)) == 1
    waiting = jet.runtime.spawn(consumer.fetch(2, timeout=20), "a pull")
    await _waiting(consumer)
    await stream.create_consumer(durable_name="c", max_ack_pending=3)
    assert [message.metadata.stream_seq for message in await asyncio.wait_for(waiting, 60)] == [2, 3]


@case
async def fewer_may_await_acks_from_now_on(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending=3)
    messages = await consumer.fetch(5)
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending=1)
    await consumer.ack(messages[:2])
    assert await _numbered(consumer) == []
    await consumer.ack(messages[2:])
    assert await _numbered(consumer) == [(4, 5)]


@case
async def fewer_deliveries_than_there_were_already(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c", max_deliver=5)
    for _ in range(3):
        (message,) = await consumer.fetch(1)
        await message.nak()
    consumer = await stream.create_consumer(durable_name="c", max_deliver=2)
    assert await _numbered(consumer, 2) == [(2, 7), (3, 6)]


@case
async def the_backoff_sets_the_ack_wait(jet: Jet) -> None:
    stream = await _nine(jet)

    async def wait(**config: Any) -> float:
        return (await stream.create_consumer(durable_name="c", **config)).config.ack_wait.seconds

    assert await wait(ack_wait=5, backoff=[1, 2], max_deliver=3) == 1
    assert await wait(ack_wait=5, backoff=[3, 2], max_deliver=3) == 3
    await refused(10116, wait(backoff=[3, 2], max_deliver=1))
    assert await wait(backoff=[3, 2], max_deliver=2) == 3
    assert await wait(max_deliver=1) == 30


@case
async def a_durable_one_may_vanish_too(jet: Jet) -> None:
    stream = await _nine(jet)
    await stream.create_consumer(durable_name="c", inactive_threshold=0.2)
    await stream.create_consumer(durable_name="d")
    await eventually(stream.consumer_names, ["d"])


@case
async def a_threshold_can_be_taken_from_a_durable_one(jet: Jet) -> None:
    stream = await _nine(jet)
    await stream.create_consumer(durable_name="c", inactive_threshold=0.3)
    await stream.create_consumer(durable_name="c")
    await stream.create_consumer(durable_name="d", inactive_threshold=0.3)
    await eventually(stream.consumer_names, ["c"])


@case
async def one_that_waits_for_a_redelivery_does_not_vanish(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c", inactive_threshold=1)
    [message] = await consumer.fetch(1, no_wait=True)
    await message.nak(delay=30)
    await stream.create_consumer(durable_name="d", inactive_threshold=1.2)
    await eventually(stream.consumer_names, ["c"])
    assert (await consumer.info()).num_ack_pending == 1


@case
async def names_come_in_pages(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    for number in range(5):
        await stream.create_consumer(durable_name=f"c{number}")
    page = await jet.backend.call(ConsumerNames(stream="S", offset=3))
    assert (page.total, page.offset, page.consumers) == (5, 3, ("c3", "c4"))
    page = await jet.backend.call(ConsumerNames(stream="S", offset=9))
    assert (page.total, page.consumers) == (5, ())


# --- resets


@case
async def a_reset_past_the_end_waits_for_its_sequence(jet: Jet) -> None:
    stream = await _nine(jet)
    consumer = await stream.create_consumer(durable_name="c")
    info = await consumer.reset(12)
    assert (info.delivered.stream_seq, info.ack_floor.stream_seq, info.num_pending) == (11, 11, 0)
    await jet.publish_batch([("s.a", b"")] * 4)
    # A server counts the pending messages wrongly here.
    assert [seq for seq, _ in await _numbered(consumer)] == [12, 13]
    assert (await consumer.reset(1)).num_pending == 13


async def _state(stream: Stream) -> StreamState:
    return (await stream.info()).state


@only("engine", "nats-server 2.15 keeps what its only consumer has passed")
async def by_interest_nothing_is_kept_that_a_reset_passes_by(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"], retention="interest")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.a", b"")] * 3)
    await consumer.reset(6)
    assert (await _state(stream)).messages == 0
    await jet.publish_batch([("s.a", b"")] * 4)
    assert ((await _state(stream)).messages, (await _state(stream)).first_seq) == (2, 6)
    assert await _numbered(consumer) == [(6, 1), (7, 0)]
