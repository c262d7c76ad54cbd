"""Priority groups on a manual clock, and across processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.engine.salvage import recount
from pelton.testing import ManualRuntime
from tests.storage.processes import Child
from tests.storage.stores import raw

Pulled = asyncio.Future[list[pelton.Message]]


async def _consumer(jet: pelton.Jet, policy: str, **config: Any) -> pelton.Consumer:
    stream = await jet.create_stream("s", subjects=["s.>"])
    return await stream.create_consumer(durable_name="c", priority_policy=policy, priority_groups=["g"], **config)


async def _client(jet: pelton.Jet) -> pelton.Consumer:
    return await (await jet.stream("s")).consumer("c")


def _begin(asked: Awaitable[list[pelton.Message]]) -> Pulled:
    return asyncio.ensure_future(asked)


async def _settle() -> None:
    """Let every ready task run."""
    for _ in range(20):
        await asyncio.sleep(0)


def _rows(path: Path, table: str) -> int:
    with raw(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


# --- overflow with failover


async def test_failover_waits_for_the_nearer_to_be_silent(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    consumer = await _consumer(jet, "overflow")
    await jet.publish_batch([("s.1", b"") for _ in range(9)])
    assert len(await consumer.fetch(1, no_wait=True, group="g")) == 1
    runtime.clock.advance(4.9)
    assert await consumer.fetch(1, no_wait=True, group="g", failover=5) == []
    runtime.clock.advance(0.1)
    assert len(await consumer.fetch(1, no_wait=True, group="g", failover=5)) == 1
    # It is still served until a nearer client is heard of again.
    assert len(await consumer.fetch(1, no_wait=True, group="g", failover=5)) == 1
    assert len(await consumer.fetch(1, no_wait=True, group="g")) == 1
    assert await consumer.fetch(1, no_wait=True, group="g", failover=5) == []


async def test_the_nearest_comes_first(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    consumer = await _consumer(jet, "overflow")
    near = _begin(consumer.fetch(1, timeout=None, group="g", failover=10))
    far = _begin(consumer.fetch(1, timeout=None, group="g", failover=20))
    await _settle()
    runtime.clock.advance(30)
    await _settle()
    await jet.publish("s.1")
    assert len(await asyncio.wait_for(near, 60)) == 1
    # The nearer one has just pulled: the farther one waits its full time from then on.
    await jet.publish("s.1")
    runtime.clock.advance(19)
    await _settle()
    assert not far.done()
    runtime.clock.advance(1.1)
    assert len(await asyncio.wait_for(far, 60)) == 1


async def test_a_waiting_pull_fails_over_by_itself(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    consumer = await _consumer(jet, "overflow")
    await jet.publish("s.1")
    far = _begin(consumer.fetch(1, timeout=None, group="g", failover=60))
    await _settle()
    for _ in range(6):
        assert not far.done()
        runtime.clock.advance(10)
        await _settle()
    assert len(await asyncio.wait_for(far, 60)) == 1


async def test_much_to_do_is_reason_enough(jet: pelton.Jet) -> None:
    consumer = await _consumer(jet, "overflow")
    await jet.publish_batch([("s.1", b"") for _ in range(9)])
    assert len(await consumer.fetch(1, no_wait=True, group="g", failover=3600, min_pending=9)) == 1
    assert await consumer.fetch(1, no_wait=True, group="g", failover=3600, min_pending=9) == []


@pytest.mark.parametrize("failover", [4.9, 3601])
async def test_failover_takes_5_seconds_to_an_hour(jet: pelton.Jet, failover: float) -> None:
    consumer = await _consumer(jet, "overflow")
    with pytest.raises(pelton.BadRequestError, match="between 5s and 3600s"):
        await consumer.fetch(1, no_wait=True, group="g", failover=failover)


# --- prioritized


async def test_what_there_is_is_shared_among_equals(jet: pelton.Jet) -> None:
    consumer = await _consumer(jet, "prioritized")
    pulls = [_begin(consumer.fetch(10, timeout=None, group="g", priority=2)) for _ in range(3)]
    await _settle()
    await jet.publish_batch([("s.1", b"") for _ in range(9)])
    shares = [len(messages) for messages in await asyncio.wait_for(asyncio.gather(*pulls), 60)]
    assert sum(shares) == 9
    assert max(shares) < 9


async def test_a_cancelled_pull_blocks_nobody(jet: pelton.Jet) -> None:
    consumer = await _consumer(jet, "prioritized")
    first = _begin(consumer.fetch(1, timeout=None, group="g", priority=0))
    await _settle()
    second = _begin(consumer.fetch(1, timeout=None, group="g", priority=1))
    await _settle()
    await jet.publish("s.1")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    got = await asyncio.wait_for(second, 60)
    assert len(got) == 1


async def test_a_pull_that_does_not_wait_yields_to_one_that_does(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    consumer = await _consumer(jet, "prioritized", max_ack_pending=1)
    await jet.publish("s.1")
    (taken,) = await consumer.fetch(1, group="g")
    await jet.publish("s.1")
    first = _begin(consumer.fetch(1, timeout=None, group="g", priority=0))
    await _settle()
    await taken.ack()
    assert await consumer.fetch(1, no_wait=True, group="g", priority=9) == []
    assert len(await asyncio.wait_for(first, 60)) == 1


# --- pinned


async def test_a_client_that_waits_keeps_its_pin(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    consumer = await _consumer(jet, "pinned_client", priority_timeout=10)
    standby = await _client(jet)
    await jet.publish("s.1")
    await consumer.ack(await consumer.fetch(1, group="g"))
    waiting = _begin(consumer.fetch(1, timeout=None, group="g"))
    other = _begin(standby.fetch(1, timeout=None, group="g"))
    await _settle()
    for _ in range(20):
        runtime.clock.advance(4)
        await _settle()
    await jet.publish("s.1")
    assert len(await asyncio.wait_for(waiting, 60)) == 1
    assert not other.done()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


async def test_two_pulls_of_one_handle_lose_their_pin_together(jet: pelton.Jet) -> None:
    consumer = await _consumer(jet, "pinned_client")
    await jet.publish("s.1")
    await consumer.ack(await consumer.fetch(1, group="g"))
    lost = consumer.pin("g")
    waiting = [_begin(consumer.fetch(1, timeout=None, group="g")) for _ in range(2)]
    await _settle()
    await consumer.unpin("g")
    await jet.publish("s.1")
    done, others = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert [len(found.result()) for found in done] == [1]
    assert consumer.pin("g") not in ("", lost)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_an_unpinned_client_that_dies_is_waited_for_no_longer_than_its_ack_wait(
    jet: pelton.Jet, runtime: ManualRuntime
) -> None:
    consumer = await _consumer(jet, "pinned_client", ack_wait=30)
    standby = await _client(jet)
    await jet.publish_batch([("s.1", b""), ("s.1", b"")])
    assert len(await consumer.fetch(1, group="g")) == 1
    await consumer.unpin("g")
    waiting = _begin(standby.fetch(2, timeout=None, group="g"))
    await _settle()
    runtime.clock.advance(29)
    await _settle()
    assert not waiting.done()
    runtime.clock.advance(1.1)
    assert [message.metadata.stream_seq for message in await asyncio.wait_for(waiting, 60)] == [1, 2]


async def test_the_pin_survives_a_restart(tmp_path: Path, runtime: ManualRuntime) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet:
        consumer = await _consumer(jet, "pinned_client")
        await jet.publish_batch([("s.1", b"")] * 3)
        await consumer.fetch(1, group="g")
        pin = consumer.pin("g")
    async with pelton.open(path, runtime=runtime) as jet:
        consumer = await _client(jet)
        assert (await consumer.info()).priority_groups[0].pinned_client_id == pin
        assert await consumer.fetch(1, no_wait=True, group="g") == []
    assert recount(str(path)) == []


# --- processes


async def _pull_in_child(pipe: Connection, path: Path, priority: int) -> None:
    async with pelton.open(path) as jet:
        consumer = await _client(jet)
        pipe.send("pulls")
        while True:
            for message in await consumer.fetch(1, timeout=None, group="g", priority=priority):
                await message.ack()
                pipe.send(message.data)


async def test_a_pinned_process_that_is_killed_loses_its_pin(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        consumer = await _consumer(jet, "pinned_client", priority_timeout=1)
        with Child(_pull_in_child, path, 0) as child:
            assert await child.heard() == "pulls"
            await jet.publish("s.1", b"1")
            assert await child.heard() == b"1"
            standby = _begin(consumer.fetch(1, timeout=None, group="g"))
            await jet.publish("s.1", b"2")
            assert await child.heard() == b"2"
            child.kill()
        await jet.publish("s.1", b"3")
        (message,) = await asyncio.wait_for(standby, 30)
        assert message.data == b"3"
        assert consumer.pin("g")


async def test_processes_yield_to_each_other_and_the_dead_to_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        consumer = await _consumer(jet, "prioritized")
        with Child(_pull_in_child, path, 1) as child:
            assert await child.heard() == "pulls"
            while not _rows(path, "pulls"):  # the row is the event
                await asyncio.sleep(0)
            mine = _begin(consumer.fetch(1, timeout=None, group="g", priority=5))
            await jet.publish("s.1", b"theirs")
            assert await child.heard() == b"theirs"
            child.kill()
        await jet.publish("s.1", b"mine")
        assert [message.data for message in await asyncio.wait_for(mine, 30)] == [b"mine"]
        assert _rows(path, "pulls") == 0
    assert recount(str(path)) == []
