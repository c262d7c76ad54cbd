"""Roll-ups: a message replaces those before it, of its subject or of the stream."""

from __future__ import annotations

from typing import Any

from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import pending
from tests.conformance.cases.table import case, refused


async def _pairs(jet: Jet, **config: Any) -> Stream:
    """Return a stream that holds ``s.a``, ``s.b``, ``s.a``, ``s.b``."""
    stream = await jet.create_stream("S", subjects=["s.>"], allow_rollup_hdrs=True, **config)
    await jet.publish_batch([(f"s.{'ab'[n % 2]}", b"%d" % n) for n in range(4)])
    return stream


@case
async def of_a_subject(jet: Jet) -> None:
    stream = await _pairs(jet)
    ack = await jet.publish("s.a", b"new", headers={"Nats-Rollup": "sub"})
    assert (ack.seq, ack.duplicate) == (5, False)
    info = await stream.info(subjects_filter=">", deleted_details=True)
    assert info.state.subjects == {"s.a": 1, "s.b": 2}
    assert (info.state.first_seq, info.state.last_seq, info.state.deleted) == (2, 5, [3])


@case
async def of_everything(jet: Jet) -> None:
    stream = await _pairs(jet)
    await jet.publish("s.a", b"new", headers={"Nats-Rollup": "all"})
    state = (await stream.info(subjects_filter=">")).state
    assert (state.messages, state.first_seq, state.last_seq, state.subjects) == (1, 5, 5, {"s.a": 1})
    message = await stream.get_last_message("s.a")
    assert (message.data, b"Nats-Rollup: all" in message.hdrs) == (b"new", True)


@case
async def a_new_subject_replaces_nothing(jet: Jet) -> None:
    stream = await _pairs(jet)
    await jet.publish("s.c", headers={"Nats-Rollup": "sub"})
    assert (await stream.info()).state.messages == 5


@case
async def capitals_do_not_matter_and_an_empty_value_asks_for_nothing(jet: Jet) -> None:
    stream = await _pairs(jet)
    await jet.publish("s.a", headers={"Nats-Rollup": ""})
    assert (await stream.info()).state.messages == 5
    await jet.publish("s.a", headers={"Nats-Rollup": "ALL"})
    assert (await stream.info()).state.messages == 1


@case
async def any_other_value_is_refused(jet: Jet) -> None:
    stream = await _pairs(jet)
    error = await refused(10111, jet.publish("s.a", headers={"Nats-Rollup": "Other"}))
    assert (error.code, error.description) == (500, 'rollup value invalid: "other"')
    assert (await stream.info()).state.last_seq == 4


@case
async def they_have_to_be_allowed(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    for value in ("sub", "other"):
        error = await refused(10111, jet.publish("s", headers={"Nats-Rollup": value}))
        assert error.description == "rollup not permitted"
    await jet.update_stream("S", allow_rollup_hdrs=True)
    assert (await jet.publish("s", headers={"Nats-Rollup": "sub"})).seq == 1
    assert (await stream.info()).state.messages == 1


@case
async def they_need_purges(jet: Jet) -> None:
    error = await refused(10052, jet.create_stream("S", subjects=["s"], allow_rollup_hdrs=True, deny_purge=True))
    assert error.description == "roll-ups require the purge permission"
    await jet.create_stream("S", subjects=["s"], deny_purge=True)
    await refused(10052, jet.update_stream("S", allow_rollup_hdrs=True))


@case
async def a_duplicate_replaces_nothing(jet: Jet) -> None:
    stream = await _pairs(jet)
    await jet.publish("s.a", msg_id="1")
    assert (await jet.publish("s.a", msg_id="1", headers={"Nats-Rollup": "all"})).duplicate
    assert (await stream.info()).state.messages == 5


@case
async def ids_of_what_was_replaced_are_remembered(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], allow_rollup_hdrs=True)
    await jet.publish("s", msg_id="1")
    await jet.publish("s", msg_id="2", headers={"Nats-Rollup": "all"})
    ack = await jet.publish("s", msg_id="1")
    assert (ack.seq, ack.duplicate) == (1, True)


@case
async def what_was_expected_comes_first(jet: Jet) -> None:
    stream = await _pairs(jet)
    headers = {"Nats-Rollup": "sub"}
    await refused(10071, jet.publish("s.a", headers=headers, expected_last_subject_seq=1))
    await refused(10071, jet.publish("s.a", headers={"Nats-Rollup": "other"}, expected_last_subject_seq=1))
    assert (await stream.info()).state.messages == 4
    await jet.publish("s.a", headers=headers, expected_last_subject_seq=3)
    assert (await stream.info()).state.messages == 3


@case
async def a_full_stream_that_discards_new_refuses_them(jet: Jet) -> None:
    stream = await _pairs(jet, discard="new", max_msgs=4)
    for kind in ("sub", "all"):
        await refused(10077, jet.publish("s.a", headers={"Nats-Rollup": kind}))
    assert (await stream.info()).state.messages == 4


@case
async def a_full_subject_does_not(jet: Jet) -> None:
    settings = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 2}
    stream = await _pairs(jet, **settings)
    await refused(10077, jet.publish("s.a"))
    await jet.publish("s.a", headers={"Nats-Rollup": "sub"})
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.a": 1, "s.b": 2}
    await jet.publish("s.b", headers={"Nats-Rollup": "all"})
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.b": 1}


@case
async def limits_apply_before_they_do(jet: Jet) -> None:
    stream = await _pairs(jet, max_msgs=4)
    await jet.publish("s.b", headers={"Nats-Rollup": "sub"})
    state = (await stream.info(subjects_filter=">")).state
    assert (state.subjects, state.first_seq) == ({"s.a": 1, "s.b": 1}, 3)


@case
async def several_in_one_batch(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"], allow_rollup_hdrs=True)
    rollup = {"Nats-Rollup": "sub"}
    await jet.publish_batch([(f"s.{n % 2}", b"%d" % n, rollup if n % 3 == 0 else None) for n in range(10)])
    info = await stream.info(subjects_filter=">", deleted_details=True)
    assert (info.state.subjects, info.state.deleted) == ({"s.0": 2, "s.1": 1}, [8])


@case
async def a_consumer_sees_what_is_left(jet: Jet) -> None:
    stream = await _pairs(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.ack(await consumer.fetch(1))
    await jet.publish("s.b", b"new", headers={"Nats-Rollup": "all"})
    await pending(consumer, 1)
    assert [message.data for message in await consumer.fetch(5)] == [b"new"]


@case
async def consumers_pass_what_was_replaced(jet: Jet) -> None:
    stream = await _pairs(jet)
    names = {"every": ">", "mine": "s.a", "other": "s.b", "none": "s.c"}
    for name, text in names.items():
        await stream.create_consumer(durable_name=name, filter_subject=text)

    async def positions() -> list[int]:
        return [(await (await stream.consumer(name)).info()).delivered.stream_seq for name in names]

    await jet.publish("s.a", headers={"Nats-Rollup": "sub"})
    assert await positions() == [1, 4, 0, 0]
    await jet.publish("s.b", headers={"Nats-Rollup": "all"})
    assert await positions() == [5, 5, 5, 5]
