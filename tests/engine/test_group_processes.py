"""Priority groups in several processes: which is pinned when a process dies or is paused, and which wait."""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import pelton
from pelton.api import PullRefusedError
from pelton.engine.salvage import recount
from tests.stopping import stand_still
from tests.storage.processes import Child

_LIMIT_S = 30


async def _made(path: Path, policy: str, **config: object) -> None:
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("jobs", subjects=["jobs.>"])
        groups = {"priority_policy": policy, "priority_groups": ["g"]}
        await stream.create_consumer(durable_name="c", ack_wait=600, **groups, **config)


async def _consumer(jet: pelton.Jet) -> pelton.Consumer:
    return await (await jet.stream("jobs")).consumer("c")


async def _work(pipe: Connection, path: Path) -> None:
    """Take messages forever, and report each, and whether this process is pinned."""
    async with pelton.open(path) as jet:
        consumer = await _consumer(jet)
        messages = consumer.messages(
            prefetch=1,
            group="g",
            on_pinned=lambda group: pipe.send(f"pinned {group}"),
            on_unpinned=lambda group: pipe.send(f"unpinned {group}"),
        )
        pipe.send("ready")
        async for message in messages:
            await message.ack()
            pipe.send(message.metadata.stream_seq)


async def _pinned(jet: pelton.Jet, child: Child) -> asyncio.Task[list[pelton.Message]]:
    """A child that is pinned, while this process is on standby."""
    assert await child.heard() == "ready"
    await jet.publish("jobs.1")
    assert [await child.heard() for _ in range(2)] == ["pinned g", 1]
    standby = asyncio.ensure_future((await _consumer(jet)).fetch(1, timeout=_LIMIT_S, group="g"))
    await jet.publish("jobs.2")
    assert await child.heard() == 2
    assert not standby.done()
    # Both wait: neither is in a transaction that a signal would keep open.
    while (await (await _consumer(jet)).info()).num_waiting < 2:
        await asyncio.sleep(0)
    return standby


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_standby_takes_over_from_a_process_that_dies_or_stands_still(tmp_path: Path, how: int) -> None:
    path = tmp_path / "a.pelton"
    await _made(path, "pinned_client", priority_timeout=1)
    async with pelton.open(path) as jet:
        with Child(_work, path) as child:
            standby = await _pinned(jet, child)
            assert child.process.pid is not None
            if how == signal.SIGSTOP:
                stand_still(child.process.pid, path)
            else:
                child.kill()
            await jet.publish("jobs.3")
            (message,) = await asyncio.wait_for(standby, _LIMIT_S)
            assert message.metadata.stream_seq == 3
            await message.ack()
            if how == signal.SIGSTOP:
                os.kill(child.process.pid, signal.SIGCONT)
                assert await child.heard() == "unpinned g"
    assert recount(str(path)) == []


async def test_a_pin_taken_away_is_told_while_its_holder_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await _made(path, "pinned_client", priority_timeout=60)
    async with pelton.open(path) as jet:
        with Child(_work, path) as child:
            standby = await _pinned(jet, child)
            standby.cancel()
            await asyncio.wait([standby])
            await (await _consumer(jet)).unpin("g")
            assert await child.heard() == "unpinned g"
            await jet.publish("jobs.3")
            assert [await child.heard() for _ in range(2)] == ["pinned g", 3]


async def _wait(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        consumer = await _consumer(jet)
        waiting = asyncio.ensure_future(consumer.fetch(1, timeout=_LIMIT_S, group="g", priority=5))
        while not (await consumer.info()).num_waiting:
            await asyncio.sleep(0)
        pipe.send("waits")
        pipe.send(len(await waiting))


async def test_pulls_that_wait_are_counted_in_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await _made(path, "prioritized", max_waiting=1)
    async with pelton.open(path) as jet:
        consumer = await _consumer(jet)
        with Child(_wait, path) as child:
            assert await child.heard() == "waits"
            assert (await consumer.info()).num_waiting == 1
            with pytest.raises(PullRefusedError, match="Exceeded MaxWaiting"):
                await consumer.fetch(1, timeout=1, group="g")
            await jet.publish("jobs.1")
            assert await child.heard() == 1
        assert (await consumer.info()).num_waiting == 0
        with Child(_wait, path) as child:
            assert await child.heard() == "waits"
            child.kill()
            # The first that wants to wake it notices that it no longer listens.
            await jet.publish("jobs.2")
            assert len(await consumer.fetch(1, timeout=_LIMIT_S, group="g", priority=9)) == 1
            assert (await consumer.info()).num_waiting == 0
    assert recount(str(path)) == []
