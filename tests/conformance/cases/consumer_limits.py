"""What a stream sets for all of its consumers: limits, and defaults."""

from __future__ import annotations

from typing import Any

from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.table import case, refused


async def _stream(jet: Jet, **limits: int) -> Stream:
    return await jet.create_stream("S", subjects=["s"], consumer_limits=limits)


async def _settings(stream: Stream, name: str, **config: Any) -> tuple[int, float]:
    """A consumer's effective values: acks pending, inactivity in seconds."""
    consumer = await stream.create_consumer(durable_name=name, **config)
    return consumer.config.max_ack_pending, consumer.config.inactive_threshold.seconds


@case
async def the_limits_are_the_defaults(jet: Jet) -> None:
    stream = await _stream(jet, max_ack_pending=5000, inactive_threshold=10)
    for policy in ("explicit", "all", "none"):
        assert await _settings(stream, policy, ack_policy=policy) == (5000, 10)
    assert (await stream.create_consumer()).config.inactive_threshold == 10


@case
async def a_small_limit_is_the_default_too(jet: Jet) -> None:
    stream = await _stream(jet, max_ack_pending=50)
    assert await _settings(stream, "c") == (50, 0)
    assert await _settings(stream, "d", max_ack_pending=20) == (20, 0)
    assert await _settings(stream, "e", max_ack_pending=-1) == (-1, 0)


@case
async def without_limits_the_defaults_are_the_servers(jet: Jet) -> None:
    stream = await _stream(jet)
    assert await _settings(stream, "explicit") == (1000, 0)
    assert await _settings(stream, "none", ack_policy="none") == (0, 0)
    assert (await stream.create_consumer()).config.inactive_threshold == 5


@case
async def no_more_unacknowledged_than_the_stream_allows(jet: Jet) -> None:
    stream = await _stream(jet, max_ack_pending=50)
    error = await refused(10121, stream.create_consumer(durable_name="c", max_ack_pending=51))
    assert error.description.endswith("system limit of 50")
    await refused(10121, stream.create_consumer(durable_name="c", max_ack_pending=51, ack_policy="none"))


@case
async def no_longer_inactive_than_the_stream_allows(jet: Jet) -> None:
    stream = await _stream(jet, inactive_threshold=90)
    error = await refused(10153, stream.create_consumer(durable_name="c", inactive_threshold=91))
    assert error.description.endswith("system limit of 1m30s")


@case
async def a_change_of_a_consumer_keeps_the_limits(jet: Jet) -> None:
    stream = await _stream(jet, max_ack_pending=50)
    await stream.create_consumer(durable_name="c", max_ack_pending=20)
    await refused(10121, stream.create_consumer(durable_name="c", max_ack_pending=51))
    assert await _settings(stream, "c", max_ack_pending=30) == (30, 0)


@case
async def limits_below_what_consumers_have_are_refused(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="c", max_ack_pending=60, inactive_threshold=60)
    error = await refused(10069, jet.update_stream("S", consumer_limits={"max_ack_pending": 50}))
    assert error.description == "change to limits violates consumers: c"
    await refused(10069, jet.update_stream("S", consumer_limits={"inactive_threshold": 50}))
    assert (await stream.info()).config.consumer_limits.max_ack_pending == 0
    await jet.update_stream("S", consumer_limits={"max_ack_pending": 60, "inactive_threshold": 60})


@case
async def consumers_without_a_bound_do_not_hinder_new_limits(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="c", max_ack_pending=-1)
    await stream.create_consumer(durable_name="d", ack_policy="none")
    await jet.update_stream("S", consumer_limits={"max_ack_pending": 10, "inactive_threshold": 1})


@case
async def consumers_keep_what_they_took_over(jet: Jet) -> None:
    stream = await _stream(jet, max_ack_pending=50, inactive_threshold=10)
    consumer = await stream.create_consumer(durable_name="c")
    await jet.update_stream("S", consumer_limits={})
    config = (await consumer.info()).config
    assert (config.max_ack_pending, config.inactive_threshold.seconds) == (50, 10)
    assert await _settings(stream, "c") == (1000, 0)


@case
async def the_number_of_consumers_may_change(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_consumers=1)
    await stream.create_consumer(durable_name="a")
    await refused(10026, stream.create_consumer(durable_name="b"))
    await jet.update_stream("S", max_consumers=2)
    await stream.create_consumer(durable_name="b")
    await jet.update_stream("S", max_consumers=1)
    await stream.create_consumer(durable_name="b", description="there already")
    await refused(10026, stream.create_consumer())
    await jet.update_stream("S", max_consumers=0)
    assert (await stream.info()).config.max_consumers == -1
    await stream.create_consumer()


@case
async def a_deleted_consumer_makes_room(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_consumers=1)
    await (await stream.create_consumer(durable_name="a")).delete()
    await stream.create_consumer(durable_name="b")


@case
async def a_direct_consumer_is_not_counted(jet: Jet) -> None:
    for retention in ("limits", "workqueue"):
        stream = await jet.create_stream(retention, subjects=[retention], retention=retention, max_consumers=1)
        # It lives long, although it has no subscriber.
        direct = {"deliver_subject": "d", "direct": True, "ack_policy": "none", "inactive_threshold": 600}
        await stream.create_consumer(name="d1", **direct)
        await stream.create_consumer(durable_name="c")
        await refused(10026, stream.create_consumer(name="other"))
        await stream.create_consumer(name="d2", **direct)
        assert (await stream.info()).state.consumer_count == 1
        assert await stream.consumer_names() == ["c"]
        await stream.delete_consumer("d1")
        await refused(10014, stream.delete_consumer("d1"))
