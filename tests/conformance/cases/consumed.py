"""Sources and mirrors that take what a durable consumer delivers (ADR-60)."""

from __future__ import annotations

from typing import Any, Final

from pelton.api.info import ErrorBody
from pelton.connect import Jet
from pelton.jet import Consumer, Stream
from tests.conformance.cases.eventually import eventually, left
from tests.conformance.cases.sourced import SOURCE_HEADER, becomes, make_origin, settled, source_of
from tests.conformance.cases.table import case, refused

_PUSH: Final = {"deliver_subject": "to.s", "flow_control": True, "idle_heartbeat": 1}
CONSUMED: Final = {"name": "O", "consumer": {"name": "C", "deliver_subject": "to.s"}}


async def make_consumer(origin: Stream, name: str = "C", **fields: Any) -> Consumer:
    return await origin.create_consumer(durable_name=name, **{**_PUSH, "ack_policy": "flow_control", **fields})


async def acked(consumer: Consumer, seq: int) -> None:
    """Assert that a consumer gets its acknowledgements: on a server with its next heartbeat."""

    async def floor() -> tuple[int, int, int]:
        info = await consumer.info()
        return info.delivered.stream_seq, info.ack_floor.stream_seq, info.num_pending

    await eventually(floor, (seq, seq, 0))


async def pause(consumer: Consumer) -> None:
    """Pause a consumer; a cluster answers before its leader has heard of it."""
    await consumer.pause("2100-01-01T00:00:00Z")

    async def is_paused() -> bool:
        return (await consumer.info()).paused

    await eventually(is_paused, True)


@case
async def a_source_takes_what_its_consumer_delivers(jet: Jet) -> None:
    origin = await make_origin(jet, 2)
    consumer = await make_consumer(origin)
    stream = await jet.create_stream("S", sources=[CONSUMED])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.publish("o.3", b"3")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))
    assert (await stream.get_message(3)).headers[SOURCE_HEADER].startswith("O:C=jZ6RvVRH 3 > > o.3 ")
    await acked(consumer, 3)
    assert (await consumer.info()).push_bound
    source = await settled(stream, 3)
    assert (source.name, source.lag, source.error) == ("O", 0, None)
    assert (await stream.info()).config.sources[0].consumer is not None


@case
async def the_consumer_decides_where_it_starts_and_what_it_takes(jet: Jet) -> None:
    origin = await make_origin(jet, 0)
    for number in range(4):
        await jet.publish(f"o.{number % 2}", b"%d" % number)
    await make_consumer(origin, filter_subject="o.1", deliver_policy="by_start_sequence", opt_start_seq=3)
    renamed = {"subject_transforms": [{"src": "o.*", "dest": "n.{{wildcard(1)}}"}]}
    stream = await jet.create_stream("S", sources=[CONSUMED | renamed])
    await becomes(stream, (1, "n.1", b"3"))
    await jet.publish("o.0", b"4")
    await jet.publish("o.1", b"5")
    await becomes(stream, (1, "n.1", b"3"), (2, "n.1", b"5"))


@case
async def the_last_of_each_subject_and_headers_alone(jet: Jet) -> None:
    origin = await make_origin(jet, 2)
    await jet.publish("o.1", b"four")
    await make_consumer(origin, deliver_policy="last_per_subject", filter_subject="o.>", headers_only=True)
    stream = await jet.create_stream("S", sources=[CONSUMED])
    await becomes(stream, (1, "o.2", b""), (2, "o.1", b""))
    assert (await stream.get_message(2)).headers["Nats-Msg-Size"] == "4"


@case
async def a_mirror_takes_what_its_consumer_delivers(jet: Jet) -> None:
    origin = await make_origin(jet, 3)
    consumer = await make_consumer(origin, deliver_policy="by_start_sequence", opt_start_seq=2)
    stream = await jet.create_stream("S", mirror=CONSUMED)
    await becomes(stream, (2, "o.2", b"2"), (3, "o.3", b"3"))
    await acked(consumer, 3)
    await consumer.reset(2)
    await jet.publish("o.4", b"4")
    await becomes(stream, (2, "o.2", b"2"), (3, "o.3", b"3"), (4, "o.4", b"4"))


@case
async def what_was_taken_leaves_a_work_queue(jet: Jet) -> None:
    for retention in ("workqueue", "interest"):
        origin = await make_origin(jet, 0, retention=retention)
        await make_consumer(origin)
        await jet.publish("o.1", b"1")
        stream = await jet.create_stream("S", sources=[CONSUMED])
        await becomes(stream, (1, "o.1", b"1"))
        await left(origin, 0)
        await jet.publish("o.2", b"2")
        await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
        await left(origin, 0)
        await jet.delete_stream("S")
        await jet.delete_stream("O")


@case
async def a_paused_consumer_delivers_nothing_to_a_source(jet: Jet) -> None:
    origin = await make_origin(jet, 1)
    consumer = await make_consumer(origin)
    stream = await jet.create_stream("S", sources=[CONSUMED])
    await becomes(stream, (1, "o.1", b"1"))
    await pause(consumer)
    for number in (2, 3):
        await jet.publish(f"o.{number}", b"%d" % number)
    info = await consumer.info()
    assert (info.delivered.stream_seq, info.num_pending) == (1, 2)
    await consumer.resume()
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def a_reset_repeats_nothing_and_may_skip(jet: Jet) -> None:
    origin = await make_origin(jet, 2)
    consumer = await make_consumer(origin)
    stream = await jet.create_stream("S", sources=[CONSUMED])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await acked(consumer, 2)
    await consumer.reset(1)
    await acked(consumer, 2)
    await pause(consumer)
    for number in (3, 4):
        await jet.publish(f"o.{number}", b"%d" % number)
    await consumer.reset(4)
    await consumer.resume()
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.4", b"4"))


@case
async def a_consumer_of_another_policy_is_refused_in_the_info(jet: Jet) -> None:
    origin = await make_origin(jet, 1)
    await make_consumer(origin, ack_policy="explicit")
    source, mirror = await jet.create_stream("S", sources=[CONSUMED]), await jet.create_stream("M", mirror=CONSUMED)

    async def errors() -> list[int]:
        found = [(await source_of(source)).error, (await mirror.info()).mirror.error]  # type: ignore[union-attr]  # it is one
        return [error.err_code for error in found if isinstance(error, ErrorBody)]

    await eventually(errors, [10217, 10214])


@case
async def what_others_did_not_acknowledge_is_taken(jet: Jet) -> None:
    origin = await make_origin(jet, 2, retention="workqueue")
    consumer = await make_consumer(origin)
    async with await jet.subscribe("to.s"):

        async def delivered() -> int:
            return (await consumer.info()).delivered.consumer_seq

        await eventually(delivered, 2)
    stream = await jet.create_stream("S", sources=[CONSUMED])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await left(origin, 0)


@case
async def another_deliver_subject_receives_nothing(jet: Jet) -> None:
    origin = await make_origin(jet, 1)
    consumer = await make_consumer(origin, "D", deliver_subject="to.d")
    await jet.create_stream("N", sources=[{"name": "O", "consumer": {"name": "D", "deliver_subject": "to.other"}}])
    await make_consumer(origin)
    stream = await jet.create_stream("S", sources=[CONSUMED])
    await becomes(stream, (1, "o.1", b"1"))
    assert ((await consumer.info()).push_bound, (await consumer.info()).num_pending) == (False, 1)
    await refused(10013, make_consumer(origin, deliver_subject="to.d2"))
    await make_consumer(origin, filter_subject="o.3")
    await jet.publish("o.2", b"2")
    await jet.publish("o.3", b"3")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.3", b"3"))


@case
async def a_full_stream_leaves_messages_with_the_consumer(jet: Jet) -> None:
    origin = await make_origin(jet, 3, retention="workqueue")
    consumer = await make_consumer(origin)
    stream = await jet.create_stream("S", sources=[CONSUMED], max_msgs=2, discard="new")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    assert (await origin.get_message(3)).data == b"3"
    await stream.delete_message(1)
    await becomes(stream, (2, "o.2", b"2"), (3, "o.3", b"3"))
    await acked(consumer, 3)
