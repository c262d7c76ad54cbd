"""Processes that wait in the queue of a lock are killed and paused: the others do not wait for them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import pelton
from pelton import Jet, Lock, LockLease
from pelton.locks import LockKeeper, LockManager, lock_spec
from pelton.locks.acquisition import GLANCE_S, PATIENCE_S
from tests.kit.hazards import World
from tests.stopping import stand_still

SOON = 60.0
LINE = "line.lock.car1.*"


class Waiters:
    """Processes that wait for the lock ``car1``."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.all: list[subprocess.Popen[str]] = []

    async def join(self, jet: Jet, how: str = "block") -> subprocess.Popen[str]:
        """Start another one, and return when it waits."""
        command = [sys.executable, "-m", "tests.locks.waiter", self._address, "car1", how]
        waiter = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.all.append(waiter)
        await in_line(jet, sum(one.poll() is None for one in self.all))
        return waiter

    def end(self) -> None:
        for waiter in self.all:
            waiter.kill()
            waiter.send_signal(signal.SIGCONT)
            waiter.communicate()


@pytest.fixture
def waiters(address: str) -> Iterator[Waiters]:
    waiters = Waiters(address)
    yield waiters
    waiters.end()


async def in_line(jet: Jet, number: int) -> None:
    """Return when that many wait for the lock."""
    bucket = await jet.bucket("pelton_locks")
    async with asyncio.timeout(SOON):
        while len([key async for key in bucket.keys(LINE)]) != number:
            await asyncio.sleep(0.01)


def kill(waiter: subprocess.Popen[str]) -> None:
    waiter.kill()
    waiter.wait()


async def test_a_free_lock_that_only_dead_ones_wait_for_is_had_at_once(address: str, waiters: Waiters) -> None:
    async with pelton.open(address) as jet:
        held = await jet.lock("car1").acquire()
        for _ in range(3):
            await waiters.join(jet)
        for waiter in waiters.all:
            kill(waiter)
        await held.release()
        held = await jet.lock("car1").try_acquire()
        assert held is not None
        # They cost one wait only: nothing is left of them.
        await in_line(jet, 0)
        await held.release()


async def test_a_time_limit_is_not_used_up_by_the_dead(address: str, waiters: Waiters) -> None:
    async with pelton.open(address) as jet:
        held = await jet.lock("car1").acquire()
        kill(await waiters.join(jet))
        await held.release()
        held = await jet.lock("car1").acquire(timeout=0.001)
        await held.release()


async def test_the_next_of_the_living_has_it(address: str, waiters: Waiters) -> None:
    async with pelton.open(address) as jet:
        held = await jet.lock("car1").acquire()
        dead, living = await waiters.join(jet), await waiters.join(jet)
        kill(dead)
        # A live waiter keeps its turn, even if the lock is free.
        assert await asyncio.create_task(jet.lock("car1").try_acquire()) is None
        await held.release()
        token, _ = await asyncio.to_thread(living.communicate, timeout=SOON)
        assert int(token) > held.token
        await in_line(jet, 0)


async def test_one_that_stands_still_is_passed_by_once_and_keeps_its_place(address: str, waiters: Waiters) -> None:
    async with pelton.open(address) as jet:
        held = await jet.lock("car1").acquire()
        stopped = await waiters.join(jet)
        stand_still(stopped.pid, address)
        await held.release()
        held = await jet.lock("car1").acquire(timeout=SOON)
        await in_line(jet, 0)
        await held.release()
        held = await jet.lock("car1").acquire(timeout=0.001)
        stopped.send_signal(signal.SIGCONT)
        # It notices that it was skipped, and queues again.
        await in_line(jet, 1)
        await held.release()
        token, _ = await asyncio.to_thread(stopped.communicate, timeout=SOON)
        assert int(token) > held.token


@pytest.mark.parametrize("how", ["block", "task", "blocking"])
async def test_ctrl_c_ends_it_without_a_word_of_what_runs_behind(address: str, waiters: Waiters, how: str) -> None:
    async with pelton.open(address) as jet, jet.lock("car1"):
        waiter = await waiters.join(jet, how)
        waiter.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(waiter.communicate, timeout=SOON)
        assert errors.startswith("Traceback")
        assert errors.endswith("\nKeyboardInterrupt\n")
        assert "Task" not in errors
        if how != "task":
            # Its ticket is gone before the process is.
            await in_line(jet, 0)


# --- under a manual clock: how long it takes


class Village:
    """Clients that wait for one lock in a simulated world, in the order of their names."""

    def __init__(self, world: World, names: str) -> None:
        self._world = world
        self.clients = {name: world.client(name) for name in names}
        self.tasks: dict[str, asyncio.Task[LockLease]] = {}

    def lock(self, name: str) -> Lock:
        return Lock(LockManager(self.clients[name].jet, LockKeeper), lock_spec("lock", "a", 1, 30))

    async def acquire(self) -> None:
        for name in self.clients:
            self.tasks[name] = self.clients[name].spawn(self.lock(name).acquire())
            await self._world.run(0.5)

    def holders(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.done() and not task.cancelled()]


async def test_the_dead_cost_the_next_one_no_more_than_a_glance() -> None:
    async with World() as world:
        election_simulation = Village(world, "abcdef")
        await election_simulation.acquire()
        for name in "bcd":
            election_simulation.clients[name].crash()
        assert election_simulation.holders() == ["a"]
        await election_simulation.tasks["a"].result().release()
        await world.run(2 * GLANCE_S, tick=GLANCE_S)
        assert election_simulation.holders() == ["a", "e"]
        await election_simulation.tasks["e"].result().release()
        await world.run(2 * GLANCE_S, tick=GLANCE_S)
        assert election_simulation.holders() == ["a", "e", "f"]


async def test_who_was_passed_by_keeps_its_place_among_those_who_come_later() -> None:
    async with World() as world:
        election_simulation = Village(world, "abc")
        await election_simulation.acquire()
        election_simulation.clients["b"].pause()
        await election_simulation.tasks["a"].result().release()
        await world.run(2 * PATIENCE_S)
        assert election_simulation.holders() == ["a", "c"]
        election_simulation.clients["b"].resume()
        await world.run(1.0)
        late = election_simulation.clients["a"].spawn(election_simulation.lock("a").acquire())
        await world.run(1.0)
        await election_simulation.tasks["c"].result().release()
        await world.run(0.1)
        assert election_simulation.holders() == ["a", "b", "c"]
        await election_simulation.tasks["b"].result().release()
        await world.run(0.1)
        assert late.done()
