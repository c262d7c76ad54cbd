"""Effects of time appear without any access, once, whichever process has the store open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import pelton
from pelton.engine.salvage import recount
from pelton.testing import ManualRuntime, manual_runtime


@pytest.fixture
def runtime() -> ManualRuntime:
    return manual_runtime()


@pytest.fixture
async def jets(tmp_path: Path, runtime: ManualRuntime) -> AsyncIterator[list[pelton.Jet]]:
    """Two openers of one file, as two processes would be."""
    path = tmp_path / "store.pelton"
    opened = [await pelton.open(path, runtime=runtime) for _ in range(2)]
    yield opened
    for jet in opened:
        await jet.close()
    assert recount(str(path)) == []


async def _waiting(consumer: pelton.Consumer) -> asyncio.Task[list[pelton.Message]]:
    """Start a fetch, and return when it waits."""
    task = asyncio.create_task(consumer.fetch(1, timeout=None))
    while (await consumer.info()).num_waiting == 0:
        await asyncio.sleep(0)
    return task


async def test_a_message_of_a_schedule_wakes_who_waits_for_it(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    one, other = jets
    await one.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    consumer = await (await other.stream("s")).create_consumer(filter_subject="s.later")
    await one.schedule("s.plan", b"now", target="s.later", delay=3600)
    task = await _waiting(consumer)
    runtime.clock.advance(3600)
    (message,) = await task
    assert (message.data, message.metadata.timestamp) == (b"now", runtime.clock.now())


async def test_each_opener_keeps_time_for_all(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    one, other = jets
    await one.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    stream = await other.stream("s")
    consumer = await stream.create_consumer(filter_subject="s.tick")
    await one.schedule("s.plan", target="s.tick", every=10)
    for count in range(1, 4):
        task = await _waiting(consumer)
        runtime.clock.advance(10)
        assert len(await task) == 1
        # Both have checked the clock, and it has come once.
        assert (await stream.info(subjects_filter="s.tick")).state.subjects == {"s.tick": count}
    await one.close()
    task = await _waiting(consumer)
    runtime.clock.advance(10)
    assert len(await task) == 1


async def test_a_marker_appears_when_its_time_has_come(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], subject_delete_marker_ttl=60)
    await jets[0].publish("s.a", ttl=3600)
    consumer = await stream.create_consumer(deliver_policy="new")
    task = await _waiting(consumer)
    runtime.clock.advance(3600)
    (marker,) = await task
    assert marker.headers["Nats-Marker-Reason"] == "MaxAge"


async def test_who_opens_the_store_makes_up_for_what_was_missed(tmp_path: Path, runtime: ManualRuntime) -> None:
    path = tmp_path / "store.pelton"
    async with await pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
        await stream.create_consumer(durable_name="c", filter_subject="s.tick")
        await jet.schedule("s.plan", target="s.tick", every=60)
    runtime.clock.advance(86_400)
    async with await pelton.open(path, runtime=runtime) as jet:
        consumer = await (await jet.stream("s")).consumer("c")
        (message,) = await consumer.fetch(10, timeout=None)
        assert message.headers["Nats-Schedule-Next"] == "2023-11-15T22:14:20Z"
    assert recount(str(path)) == []


async def test_the_clock_may_be_set_forward_while_one_waits(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    consumer = await stream.create_consumer(filter_subject="s.later")
    tomorrow = datetime.fromtimestamp(runtime.clock.now() // 10**9, UTC) + timedelta(days=1)
    await jets[0].schedule("s.plan", target="s.later", at=tomorrow)
    task = await _waiting(consumer)
    runtime.clock.set_wall(runtime.clock.now() + 86_400 * 10**9)
    # No timer waits for longer than a minute without checking the clock.
    runtime.clock.advance(60)
    assert len(await task) == 1


async def test_a_stream_that_is_gone_keeps_no_time(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    jet = jets[0]
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    await jet.schedule("s.plan", target="s.later", delay=10)
    await stream.delete()
    runtime.clock.advance(60)
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    consumer = await stream.create_consumer()
    await jet.schedule("s.plan", target="s.later", delay=10)
    await consumer.fetch(1)
    task = await _waiting(consumer)
    runtime.clock.advance(10)
    assert (await task)[0].subject == "s.later"
