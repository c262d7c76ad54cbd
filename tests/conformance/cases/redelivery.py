"""Redelivery: after a nak, after the ack wait, with backoff, and until the deliveries are exhausted."""

from __future__ import annotations

from pelton.connect import Jet
from pelton.jet import Consumer
from tests.conformance.cases.table import case

_WAIT = 0.3


async def _consumer(jet: Jet, messages: int, retention: str = "limits", **config: object) -> Consumer:
    stream = await jet.create_stream("S", subjects=["s.>"], retention=retention)
    await jet.publish_batch([("s.a", b"%d" % n) for n in range(messages)])
    return await stream.create_consumer(durable_name="c", **config)


@case
async def a_nak_brings_it_back_at_once(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    (message,) = await consumer.fetch(1)
    await message.nak()
    (again,) = await consumer.fetch(1, timeout=60)
    assert (again.metadata.stream_seq, again.metadata.consumer_seq, again.metadata.num_delivered) == (1, 2, 2)
    info = await consumer.info()
    assert (info.num_redelivered, info.num_ack_pending, info.delivered.consumer_seq) == (1, 1, 2)


@case
async def what_comes_back_goes_first(jet: Jet) -> None:
    consumer = await _consumer(jet, 3)
    (message,) = await consumer.fetch(1)
    await message.nak()
    assert [again.data for again in await consumer.fetch(3, timeout=5)] == [b"0", b"1", b"2"]


@case
async def a_nak_with_a_delay_brings_it_back_later(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    (message,) = await consumer.fetch(1)
    asked = jet.runtime.clock.monotonic()
    await message.nak(delay=_WAIT)
    assert await consumer.fetch(1, no_wait=True) == []
    (again,) = await consumer.fetch(1, timeout=60)
    assert again.metadata.num_delivered == 2
    assert jet.runtime.clock.monotonic() - asked >= _WAIT * 0.9


@case
async def a_delayed_message_holds_nobody_up(jet: Jet) -> None:
    consumer = await _consumer(jet, 2)
    (first,) = await consumer.fetch(1)
    await first.nak(delay=30)
    assert [message.data for message in await consumer.fetch(2, timeout=2)] == [b"1"]


@case
async def the_ack_wait_brings_it_back(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, ack_wait=_WAIT)
    asked = jet.runtime.clock.monotonic()
    await consumer.fetch(1)
    (again,) = await consumer.fetch(1, timeout=60)
    assert again.metadata.num_delivered == 2
    assert jet.runtime.clock.monotonic() - asked >= _WAIT * 0.9
    await again.ack()
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_redelivered) == (0, 0)


@case
async def an_acked_one_does_not_come_back(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, ack_wait=0.2)
    await consumer.ack(await consumer.fetch(1))
    assert await consumer.fetch(1, timeout=0.5) == []


@case
async def work_in_progress_stays_away(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, ack_wait=0.6)
    (message,) = await consumer.fetch(1)
    for _ in range(3):
        assert await consumer.fetch(1, timeout=0.3) == []
        await message.in_progress()
    await message.ack()
    assert (await consumer.info()).num_ack_pending == 0


@case
async def backoff_sets_the_waits(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, backoff=[0.2, 0.5], max_deliver=3)
    clock = jet.runtime.clock
    await consumer.fetch(1)
    started = clock.monotonic()
    (second,) = await consumer.fetch(1, timeout=60)
    between = clock.monotonic()
    (third,) = await consumer.fetch(1, timeout=60)
    assert (second.metadata.num_delivered, third.metadata.num_delivered) == (2, 3)
    assert between - started >= 0.15
    assert clock.monotonic() - between >= 0.4


@case
async def the_ack_wait_is_the_first_of_the_backoff(jet: Jet) -> None:
    consumer = await _consumer(jet, 0, backoff=[2, 5])
    assert consumer.config.ack_wait == 2


@case
async def it_is_delivered_no_more_than_allowed(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, max_deliver=2, ack_wait=0.2)
    await consumer.fetch(1)
    assert [message.metadata.num_delivered for message in await consumer.fetch(1, timeout=60)] == [2]
    assert await consumer.fetch(1, timeout=0.6) == []
    assert (await consumer.info()).num_ack_pending == 0


@case
async def an_exhausted_message_stays_in_a_work_queue(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, retention="workqueue", max_deliver=1, ack_wait=0.2)
    await consumer.fetch(1)
    assert await consumer.fetch(1, timeout=0.6) == []
    assert (await (await jet.stream("S")).info()).state.messages == 1


@case
async def an_exhausted_message_holds_nobody_up(jet: Jet) -> None:
    consumer = await _consumer(jet, 2, max_deliver=1, ack_wait=0.2, max_ack_pending=1)
    assert [message.data for message in await consumer.fetch(1)] == [b"0"]
    assert [message.data for message in await consumer.fetch(1, timeout=60)] == [b"1"]


@case
async def what_is_pending_again_still_counts_against_the_limit(jet: Jet) -> None:
    consumer = await _consumer(jet, 2, max_ack_pending=1)
    (message,) = await consumer.fetch(1)
    await message.nak(delay=30)
    assert await consumer.fetch(1, timeout=0.3) == []


@case
async def a_raised_limit_lets_it_go_on(jet: Jet) -> None:
    consumer = await _consumer(jet, 2, max_ack_pending=1)
    await consumer.fetch(1)
    wider = await (await jet.stream("S")).create_consumer(durable_name="c", max_ack_pending=2)
    assert [message.data for message in await wider.fetch(1, timeout=60)] == [b"1"]


@case
async def a_message_deleted_while_it_waits_does_not_come_back(jet: Jet) -> None:
    consumer = await _consumer(jet, 2, ack_wait=0.2)
    await consumer.fetch(1)
    await (await jet.stream("S")).delete_message(1)
    assert [message.data for message in await consumer.fetch(2, timeout=5)] == [b"1"]


@case
async def redelivery_counts_each_time(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    counts = []
    for _ in range(4):
        (message,) = await consumer.fetch(1, timeout=60)
        counts.append(message.metadata.num_delivered)
        await message.nak()
    assert counts == [1, 2, 3, 4]
