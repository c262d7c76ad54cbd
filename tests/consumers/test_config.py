"""Valid consumer configurations and changes, and the NATS error codes of the others."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import pelton
from pelton.testing import ManualRuntime
from tests.streams.test_config import coded


@pytest.fixture
async def stream(jet: pelton.Jet) -> pelton.Stream:
    return await jet.create_stream("s", subjects=["s.>"])


async def test_choices_left_open_are_made_and_reported(stream: pelton.Stream) -> None:
    config = (await stream.create_consumer(durable_name="c")).config
    assert (config.name, config.ack_wait, config.max_ack_pending, config.max_waiting) == (
        "c",
        pelton.api.Duration(30),
        1000,
        512,
    )
    assert (config.inactive_threshold, config.max_deliver) == (0, -1)
    ephemeral = await stream.create_consumer()
    assert ephemeral.name
    assert ephemeral.config.inactive_threshold == 5
    assert (await stream.create_consumer(durable_name="b", backoff=[1, 5])).config.ack_wait == 1
    assert await stream.consumer_names() == sorted([ephemeral.name, "b", "c"])


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"filter_subject": "a..b"}, 10052),
        ({"filter_subjects": ["s.a", "s.*"]}, 10138),
        ({"filter_subjects": ["s.a", ""]}, 10139),
        ({"filter_subject": "s.a", "filter_subjects": ["s.b"]}, 10136),
        ({"deliver_policy": "by_start_sequence"}, 10094),
        ({"deliver_policy": "by_start_time"}, 10094),
        ({"opt_start_seq": 3}, 10094),
        ({"opt_start_time": "2024-01-01T00:00:00Z"}, 10094),
        ({"backoff": [1, 2], "max_deliver": 1}, 10116),
    ],
)
async def test_a_configuration_that_contradicts_itself(
    stream: pelton.Stream, config: dict[str, Any], code: int
) -> None:
    with coded(code):
        await stream.create_consumer(**{"durable_name": "c", **config})
    assert await stream.consumer_names() == []


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"ack_wait": pelton.Duration.of_ns(-1)}, 10183),
        ({"backoff": (pelton.Duration.of_ns(-1),)}, 10184),
        ({"name": "a/b"}, 10127),
        ({"name": "x" * 256}, 10102),
    ],
)
async def test_what_only_a_struct_can_say(
    jet: pelton.Jet, stream: pelton.Stream, config: dict[str, Any], code: int
) -> None:
    wanted = pelton.ConsumerConfig(**{"name": "c", **config})
    with coded(code):
        await jet.backend.call(pelton.ConsumerCreate(stream_name=stream.name, config=wanted))


@pytest.mark.parametrize(
    "config",
    [
        {"max_ack_pending_per_subject": -1},
        {"max_ack_pending_per_subject": 1, "ack_policy": "all"},
        {"filter": "s.a"},
    ],
)
async def test_what_is_not_supported_or_misspelt_is_refused(stream: pelton.Stream, config: dict[str, Any]) -> None:
    with pytest.raises(pelton.ConfigError):
        await stream.create_consumer(**config)


async def test_the_stream_limits_its_consumers(jet: pelton.Jet) -> None:
    stream = await jet.create_stream(
        "l", max_consumers=1, consumer_limits={"max_ack_pending": 10, "inactive_threshold": 5}
    )
    with coded(10121):
        await stream.create_consumer(durable_name="c", max_ack_pending=11)
    with coded(10153):
        await stream.create_consumer(durable_name="c", inactive_threshold=6)
    assert (await stream.create_consumer(durable_name="c")).config.max_ack_pending == 10
    with coded(10026):
        await stream.create_consumer(durable_name="d")
    await stream.create_consumer(durable_name="c")


async def test_a_work_queue_gives_each_message_to_one_consumer(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("w", subjects=["w.>"], retention="workqueue")
    await stream.create_consumer(durable_name="a", filter_subject="w.a")
    await stream.create_consumer(durable_name="b", filter_subject="w.b")
    for config, code in (
        ({"filter_subject": "w.>"}, 10100),
        ({}, 10099),
        ({"filter_subject": "w.c", "ack_policy": "all"}, 10098),
        ({"filter_subject": "w.c", "deliver_policy": "new"}, 10101),
    ):
        with coded(code):
            await stream.create_consumer(durable_name="c", **config)
    with coded(10100):
        await stream.create_consumer(durable_name="b", filter_subject="w.a")
    await stream.create_consumer(durable_name="b", filter_subject="w.c")
    await stream.delete_consumer("a")
    await stream.create_consumer(durable_name="c", filter_subject="w.a")


async def test_an_update_changes_what_may_change(stream: pelton.Stream) -> None:
    await stream.create_consumer(durable_name="c", description="old")
    changed = await stream.create_consumer(
        durable_name="c", description="new", ack_wait=1, max_deliver=3, max_ack_pending=2, filter_subject="s.a"
    )
    assert (await changed.info()).config == changed.config
    assert (changed.config.description, changed.config.max_deliver) == ("new", 3)


@pytest.mark.parametrize(
    "change",
    [{"deliver_policy": "new"}, {"ack_policy": "all"}, {"max_ack_pending_per_subject": 1}, {"ack_policy": "none"}],
)
async def test_an_update_of_what_a_consumer_is(stream: pelton.Stream, change: dict[str, Any]) -> None:
    await stream.create_consumer(durable_name="c")
    with coded(10012):
        await stream.create_consumer(durable_name="c", **change)


async def test_create_and_update_can_be_told_apart(jet: pelton.Jet, stream: pelton.Stream) -> None:
    config = pelton.ConsumerConfig(durable_name="c")
    with coded(10149):
        await jet.backend.call(pelton.ConsumerCreate(stream_name="s", config=config, action="update"))
    await jet.backend.call(pelton.ConsumerCreate(stream_name="s", config=config, action="create"))
    other = pelton.ConsumerConfig(durable_name="c", description="x")
    with coded(10148):
        await jet.backend.call(pelton.ConsumerCreate(stream_name="s", config=other, action="create"))


async def test_a_consumer_that_is_not_there(jet: pelton.Jet, stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish("s.a")
    [message] = await consumer.fetch(1)
    await consumer.delete()
    calls = (consumer.info(), consumer.fetch(1), consumer.delete(), stream.consumer("c"), message.ack())
    for call in calls:
        with pytest.raises(pelton.ConsumerNotFoundError) as refused:
            await call
        assert (refused.value.err_code, refused.value.stream, refused.value.consumer) == (10014, "s", "c")


async def test_an_unused_ephemeral_consumer_goes(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(inactive_threshold=10)
    runtime.clock.advance(9)
    assert await consumer.fetch(1, no_wait=True) == []
    runtime.clock.advance(9)
    assert (await consumer.info()).name == consumer.name
    assert (await stream.info()).state.consumer_count == 1
    runtime.clock.advance(1)
    assert (await stream.info()).state.consumer_count == 0
    with pytest.raises(pelton.ConsumerNotFoundError):
        await consumer.fetch(1)
    assert await stream.consumer_names() == []


class TestWhereItBegins:
    """Messages 1 a, 2 b at 0 s; 3 a, 4 b at 10 s; 5 c at 20 s; 3 deleted."""

    @pytest.fixture
    async def stream(self, jet: pelton.Jet, runtime: ManualRuntime) -> pelton.Stream:
        stream = await jet.create_stream("s", subjects=["s.>"])
        for names in ("ab", "ab", "c"):
            await jet.publish_batch([(f"s.{name}", b"") for name in names])
            runtime.clock.advance(10)
        await stream.delete_message(3)
        return stream

    @pytest.mark.parametrize(
        ("config", "first"),
        [
            ({}, [1, 2, 4, 5]),
            ({"deliver_policy": "new"}, []),
            ({"deliver_policy": "last"}, [5]),
            ({"deliver_policy": "last", "filter_subject": "s.b"}, [4]),
            ({"deliver_policy": "last", "filter_subjects": ["s.a", "s.b"]}, [4]),
            ({"deliver_policy": "last", "filter_subject": "s.d"}, []),
            ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, [4, 5]),
            ({"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, []),
            ({"deliver_policy": "by_start_sequence", "opt_start_seq": 1, "filter_subject": "s.b"}, [2, 4]),
            ({"filter_subject": "s.*"}, [1, 2, 4, 5]),
            ({"filter_subject": "elsewhere"}, []),
        ],
    )
    async def test_policies(
        self, jet: pelton.Jet, stream: pelton.Stream, config: dict[str, Any], first: list[int]
    ) -> None:
        consumer = await stream.create_consumer(durable_name="c", **config)
        assert (await consumer.info()).num_pending == len(first)
        assert [m.metadata.stream_seq for m in await consumer.fetch(9, no_wait=True)] == first
        if "filter_subject" not in config and "filter_subjects" not in config:
            await jet.publish_batch([("s.a", b"")] * 2)
            wanted = [6, 7] if config.get("opt_start_seq") != 7 else [7]
            assert [m.metadata.stream_seq for m in await consumer.fetch(9, no_wait=True)] == wanted

    @pytest.mark.parametrize(("second", "first"), [(-5, 1), (0, 1), (1, 4), (10, 4), (11, 5), (20, 5), (21, 0)])
    async def test_by_time(self, stream: pelton.Stream, second: int, first: int) -> None:
        start = datetime.fromtimestamp(1_700_000_000 + second, UTC)
        consumer = await stream.create_consumer(deliver_policy="by_start_time", opt_start_time=start)
        found = await consumer.fetch(1, no_wait=True)
        assert [m.metadata.stream_seq for m in found] == ([first] if first else [])

    async def test_new_knows_what_was_published_in_the_same_breath(
        self, jet: pelton.Jet, stream: pelton.Stream
    ) -> None:
        _, consumer = await asyncio.gather(jet.publish("s.a"), stream.create_consumer(deliver_policy="new"))
        assert (await consumer.info()).num_pending == 0


async def test_a_changed_filter_goes_on_from_where_the_consumer_was(jet: pelton.Jet, stream: pelton.Stream) -> None:
    await jet.publish_batch([(f"s.{name}", b"") for name in "abab"])
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.a")
    assert [m.metadata.stream_seq for m in await consumer.fetch(1)] == [1]
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.b")
    assert (await consumer.info()).num_pending == 2
    assert [m.metadata.stream_seq for m in await consumer.fetch(5)] == [2, 4]
