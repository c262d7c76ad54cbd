"""Push consumers: where messages go, who gets them, and what happens without subscribers."""

from __future__ import annotations

import asyncio
from typing import Any

from pelton.api import ConsumerCreate, HeartbeatMissedError, Incoming, consumer_config
from pelton.connect import Jet
from pelton.jet import Consumer, Message, Stream
from tests.conformance.cases.eventually import eventually, pending
from tests.conformance.cases.table import case, fails, refused


async def _stream(jet: Jet, messages: int = 0) -> Stream:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([(f"s.{n % 2}", b"%d" % n) for n in range(messages)])
    return stream


async def _push(stream: Stream, **config: Any) -> Consumer:
    return await stream.create_consumer(durable_name="c", deliver_subject="deliver.here", **config)


async def _take(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(60):
        async for message in consumer.messages():
            found.append(message)
            if len(found) == count:
                return found
    return found


async def _heard(subscription: Any, count: int) -> list[Incoming]:
    found: list[Incoming] = []
    while len(found) < count:
        message = await subscription.next(20)
        assert message is not None, f"only {found}"
        found.append(message)
    return found


@case
async def push_stays_push_and_pull_stays_pull(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="pull")
    await refused(10012, stream.create_consumer(durable_name="pull", deliver_subject="d"))
    await stream.create_consumer(durable_name="push", deliver_subject="d", idle_heartbeat=1)
    await refused(10012, stream.create_consumer(durable_name="push"))
    await refused(10012, stream.create_consumer(durable_name="push", deliver_subject="d", idle_heartbeat=2))


@case
async def everything_comes_in_order(jet: Jet) -> None:
    stream = await _stream(jet, 5)
    consumer = await _push(stream)
    messages = await _take(consumer, 5)
    assert [message.data for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.subject for message in messages] == ["s.0", "s.1", "s.0", "s.1", "s.0"]
    metadata = [message.metadata for message in messages]
    assert [(m.stream, m.consumer, m.stream_seq, m.consumer_seq) for m in metadata][:2] == [
        ("S", "c", 1, 1),
        ("S", "c", 2, 2),
    ]
    for message in messages:
        await message.ack()
    info = await consumer.info()
    assert (info.ack_floor.stream_seq, info.num_ack_pending) == (5, 0)


@case
async def what_comes_later_comes_too(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream, filter_subject="s.a")
    taking = jet.runtime.spawn(_take(consumer, 2), "takes")
    await jet.publish("s.a", b"1")
    await jet.publish("s.b", b"2")
    await jet.publish("s.a", b"3")
    assert [message.data for message in await taking] == [b"1", b"3"]


@case
async def nothing_is_delivered_while_nobody_listens(jet: Jet) -> None:
    stream = await _stream(jet, 3)
    consumer = await _push(stream)
    info = await consumer.info()
    assert (info.push_bound, info.delivered.stream_seq, info.num_pending) == (False, 0, 3)
    listening = await jet.backend.subscribe("deliver.here")
    assert [message.data for message in await _heard(listening, 3)] == [b"0", b"1", b"2"]
    assert (await consumer.info()).push_bound
    await listening.close()
    while (await consumer.info()).push_bound:  # the flag is the event
        await asyncio.sleep(0)
    await jet.publish("s.a")
    await pending(consumer, 1)


@case
async def the_reply_subject_names_the_delivery(jet: Jet) -> None:
    stream = await _stream(jet, 2)
    await _push(stream)
    listening = await jet.backend.subscribe("deliver.here")
    messages = await _heard(listening, 2)
    tokens = messages[1].reply.split(".")
    assert (messages[1].subject, tokens[:5], tokens[5:7]) == ("s.1", ["$JS", "ACK", "S", "c", "1"], ["2", "2"])
    assert tokens[8] == "0"
    await listening.close()


@case
async def no_more_than_may_await_acks(jet: Jet) -> None:
    stream = await _stream(jet, 5)
    consumer = await _push(stream, max_ack_pending=2)
    messages = consumer.messages()
    first, second = await anext(messages), await anext(messages)
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_pending) == (2, 3)
    await first.ack()
    assert (await anext(messages)).data == b"2"
    await second.ack()
    assert (await anext(messages)).data == b"3"
    await messages.aclose()  # type: ignore[attr-defined]  # an async generator


@case
async def what_is_not_acknowledged_comes_again(jet: Jet) -> None:
    stream = await _stream(jet, 1)
    consumer = await _push(stream, ack_wait=0.3)
    first, again = await _take(consumer, 2)
    assert (first.metadata.num_delivered, again.metadata.num_delivered) == (1, 2)
    await again.ack()


@case
async def given_back_comes_again(jet: Jet) -> None:
    stream = await _stream(jet, 1)
    consumer = await _push(stream)
    messages = consumer.messages()
    await (await anext(messages)).nak()
    assert (await anext(messages)).metadata.num_delivered == 2
    await messages.aclose()  # type: ignore[attr-defined]  # an async generator


@case
async def every_listener_gets_everything(jet: Jet) -> None:
    stream = await _stream(jet)
    await _push(stream, ack_policy="none")
    one, two = await jet.backend.subscribe("deliver.here"), await jet.backend.subscribe("deliver.>")
    await jet.publish("s.a", b"x")
    assert [(await _heard(listening, 1))[0].data for listening in (one, two)] == [b"x", b"x"]
    await one.close()
    await two.close()


@case
async def a_group_shares(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream, deliver_group="g", ack_policy="none")
    members = [await jet.backend.subscribe("deliver.here", "g") for _ in range(2)]
    await jet.publish_batch([("s.a", b"%d" % n) for n in range(60)])
    while (await consumer.info()).num_pending:  # the number is the event
        await asyncio.sleep(0)
    shares = []
    for member in members:
        share = []
        while (message := await member.next(0.3)) is not None:
            share.append(int(message.data))
        shares.append(share)
        await member.close()
    assert sorted(shares[0] + shares[1]) == list(range(60))
    assert shares[0]
    assert shares[1]


@case
async def a_group_is_for_its_members(jet: Jet) -> None:
    stream = await _stream(jet, 1)
    consumer = await _push(stream, deliver_group="g")
    outsider = await jet.backend.subscribe("deliver.here")
    assert await outsider.next(0.3) is None
    assert (await consumer.info()).delivered.stream_seq == 0
    await outsider.close()


@case
async def silence_is_told_by_heartbeats(jet: Jet) -> None:
    stream = await _stream(jet, 2)
    await _push(stream, idle_heartbeat=0.2)
    listening = await jet.backend.subscribe("deliver.here")
    await _heard(listening, 2)
    (beat,) = await _heard(listening, 1)
    assert beat.headers is not None
    assert beat.headers.startswith(b"NATS/1.0 100 Idle Heartbeat\r\n")
    assert b"Nats-Last-Consumer: 2\r\n" in beat.headers
    assert b"Nats-Last-Stream: 2\r\n" in beat.headers
    await listening.close()


@case
async def missed_heartbeats_are_an_error(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream, idle_heartbeat=0.2)
    waiting = jet.runtime.spawn(_take(consumer, 1), "takes")
    while not (await consumer.info()).push_bound:  # the flag is the event
        await asyncio.sleep(0)
    await consumer.delete()
    await fails(HeartbeatMissedError, waiting)


@case
async def flow_control_goes_on_when_it_is_answered(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream, ack_policy="none", flow_control=True, idle_heartbeat=1)
    data = bytes(200_000)
    await jet.publish_batch([("s.a", data) for _ in range(60)])
    assert len(await _take(consumer, 60)) == 60


@case
async def a_rate_limit_spreads_deliveries(jet: Jet) -> None:
    # As much as the largest message may arrive at once.
    stream = await jet.create_stream("S", subjects=["s.>"], max_msg_size=8000)
    await jet.publish_batch([("s.a", bytes(1000)) for _ in range(16)])
    start = jet.runtime.clock.monotonic()
    consumer = await _push(stream, rate_limit_bps=64_000)
    await _take(consumer, 16)
    assert jet.runtime.clock.monotonic() - start > 0.8


@case
async def a_push_consumer_is_not_pulled_from(jet: Jet) -> None:
    stream = await _stream(jet, 1)
    consumer = await _push(stream)
    assert (await consumer.info()).num_waiting == 0
    config = consumer_config(durable_name="c", deliver_subject="elsewhere")
    await jet.backend.call(ConsumerCreate(stream_name="S", config=config))
    assert (await consumer.info()).config.deliver_subject == "elsewhere"


@case
async def a_callback_acknowledges_when_it_returns(jet: Jet) -> None:
    stream = await _stream(jet, 5)
    for name, config in (("push", {"deliver_subject": "d"}), ("pull", {})):
        consumer = await stream.create_consumer(durable_name=name, **config)
        seen: list[bytes] = []
        all_seen = asyncio.Event()

        def take(message: Message, seen: list[bytes] = seen, all_seen: asyncio.Event = all_seen) -> None:
            if message.data == b"2" and message.metadata.num_delivered == 1:
                raise ValueError("not this time")
            seen.append(message.data)
            if len(seen) == 5:
                all_seen.set()

        consuming = jet.runtime.spawn(consumer.consume(take), "consumes")
        async with asyncio.timeout(60):
            await all_seen.wait()
            while (await consumer.info()).num_ack_pending:  # the number is the event
                await asyncio.sleep(0)
        consuming.cancel()
        assert seen == [b"0", b"1", b"3", b"4", b"2"]


@case
async def in_order_without_a_consumer_of_one_s_own(jet: Jet) -> None:
    stream = await _stream(jet, 6)
    found = []
    async for message in stream.ordered(filter_subject="s.1", deliver_policy="all"):
        found.append((message.data, message.metadata.stream_seq))
        if len(found) == 3:
            await jet.publish("s.1", b"later")
        if len(found) == 4:
            break
    assert found == [(b"1", 2), (b"3", 4), (b"5", 6), (b"later", 7)]


@case
async def order_outlasts_a_lost_consumer(jet: Jet) -> None:
    stream = await _stream(jet, 4)
    found: list[int] = []
    async with asyncio.timeout(60):
        async for message in stream.ordered(heartbeat=0.2):
            found.append(message.metadata.stream_seq)
            if len(found) == 2:
                for name in await stream.consumer_names():
                    await stream.delete_consumer(name)
            if len(found) == 4:
                await jet.publish("s.1")
            if len(found) == 5:
                break
    assert found == [1, 2, 3, 4, 5]


@case
async def a_listened_to_one_moves_only_when_nobody_listens(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream)
    listening = await jet.backend.subscribe("deliver.here")
    while not (await consumer.info()).push_bound:  # the flag is the event
        await asyncio.sleep(0)
    config = consumer_config(durable_name="c", deliver_subject="elsewhere")
    await refused(10013, jet.backend.call(ConsumerCreate(stream_name="S", config=config)))
    await listening.close()


@case
async def a_member_that_stays_gets_all(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream, deliver_group="g", ack_policy="none")
    stays, leaves = await jet.backend.subscribe("deliver.here", "g"), await jet.backend.subscribe("deliver.here", "g")
    await leaves.close()
    await jet.publish_batch([("s.a", b"%d" % n) for n in range(20)])
    assert [message.data for message in await _heard(stays, 20)] == [b"%d" % n for n in range(20)]
    assert (await consumer.info()).push_bound
    await stays.close()


@case
async def headers_alone_are_pushed_with_the_size(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish("s.a", b"12345", headers={"K": "v"})
    (message,) = await _take(await _push(stream, headers_only=True), 1)
    assert (message.data, message.headers["K"], message.headers["Nats-Msg-Size"]) == (b"", "v", "5")


@case
async def delivered_as_often_as_allowed(jet: Jet) -> None:
    stream = await _stream(jet, 2)
    events = await jet.backend.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c")
    consumer = await _push(stream, max_deliver=2, ack_wait=0.2, filter_subject="s.0")
    messages = await _take(consumer, 1)
    assert messages[0].metadata.num_delivered <= 2
    listening = await jet.backend.subscribe("deliver.here")
    (event,) = await _heard(events, 1)
    assert b'"deliveries":2' in event.data
    await listening.close()
    await events.close()


@case
async def one_that_is_listened_to_outlives_its_threshold(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(name="e", deliver_subject="deliver.here", inactive_threshold=0.3)
    listening = await jet.backend.subscribe("deliver.here")
    assert await listening.next(1) is None
    assert (await consumer.info()).push_bound
    await listening.close()
    async with asyncio.timeout(60):
        while "e" in await stream.consumer_names():  # the list is the event
            await asyncio.sleep(0.05)


@case
async def flow_control_can_acknowledge(jet: Jet) -> None:
    stream = await _stream(jet, 10)
    consumer = await _push(stream, ack_policy="flow_control", max_ack_pending=4)
    messages = await _take(consumer, 10)
    assert [message.metadata.stream_seq for message in messages] == list(range(1, 11))

    async def acknowledged() -> bool:
        info = await consumer.info()
        return info.ack_floor.stream_seq >= 4 and info.num_ack_pending <= 4

    await eventually(acknowledged, True)


@case
async def an_answer_that_names_nothing_acknowledges_nothing(jet: Jet) -> None:
    stream = await _stream(jet, 10)
    consumer = await _push(stream, ack_policy="flow_control", max_ack_pending=4)
    listening = await jet.backend.subscribe("deliver.here")
    request = (await _heard(listening, 5))[4]
    assert request.headers is not None
    assert request.headers.startswith(b"NATS/1.0 100 FlowControl Request")
    await jet.backend.send(request.reply)
    assert (await consumer.info()).num_ack_pending == 4
    await listening.close()
