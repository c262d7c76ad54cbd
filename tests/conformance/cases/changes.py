"""Changes of a stream's configuration: which are accepted, which are refused, and their immediate effects."""

from __future__ import annotations

from typing import Any

from pelton.api import Duration, StreamConfig, StreamUpdate
from pelton.connect import Jet
from tests.conformance.cases.table import case, lagging, refused

_CAN_NOT = "stream configuration update can not"


async def _refused(jet: Jet, text: str, **config: Any) -> None:
    error = await refused(10052, jet.update_stream("S", **config))
    assert (error.code, error.description) == (500, text)


@case
async def what_is_fixed_when_it_is_made(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await _refused(jet, f"{_CAN_NOT} change storage type", storage="memory")
    await _refused(jet, f"{_CAN_NOT} change retention policy to/from workqueue", retention="workqueue")
    await jet.create_stream("W", subjects=["w"], retention="workqueue")
    error = await refused(10052, jet.update_stream("W", retention="limits"))
    assert error.description == f"{_CAN_NOT} change retention policy to/from workqueue"


@case
async def what_may_change(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], max_consumers=2, max_msg_size=10)
    await jet.publish("s", b"1")
    free: dict[str, Any] = {
        "description": "changed",
        "subjects": ["t.*", "u"],
        "max_consumers": 1,
        "max_msgs": 10,
        "max_bytes": 1000,
        "max_msgs_per_subject": 5,
        "max_msg_size": 20,
        "duplicate_window": 30,
        "max_age": 60,
        "discard": "new",
        "discard_new_per_subject": True,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "no_ack": True,
        "metadata": {"k": "v"},
        "placement": {"tags": ["ssd"]},
    }
    for field, value in free.items():
        before = (await jet.stream("S")).config
        after = (await jet.update_stream("S", **{field: value})).config
        assert getattr(after, field) != getattr(before, field), field
    assert (await (await jet.stream("S")).info()).state.messages == 1


@case
async def a_change_is_checked_like_a_new_stream(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], duplicate_window=10)
    await _refused(jet, "max age needs to be >= 100ms", max_age=0.01)
    await _refused(jet, "duplicates window can not be larger then max age", max_age=5)
    await _refused(jet, "discard new per subject requires discard new policy to be set", discard_new_per_subject=True)
    await _refused(
        jet,
        "discard new per subject requires max msgs per subject > 0",
        discard="new",
        discard_new_per_subject=True,
    )
    await _refused(jet, "invalid subject", subjects=["a b"])
    await _refused(jet, "preferred server not permitted in placement", placement={"preferred": "x"})
    await refused(10133, jet.update_stream("S", num_replicas=-1))
    await _refused(jet, "maximum replicas is 5", num_replicas=6)


@case
async def a_refused_change_changes_nothing(jet: Jet) -> None:
    before = await jet.create_stream("S", subjects=["s"])
    await refused(10052, jet.update_stream("S", description="new", max_age=0.01))
    assert (await jet.stream("S")).config == before.config


@case
async def without_subjects_it_takes_its_name(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    info = await jet.backend.call(StreamUpdate(config=StreamConfig(name="S")))
    assert info.config.subjects == ("S",)


@case
async def what_is_left_out_goes_back_to_its_default(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], max_msgs=5, duplicate_window=10, description="d")
    config = (await jet.backend.call(StreamUpdate(config=StreamConfig(name="S", subjects=("s",))))).config
    assert (config.max_msgs, config.duplicate_window, config.description) == (-1, Duration(120), "")


@case
async def limits_of_consumers_must_fit_those_there_are(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], consumer_limits={"max_ack_pending": 5})
    await stream.create_consumer(durable_name="c", max_ack_pending=4)
    error = await refused(10069, jet.update_stream("S", consumer_limits={"max_ack_pending": 3}))
    assert (error.code, error.description) == (500, "change to limits violates consumers: c")
    await jet.update_stream("S", consumer_limits={"max_ack_pending": 4})
    assert (await jet.update_stream("S", consumer_limits={})).config.consumer_limits.max_ack_pending == 0


@case
async def lowered_limits_remove_nothing_where_new_messages_are_discarded(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"], discard="new")
    await jet.publish_batch([(f"s.{n % 2}", b"12345") for n in range(6)])
    stream = await jet.update_stream("S", max_msgs=3, max_bytes=100)
    assert (await stream.info()).state.messages == 6
    await refused(10077, jet.publish("s.0"))
    stream = await jet.update_stream("S", max_msgs_per_subject=2)
    assert (await stream.info()).state.messages == 4
    stream = await jet.update_stream("S", max_bytes=-1, discard="old")
    assert (await stream.info()).state.first_seq == 4


@lagging("a new consumer may be led where what was published has not arrived")
async def a_shorter_age_applies_at_once(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], duplicate_window=0.1)
    await jet.publish("s")
    consumer = await (await jet.stream("S")).create_consumer(durable_name="c", deliver_policy="new")
    assert await consumer.fetch(1, timeout=0.25) == []
    stream = await jet.update_stream("S", max_age=0.2)
    while (await stream.info()).state.messages:
        await consumer.fetch(1, timeout=0.05)
    assert (await stream.info()).state.first_seq == 2


@case
async def other_subjects_are_taken_at_once(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["a", "b"])
    await jet.update_stream("S", subjects=["b", "c"])
    await jet.create_stream("T", subjects=["a"])
    assert [(await jet.publish(subject)).stream for subject in "abc"] == ["T", "S", "S"]
