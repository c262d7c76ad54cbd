"""Locks and semaphores between two openers of a store: a file, and a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import pytest

import pelton
from pelton import ConfigError, Jet, Lock, LockLostError, LockNotHeldError, LockReentryError, LockTimeoutError
from tests.kit.nats_server import NatsServer, nats_server

SOON = 60.0
Pair = tuple[Jet, Jet]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(params=["file", "server"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    address = tmp_path / "a.pelton" if request.param == "file" else request.getfixturevalue("server").url
    async with pelton.open(address) as one, pelton.open(address) as other:
        yield one, other
        for name in await one.bucket_names():
            await one.delete_bucket(name)


async def in_line(jet: Jet, filter: str, number: int) -> None:
    """Return when that many wait for a lock."""
    bucket = await jet.bucket("pelton_locks")
    async with asyncio.timeout(SOON):
        while len([key async for key in bucket.keys(filter)]) != number:
            await asyncio.sleep(0.01)


async def robbed(lock: Lock, rest: Awaitable[None]) -> None:
    """Hold a lock whose key is overwritten, and act then."""
    async with lock:
        await (await lock._manager.table._jet.bucket("pelton_locks")).put(f"lock.{lock.name}", b"somebody else's")
        await rest


async def fail() -> None:
    raise ZeroDivisionError


def robbed_without_await(jet: pelton.sync.Jet) -> None:
    with jet.lock("car1", ttl=1) as held:
        jet.bucket("pelton_locks").put("lock.car1", b"somebody else's")
        assert held.until_lost()


async def test_one_holds_it_and_the_next_has_it_when_it_is_released(pair: Pair) -> None:
    one, other = pair
    async with one.lock("car1") as held:
        assert held.is_held
        assert not held.lost
        assert await other.lock("car1").try_acquire() is None
        waiting = asyncio.create_task(other.lock("car1").acquire(timeout=SOON))
        await in_line(one, "line.lock.car1.*", 1)
        assert not waiting.done()
    nxt = await waiting
    assert nxt.token > held.token
    assert not held.is_held
    assert len(await one.lock("car1").holders()) == 1
    await nxt.release()
    assert await one.lock("car1").holders() == []


async def test_first_come_first_served(pair: Pair) -> None:
    order: list[int] = []
    tokens: list[int] = []

    async def use(jet: Jet, number: int) -> None:
        async with jet.lock("many") as held:
            order.append(number)
            tokens.append(held.token)

    async with pair[0].lock("many"):
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(use(pair[number % 2], number)))
            await in_line(pair[0], "line.lock.many.*", number + 1)
    await asyncio.gather(*tasks)
    assert tokens == sorted(tokens)
    # In order, as long as no process is suspended for half a second.
    assert sorted(order) == [0, 1, 2, 3, 4]
    await in_line(pair[0], "line.lock.many.*", 0)


async def test_who_cannot_have_it_in_time_leaves_the_line(pair: Pair) -> None:
    one, other = pair
    async with one.lock("car1"):
        with pytest.raises(LockTimeoutError, match=r"lock 'car1' could not be acquired within 0\.1 s"):
            await other.lock("car1").acquire(timeout=0.1)
        waiting = asyncio.create_task(other.lock("car1").acquire())
        await in_line(one, "line.lock.car1.*", 1)
        waiting.cancel()
        await in_line(one, "line.lock.car1.*", 0)
    assert await other.lock("car1").try_acquire() is not None


async def test_the_lease_of_who_died_ends_and_its_tokens_are_old(pair: Pair) -> None:
    one, other = pair
    held = await one.lock("car1", ttl=1).acquire()
    one._lock_manager.keeper.drop(held._lease)
    nxt = await other.lock("car1", ttl=1).acquire(timeout=SOON)
    assert held.lost
    assert nxt.token > held.token
    with pytest.raises(LockLostError, match="renewed in time"):
        held.check()
    with pytest.raises(LockLostError):
        await held.release()
    with pytest.raises(LockNotHeldError):
        await held.release()
    assert not nxt.lost
    await nxt.release()


async def test_it_is_renewed_while_its_holder_blocks_the_event_loop(pair: Pair) -> None:
    one, other = pair
    async with one.lock("car1", ttl=3) as held:
        time.sleep(3.2)
        assert await other.lock("car1").try_acquire() is None
        held.check()


async def test_a_block_whose_lease_is_lost_is_cancelled(pair: Pair) -> None:
    one, _ = pair
    with pytest.raises(LockLostError, match="another has it"):
        await robbed(one.lock("car1", ttl=1), asyncio.sleep(SOON))
    # The task continues normally: it is not cancelled itself.
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_block_that_has_ended_when_its_lease_is_lost_says_so_too(pair: Pair) -> None:
    with pytest.raises(LockLostError):
        await robbed(pair[0].lock("car1", ttl=1), asyncio.sleep(0))
    with pytest.raises(ZeroDivisionError):
        await robbed(pair[0].lock("car2", ttl=1), fail())


async def test_until_lost(pair: Pair) -> None:
    held = await pair[0].lock("car1", ttl=1).acquire()
    waiting = asyncio.create_task(held.until_lost())
    await asyncio.sleep(0)
    await held.release()
    assert not await waiting
    held = await pair[0].lock("car1", ttl=1).acquire()
    await (await pair[0].bucket("pelton_locks")).put("lock.car1", b"somebody else's")
    async with asyncio.timeout(SOON):
        assert await held.until_lost()


async def test_it_is_not_reentrant_and_says_so(pair: Pair) -> None:
    one, _ = pair
    async with one.lock("car1") as held:
        for again in (one.lock("car1").acquire(), one.lock("car1").try_acquire()):
            with pytest.raises(LockReentryError, match=f"token {held.token}"):
                await again
        # Another task of the same process waits like any other.
        with pytest.raises(LockTimeoutError):
            await asyncio.create_task(one.lock("car1").acquire(timeout=0.05))
    assert (await one.lock("car1").try_acquire()) is not None


async def test_release_through_the_lock(pair: Pair) -> None:
    lock = pair[0].lock("car1")
    with pytest.raises(LockNotHeldError):
        await lock.release()
    held = await lock.acquire()
    await lock.release()
    assert not held.is_held
    with pytest.raises(LockNotHeldError):
        held.check()
    with pytest.raises(LockNotHeldError):
        await lock.release()
    # A lock that another task acquired is released as well if there is no doubt which.
    await asyncio.create_task(lock.acquire())
    await lock.release()
    async with lock as held:
        await held.release()


async def test_a_semaphore_has_as_many_slots_as_it_says(pair: Pair) -> None:
    one, other = pair
    semaphore = one.semaphore("gpu", slots=2)
    first, second = await semaphore.acquire(), await other.semaphore("gpu", slots=2).acquire()
    assert first.token < second.token
    assert await semaphore.try_acquire() is None
    assert len(await semaphore.holders()) == 2
    waiting = asyncio.create_task(semaphore.acquire(timeout=SOON))
    await in_line(one, "line.semaphore.gpu.*", 1)
    await first.release()
    third = await waiting
    assert third.token > second.token
    with pytest.raises(ConfigError, match="a caller that uses 2 slots"):
        await one.semaphore("gpu", slots=3).acquire()
    async with one.lock("gpu"):
        pass
    await second.release()
    await third.release()


async def test_tokens_grow_even_when_the_bucket_is_made_anew(pair: Pair) -> None:
    one, other = pair
    held = await one.lock("car1").acquire()
    await one.delete_bucket("pelton_locks")
    assert (await other.lock("car1").acquire()).token > held.token
    assert (await one.lock("car2").acquire()).token > held.token


async def test_what_is_released_leaves_a_trace_that_ends(pair: Pair) -> None:
    async with pair[0].lock("car1"):
        pass
    stored = await (await pair[0].stream("KV_pelton_locks")).get_last_message("$KV.pelton_locks.lock.car1")
    assert stored.headers["KV-Operation"] == "DEL"
    assert stored.headers["Nats-TTL"] == "1m0s"


async def test_closing_the_store_loses_what_is_held(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        held = await jet.lock("car1").acquire()
    assert held.lost


async def test_settings(pair: Pair) -> None:
    one, _ = pair
    for name in ("", "a b", ".a", "a..b", "a*", 7):
        with pytest.raises(ConfigError, match="cannot name a lock"):
            one.lock(name)
    for ttl in (0, 0.5, 1.5, -1, "1"):
        with pytest.raises(ConfigError, match="ttl"):
            one.lock("a", ttl=ttl)
    for slots in (0, 1001, 1.5, True):
        with pytest.raises(ConfigError, match="slots"):
            one.semaphore("a", slots=slots)
    await one.create_bucket("pelton_locks")
    with pytest.raises(ConfigError, match="limit_marker_ttl"):
        await one.lock("a").acquire()


def test_without_await(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "a.pelton") as jet:
        lock = jet.lock("car1", ttl=3)
        with lock as held:
            time.sleep(3.2)  # renewed meanwhile
            assert held.is_held
            with pytest.raises(LockReentryError):
                jet.lock("car1").acquire()
        assert not held.is_held
        with pytest.raises(LockLostError):
            robbed_without_await(jet)
