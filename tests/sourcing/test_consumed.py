"""A source that takes from a consumer: what time and room decide, on an embedded store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import rfc3339
from pelton.api.times import SECOND
from pelton.engine.salvage import recount
from pelton.testing import ManualClock, manual_runtime

FROM_C: Any = {"name": "O", "consumer": {"name": "C", "deliver_subject": "to.s"}}
PUSH: Any = {"ack_policy": "flow_control", "deliver_subject": "to.s", "flow_control": True, "idle_heartbeat": 1}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def runtime() -> Any:
    return manual_runtime()


@pytest.fixture
async def jet(path: str, runtime: Any) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(path, runtime=runtime) as opened:
        yield opened
    assert recount(path) == []


async def data_of(stream: pelton.Stream) -> list[bytes]:
    state = (await stream.info()).state
    return [(await stream.get_message(seq)).data for seq in range(state.first_seq, state.last_seq + 1)]


async def count(stream: pelton.Stream, clock: ManualClock, messages: int) -> None:
    """Let time pass until a stream has so many messages."""
    while (await stream.info()).state.messages < messages:
        clock.advance(0.2)


async def test_a_pause_ends(jet: pelton.Jet, runtime: Any) -> None:
    origin = await jet.create_stream("O", subjects=["o.>"])
    consumer = await origin.create_consumer(durable_name="C", **PUSH)
    stream = await jet.create_stream("S", sources=[FROM_C])
    await consumer.pause(rfc3339(runtime.clock.now() + 100 * SECOND))
    await jet.publish("o.1", b"1")
    info = (await stream.info()).sources[0]
    assert (info.lag, (await stream.info()).state.messages) == (1, 0)
    await count(stream, runtime.clock, 1)
    assert runtime.clock.monotonic() >= 100


async def test_a_rate_is_kept(jet: pelton.Jet, runtime: Any) -> None:
    origin = await jet.create_stream("O", subjects=["o"])
    await origin.create_consumer(durable_name="C", rate_limit_bps=8 * 1000, **PUSH)
    stream = await jet.create_stream("S", sources=[FROM_C])
    began = runtime.clock.monotonic()
    await jet.publish_batch([("o", bytes(999))] * 4)
    assert (await stream.info()).state.messages == 1
    await count(stream, runtime.clock, 4)
    assert runtime.clock.monotonic() - began >= 3


async def test_a_replay_keeps_its_pace(jet: pelton.Jet, runtime: Any) -> None:
    origin = await jet.create_stream("O", subjects=["o"])
    for number in range(3):
        await jet.publish("o", b"%d" % number)
        runtime.clock.advance(5)
    await origin.create_consumer(durable_name="C", replay_policy="original", **PUSH)
    stream = await jet.create_stream("S", sources=[FROM_C])
    began = runtime.clock.monotonic()
    await count(stream, runtime.clock, 3)
    assert runtime.clock.monotonic() - began >= 10


async def test_a_subject_without_room_waits_with_the_consumer(jet: pelton.Jet) -> None:
    origin = await jet.create_stream("O", subjects=["o.>"], retention="workqueue")
    consumer = await origin.create_consumer(durable_name="C", **PUSH)
    room = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    stream = await jet.create_stream("S", sources=[FROM_C], **room)
    for subject, data in (("o.a", b"a1"), ("o.a", b"a2"), ("o.b", b"b1")):
        await jet.publish(subject, data)
    assert await data_of(stream) == [b"a1", b"b1"]
    assert ((await origin.info()).state.messages, (await consumer.info()).num_ack_pending) == (1, 1)
    # What it is reset to has been taken already, but for what waits.
    await consumer.reset()
    assert await data_of(stream) == [b"a1", b"b1"]
    await stream.delete_message(1)
    assert await data_of(stream) == [b"b1", b"a2"]
    assert ((await origin.info()).state.messages, (await consumer.info()).num_ack_pending) == (0, 0)


async def test_limits_of_the_origin_remove_nothing_before_it_was_taken(jet: pelton.Jet) -> None:
    origin = await jet.create_stream("O", subjects=["o"], max_msgs_per_subject=1)
    await origin.create_consumer(durable_name="C", **PUSH)
    stream = await jet.create_stream("S", sources=[FROM_C])
    await jet.publish_batch([("o", b"%d" % number) for number in range(5)])
    assert await data_of(stream) == [b"%d" % number for number in range(5)]
    assert await data_of(origin) == [b"4"]


async def test_other_processes_go_on(path: str, jet: pelton.Jet) -> None:
    origin = await jet.create_stream("O", subjects=["o"])
    await jet.create_stream("S", sources=[FROM_C])
    async with pelton.open(path) as other:
        await jet.publish("o", b"1")
        await (await other.stream("O")).create_consumer(durable_name="C", **PUSH)
        stream = await other.stream("S")
        assert await data_of(stream) == [b"1"]
        await other.publish("o", b"2")
    await jet.publish("o", b"3")
    assert await data_of(await jet.stream("S")) == [b"1", b"2", b"3"]
    consumer = await origin.consumer("C")
    assert (await consumer.info()).ack_floor.stream_seq == 3
    await jet.delete_stream("S")
    assert not (await consumer.info()).push_bound


async def test_a_large_backlog_is_taken_in_portions(jet: pelton.Jet) -> None:
    origin = await jet.create_stream("O", subjects=["o"], retention="workqueue")
    await origin.create_consumer(durable_name="C", **PUSH)
    await jet.publish_batch([("o", b"%d" % number) for number in range(20_000)])
    stream = await jet.create_stream("S", sources=[FROM_C])
    while (await stream.info()).state.messages < 20_000:
        pass
    assert (await stream.get_message(20_000)).data == b"19999"
    assert (await origin.info()).state.messages == 0
