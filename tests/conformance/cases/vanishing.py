"""Messages that are removed before they are settled, and how consumers handle it."""

from __future__ import annotations

from pelton.connect import Jet
from pelton.jet import Consumer, Message, Stream
from tests.conformance.cases.eventually import eventually, pending, taken
from tests.conformance.cases.table import case, lagging, only


async def _taken(jet: Jet, **config: object) -> tuple[Stream, Consumer, list[Message]]:
    """Two of four messages delivered, to a consumer that may have no more of them pending."""
    stream = await jet.create_stream("S", subjects=["s.>"], **config)
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b""), ("s.b", b"")])
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending=2)
    return stream, consumer, await taken(consumer, 2)


async def _goes_on(consumer: Consumer) -> None:
    async def is_free() -> bool:
        return (await consumer.info()).num_ack_pending < 2

    await eventually(is_free, True)
    assert [message.metadata.stream_seq for message in await consumer.fetch(1)] == [3]


@case
async def a_deleted_message_is_awaited_no_more(jet: Jet) -> None:
    stream, consumer, _ = await _taken(jet)
    await stream.delete_message(2)
    await _goes_on(consumer)


@case
async def a_purged_message_is_awaited_no_more(jet: Jet) -> None:
    stream, consumer, _ = await _taken(jet)
    assert await stream.purge(seq=3) == 2
    await pending(consumer, 2, without_ack=0)
    info = await consumer.info()
    assert (info.delivered.stream_seq, info.ack_floor.stream_seq) == (2, 2)
    await _goes_on(consumer)


@case
async def a_message_that_limits_took_is_awaited_no_more(jet: Jet) -> None:
    _, consumer, _ = await _taken(jet, max_msgs=4)
    await jet.publish("s.c")
    await _goes_on(consumer)


@lagging("the purge may not have reached the server that leads a consumer")
async def what_was_purged_counts_as_passed(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b"")])
    every = await stream.create_consumer(durable_name="every")
    some = await stream.create_consumer(durable_name="some", filter_subject="s.a")
    assert await stream.purge(filter="s.a") == 2
    assert (await some.info()).delivered.stream_seq == 3
    info = await every.info()
    assert (info.delivered.stream_seq, info.num_pending) == (1, 1)


@case
async def a_late_ack_of_a_message_that_is_gone_does_no_harm(jet: Jet) -> None:
    stream, consumer, (_, two) = await _taken(jet)
    await stream.delete_message(2)
    await _goes_on(consumer)
    await two.ack()


@only("engine", "a server takes the consumer past the messages of its other filters: they are never delivered")
async def a_purge_of_one_filter_leaves_the_messages_of_others(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b""), ("s.b", b"")])
    consumer = await stream.create_consumer(durable_name="c", filter_subjects=["s.a", "s.b"])
    await stream.purge(filter="s.a")
    assert [message.subject for message in await consumer.fetch(1)] == ["s.b"]


@only("engine", "a server no longer tells a consumer that lost its filters of what is published")
async def a_consumer_that_loses_its_filters_gets_every_message(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await stream.create_consumer(durable_name="c", filter_subject="s.a")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish("s.b")
    assert (await consumer.info()).num_pending == 1
