"""What is delivered, how, and when not: headers only, last messages, limits of pulls, pauses, resets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from pelton.api import BadRequestError, Duration, PullRefusedError
from pelton.connect import Jet
from pelton.jet import Consumer, Stream
from tests.conformance.cases.eventually import all_of, eventually, pending, taken
from tests.conformance.cases.table import case, fails, lagging, only, refused


async def _five(jet: Jet) -> Stream:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([(f"s.{'ab'[n % 2]}", b"x" * n) for n in range(5)])
    return stream


async def _delivers(consumer: Consumer, sequences: list[int]) -> None:
    assert [message.metadata.stream_seq for message in await all_of(consumer, len(sequences))] == sequences


@case
async def headers_only_tell_the_size(jet: Jet) -> None:
    stream = await _five(jet)
    await jet.publish("s.c", b"12345", headers={"K": "v"})
    consumer = await stream.create_consumer(durable_name="c", headers_only=True)
    messages = await taken(consumer, 6)
    assert [message.data for message in messages] == [b""] * 6
    assert [message.headers["Nats-Msg-Size"] for message in messages] == ["0", "1", "2", "3", "4", "5"]
    assert messages[5].headers["K"] == "v"


@lagging("a new consumer may be led where what was published has not arrived")
async def the_floor_begins_below_the_last_of_each_subject(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c", deliver_policy="last_per_subject", filter_subject="s.>")
    assert (await consumer.info()).ack_floor.stream_seq == 3


@lagging("a new consumer may be led where what was published has not arrived")
async def the_last_of_each_subject_and_then_all(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c", deliver_policy="last_per_subject", filter_subject="s.>")
    info = await consumer.info()
    assert (info.num_pending, info.delivered.stream_seq) == (2, 3)
    await jet.publish("s.a")
    await jet.publish("s.a")
    await pending(consumer, 4)
    found = await consumer.fetch(10, no_wait=True)
    assert [message.metadata.stream_seq for message in found] == [4, 5, 6, 7]
    assert [message.metadata.num_pending for message in found] == [3, 2, 1, 0]


@lagging("a new consumer may be led where what was published has not arrived")
async def the_last_of_each_subject_of_several_filters(jet: Jet) -> None:
    stream = await _five(jet)
    await jet.publish("s.c")
    await jet.publish("s.d")
    consumer = await stream.create_consumer(deliver_policy="last_per_subject", filter_subjects=["s.a", "s.d"])
    await _delivers(consumer, [5, 7])


@only("engine", "nats-server 2.15 then delivers nothing before something is published")
async def a_last_that_is_deleted_is_passed(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(deliver_policy="last_per_subject", filter_subject="s.>")
    await stream.delete_message(4)
    assert [message.metadata.stream_seq for message in await consumer.fetch(5, timeout=5)] == [5]
    assert (await consumer.info()).num_pending == 0


@lagging("a new consumer may be led where what was published has not arrived")
async def nothing_is_last_in_an_empty_stream(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer(deliver_policy="last_per_subject", filter_subject="s.>")
    assert (await consumer.info()).num_pending == 0
    await jet.publish("s.a")
    await _delivers(consumer, [1])


@case
async def a_pull_above_the_limits_is_refused(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c", max_batch=2, max_expires=1, max_bytes=100)
    error = await fails(PullRefusedError, consumer.fetch(3, timeout=1))
    assert error.description == "Exceeded MaxRequestBatch of 2"
    error = await fails(PullRefusedError, consumer.fetch(1, timeout=2))
    assert error.description == "Exceeded MaxRequestExpires of 1s"
    error = await fails(PullRefusedError, consumer.fetch(1, timeout=1, max_bytes=200))
    assert error.description == "Exceeded MaxRequestMaxBytes of 100"
    assert error.code == 409
    assert len(await consumer.fetch(2, timeout=1, max_bytes=100)) == 2


@case
async def waiting_for_ever_keeps_to_the_limit_of_time(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer(durable_name="c", max_expires=0.2)
    waiting = jet.runtime.spawn(consumer.fetch(1, timeout=None), "a pull")
    assert await (await stream.create_consumer(filter_subject="s.b")).fetch(1, timeout=0.5) == []
    await jet.publish("s.a", b"late")
    assert [message.data for message in await asyncio.wait_for(waiting, 60)] == [b"late"]


@case
async def only_so_many_pulls_wait(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer(durable_name="c", max_waiting=1)
    first = jet.runtime.spawn(consumer.fetch(1, timeout=300), "a pull")
    while not (await consumer.info()).num_waiting:  # the number is the event
        await asyncio.sleep(0)
    error = await fails(PullRefusedError, consumer.fetch(1, timeout=5))
    assert error.description == "Exceeded MaxWaiting"
    await jet.publish("s.a")
    assert len(await first) == 1


@case
async def a_group_is_for_consumers_with_groups(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    error = await fails(BadRequestError, consumer.fetch(1, no_wait=True, min_pending=3))
    assert error.description == "Bad Request - Not a Overflow Priority consumer"


@case
async def a_paused_one_delivers_nothing(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    until = datetime.fromtimestamp(jet.runtime.clock.now() / 1e9, UTC) + timedelta(hours=1)
    reply = await consumer.pause(until)
    assert reply.paused
    assert Duration(0) < reply.pause_remaining <= Duration(3600)

    async def until_when() -> str:
        info = await consumer.info()
        assert info.paused == bool(info.pause_remaining)
        return (info.config.pause_until or "") if info.paused else ""

    await eventually(until_when, reply.pause_until)
    await _delivers(consumer, [])
    await consumer.resume()
    await eventually(until_when, "")
    await _delivers(consumer, [1, 2, 3, 4, 5])


@case
async def an_update_does_not_end_a_pause(jet: Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    consumer = await stream.create_consumer(durable_name="c", max_deliver=5)
    reply = await consumer.pause("2100-01-01T00:00:00Z")
    for fields in ({"max_deliver": 6}, {"max_deliver": 7, "pause_until": "2099-01-01T00:00:00Z"}, {"max_deliver": 7}):
        await stream.create_consumer(durable_name="c", **fields)
        info = await consumer.info()
        assert info.paused
        assert (info.config.pause_until, info.config.max_deliver) == (reply.pause_until, fields["max_deliver"])


@case
async def a_pause_may_begin_with_the_consumer_and_ends_by_itself(jet: Jet) -> None:
    stream = await _five(jet)
    until = datetime.fromtimestamp(jet.runtime.clock.now() / 1e9, UTC) + timedelta(seconds=1)
    consumer = await stream.create_consumer(durable_name="c", pause_until=until)
    assert (await consumer.info()).paused
    assert len(await consumer.fetch(5, timeout=20)) == 5


@case
async def an_update_leaves_a_pause_as_it_is(jet: Jet) -> None:
    stream = await _five(jet)
    until = datetime(2090, 1, 1, tzinfo=UTC)
    await stream.create_consumer(durable_name="c", pause_until=until)
    paused = await (await stream.create_consumer(durable_name="c", description="changed")).info()
    assert (paused.paused, paused.config.pause_until) == (True, "2090-01-01T00:00:00Z")
    await stream.create_consumer(durable_name="d")
    assert not (await (await stream.create_consumer(durable_name="d", pause_until=until)).info()).paused


@case
async def pausing_nobody(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.delete()
    await refused(10014, consumer.resume())


@case
async def a_reset_goes_back_to_what_is_not_acknowledged(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    messages = await taken(consumer, 3)
    await messages[0].ack()
    info = await consumer.reset()
    assert (info.delivered.stream_seq, info.ack_floor.stream_seq) == (1, 1)
    assert (info.num_pending, info.num_ack_pending) == (4, 0)
    again = await consumer.fetch(9, no_wait=True)
    assert [(message.metadata.stream_seq, message.metadata.num_delivered) for message in again] == [
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
    ]


@case
async def a_reset_to_a_sequence(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.ack(await taken(consumer, 5))
    info = await consumer.reset(3)
    assert (info.delivered.stream_seq, info.num_pending) == (2, 3)
    await _delivers(consumer, [3, 4, 5])
    info = await consumer.reset(9)
    assert (info.delivered.stream_seq, info.num_pending) == (8, 0)


@case
async def a_reset_keeps_to_the_deliver_policy(jet: Jet) -> None:
    stream = await _five(jet)
    by_seq = await stream.create_consumer(deliver_policy="by_start_sequence", opt_start_seq=3)
    await refused(10204, by_seq.reset(2))
    assert (await by_seq.reset(4)).num_pending == 2
    for policy in ("new", "last"):
        await refused(10204, (await stream.create_consumer(deliver_policy=policy)).reset(2))
    time = datetime(2090, 1, 1, tzinfo=UTC)
    by_time = await stream.create_consumer(deliver_policy="by_start_time", opt_start_time=time)
    await refused(10204, by_time.reset(2))


@only("engine", "nats-server 2.15 never answers a reset of a consumer that does not exist")
async def resetting_nobody(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.delete()
    await refused(10014, consumer.reset())
