"""When messages are delivered: original pace, pauses; on a manual clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pelton
from pelton.engine.salvage import recount
from pelton.testing import ManualRuntime


async def _spread(jet: pelton.Jet, runtime: ManualRuntime, *gaps: float) -> pelton.Stream:
    """Store messages with this many seconds between them."""
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish("s.1")
    for gap in gaps:
        runtime.clock.advance(gap)
        await jet.publish("s.1")
    return stream


async def _got(consumer: pelton.Consumer) -> list[int]:
    return [message.metadata.stream_seq for message in await consumer.fetch(10, no_wait=True)]


async def test_the_original_pace_is_kept(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await _spread(jet, runtime, 5, 1, 0)
    runtime.clock.advance(3600)
    consumer = await stream.create_consumer(durable_name="c", replay_policy="original", ack_wait=9999)
    assert await _got(consumer) == [1]
    runtime.clock.advance(4.9)
    assert await _got(consumer) == []
    runtime.clock.advance(0.1)
    assert await _got(consumer) == [2]
    # A late delivery delays those after it: the gaps between them are kept.
    runtime.clock.advance(30)
    assert await _got(consumer) == [3, 4]


async def test_what_came_later_is_not_held_back(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await _spread(jet, runtime, 5)
    consumer = await stream.create_consumer(durable_name="c", replay_policy="original", ack_wait=9999)
    runtime.clock.advance(100)
    await jet.publish("s.1")
    assert await _got(consumer) == [1]
    runtime.clock.advance(5)
    assert await _got(consumer) == [2, 3]


async def test_a_pull_wakes_up_when_the_next_is_due(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await _spread(jet, runtime, 60)
    consumer = await stream.create_consumer(durable_name="c", replay_policy="original", ack_wait=9999)
    assert await _got(consumer) == [1]
    waiting = asyncio.ensure_future(consumer.fetch(1, timeout=300))
    for _ in range(5):
        await asyncio.sleep(0)
    runtime.clock.advance(59)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    runtime.clock.advance(1.1)
    assert len(await asyncio.wait_for(waiting, 60)) == 1


async def test_the_pace_survives_a_restart(tmp_path: Path, runtime: ManualRuntime) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await _spread(jet, runtime, 5, 5)
        consumer = await stream.create_consumer(durable_name="c", replay_policy="original", ack_wait=9999)
        assert await _got(consumer) == [1]
    runtime.clock.advance(4)
    async with pelton.open(path, runtime=runtime) as jet:
        consumer = await (await jet.stream("s")).consumer("c")
        assert await _got(consumer) == []
        runtime.clock.advance(1)
        assert await _got(consumer) == [2]
    assert recount(str(path)) == []


async def test_a_pause_holds_redeliveries_too_and_wakes_waiting_pulls(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await _spread(jet, runtime)
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    assert await _got(consumer) == [1]
    await consumer.pause(datetime.fromtimestamp(runtime.clock.now() / 1e9 + 60, UTC))
    waiting = asyncio.ensure_future(consumer.fetch(1, timeout=None))
    for _ in range(5):
        await asyncio.sleep(0)
    runtime.clock.advance(30)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    runtime.clock.advance(31)
    assert [message.metadata.num_delivered for message in await asyncio.wait_for(waiting, 60)] == [2]


async def test_lasts_per_subject_keep_exclusive_subjects(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish_batch([(f"s.{n % 3}", b"") for n in range(9)])
    consumer = await stream.create_consumer(
        durable_name="c", deliver_policy="last_per_subject", filter_subject="s.>", max_ack_pending_per_subject=1
    )
    await jet.publish("s.0")
    first = await consumer.fetch(10, no_wait=True)
    assert [message.metadata.stream_seq for message in first] == [7, 8, 9]
    await first[0].ack()
    assert await _got(consumer) == [10]


async def test_lasts_per_subject_follow_purges(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        await jet.publish_batch([(f"s.{n % 3}", b"") for n in range(9)])
        consumer = await stream.create_consumer(
            durable_name="c", deliver_policy="last_per_subject", filter_subject="s.>"
        )
        await stream.purge(filter="s.1")
        assert (await consumer.info()).num_pending == 2
        assert await _got(consumer) == [7, 9]
    assert recount(str(path)) == []
