"""Leases are renewed apart from their holders' code, and a holder learns of a loss before another one can start."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path

import pytest

import pelton
from pelton import LockLostError
from pelton.locks import Lock, LockKeeper, LockLease, LockManager, lock_spec
from pelton.locks.keeper import ThreadKeeper
from tests.kit.hazards import Hazards, SimulatedClient, World

TTL = 10
SOON = 60.0


async def acquired(world: World, client: SimulatedClient, ttl: int = TTL) -> LockLease:
    lock = Lock(LockManager(client.jet, LockKeeper), lock_spec("lock", "a", 1, ttl))
    task = client.spawn(lock.acquire())
    await world.run(0.5)
    held = await task
    # The lock keeps what was acquired through it alive.
    client.kept = lock  # type: ignore[attr-defined]
    return held


async def test_a_lease_is_renewed_as_long_as_it_is_held() -> None:
    async with World() as world:
        held = await acquired(world, world.client("a"))
        await world.run(100.0)
        assert held.is_held
        stream = await world.jet.stream("KV_pelton_locks")
        assert 25 <= (await stream.info()).state.last_seq - held.token <= 35


async def test_a_renewal_of_which_no_answer_comes_is_found_again() -> None:
    async with World() as world:
        client = world.client("a")
        held = await acquired(world, client)
        client.hazards = Hazards(lost_reply=1.0)
        await world.run(5.0)
        client.hazards = Hazards()
        await world.run(30.0)
        assert held.is_held


async def test_who_is_cut_off_is_told_before_others_can_have_it() -> None:
    async with World() as world:
        client, other = world.client("a"), world.client("b")
        held = await acquired(world, client)
        since = held._lease.clock.confirmed
        client.hazards = Hazards(lost_request=1.0)
        told: list[float] = []

        async def wait() -> None:
            assert await held.until_lost()
            told.append(world.clock.monotonic())

        client.spawn(wait())
        waiting = other.spawn(Lock(LockManager(other.jet, LockKeeper), lock_spec("lock", "a", 1, TTL)).acquire())
        await world.run(0.8 * TTL - 1.0)
        assert held.is_held
        await world.run(0.5)
        assert not told
        await world.run(1.0)
        assert told == [pytest.approx(since + 0.8 * TTL, abs=0.15)]
        assert not waiting.done()
        await world.run(3.0)
        assert waiting.done()


async def test_a_lock_that_nobody_can_release_is_renewed_no_more() -> None:
    async with World() as world:
        client = world.client("a")
        held = await acquired(world, client)
        del held, client.kept  # type: ignore[attr-defined]
        gc.collect()
        await world.run(TTL + 1.0)
        await acquired(world, world.client("b"))


async def test_a_bucket_that_is_removed_while_one_waits_is_made_anew(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as one, pelton.open(tmp_path / "a.pelton") as other:
        held = await one.lock("a", ttl=3).acquire()
        waiting = asyncio.create_task(other.lock("a", ttl=3).acquire(timeout=SOON))
        bucket = await one.bucket("pelton_locks")
        async with asyncio.timeout(SOON):
            while not [key async for key in bucket.keys("line.>")]:
                await asyncio.sleep(0.01)
        await one.delete_bucket("pelton_locks")
        assert (await waiting).token > held.token


def removed(path: Path) -> None:
    for each in path.parent.glob(path.name + "*"):
        if each.is_file():
            each.unlink()


async def test_a_lock_is_lost_when_its_store_is_gone_not_at_its_next_renewal(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        held = await jet.lock("a", ttl=3600).acquire()
        removed(tmp_path / "a.pelton")
        async with asyncio.timeout(SOON):
            assert await held.until_lost()
        with pytest.raises(LockLostError, match="its store cannot be used any more"):
            held.check()


async def test_a_holder_that_blocks_its_event_loop_can_see_that_its_store_is_gone(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        held = await jet.lock("a", ttl=3600).acquire()
        keeper = jet._lock_manager.keeper
        async with jet.lock("b", ttl=3), asyncio.timeout(SOON):
            # It has a connection of its own once it has renewed a lease.
            while keeper._connection._open is None:
                await asyncio.sleep(0.01)
        removed(tmp_path / "a.pelton")
        end = time.monotonic() + SOON
        while not held.lost and time.monotonic() < end:
            time.sleep(0.01)
        assert held.lost


async def test_a_renewal_that_meets_the_release_of_its_own_lock_loses_nothing(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        held = await jet.lock("a", ttl=3600).acquire()
        keeper = jet._lock_manager.keeper
        assert isinstance(keeper, ThreadKeeper)
        [kept] = keeper._kept.values()
        release, remove = asyncio.Event(), jet._lock_manager.table.remove

        async def removed_and_met(key: str, revision: int = 0) -> None:
            await remove(key, revision)
            # The renewal was sent before, and finds the marker that the release has written.
            await keeper._thread.run(keeper._renew(kept, 5.0))
            release.set()

        jet._lock_manager.table.remove = removed_and_met  # type: ignore[method-assign]  # between its two writes
        await held.release()
        assert release.is_set()
        assert not held.lost


async def test_a_lock_outlives_a_connection_of_its_keeper_that_broke(tmp_path: Path) -> None:
    """Another key: the program's own connection has it, the keeper's is made again."""
    async with pelton.open(tmp_path / "a.pelton", key="one") as jet:
        held = await jet.lock("a", ttl=3).acquire()
        stream = await jet.stream("KV_pelton_locks")

        async def renewed() -> None:
            before = (await stream.info()).state.last_seq
            async with asyncio.timeout(SOON):
                while (await stream.info()).state.last_seq == before:
                    await asyncio.sleep(0.01)

        await renewed()
        await jet.rekey("two")
        await renewed()
        assert held.is_held


async def test_the_thread_ends_with_the_store(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        async with jet.lock("a"):
            assert any(thread.name == "pelton-keeper" for thread in threading.enumerate())
        keeper = jet._lock_manager.keeper
    assert not keeper._thread.is_alive
