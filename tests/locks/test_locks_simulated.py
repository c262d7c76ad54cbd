"""Locks in a simulated world: never two holders, never an endless wait, whatever happens to clients and clocks.

Clients of a real store, under a manual clock, take a lock or a slot of a semaphore, write to a register that is guarded
by its token, and release it. At the same time requests, replies and events are lost and late, clients are paused and
crash, and clocks are stepped. `make safety` runs a thousand of these; a failed seed is replayed by its number.
"""

from __future__ import annotations

import math
from typing import Literal

import pytest

from pelton.api import PeltonError
from pelton.locks import Lock, LockKeeper, LockLease, LockManager, Semaphore, lock_spec
from pelton.runtime import Random
from tests.kit.fencing import FencedRegister
from tests.kit.hazards import Hazards, SimulatedClient, World

_PARTS = 8
_SHARE = 5
_CALM = Hazards()
_CUT_OFF = Hazards(lost_request=1.0)
Stepped = Literal["machine", "clients", "store"]


class User:
    """A client that uses a lock repeatedly."""

    def __init__(self, troubled: Troubled, client: SimulatedClient) -> None:
        self.client = client
        self.held: LockLease | None = None
        self.times = 0
        self._troubled = troubled
        manager, setting = LockManager(client.jet, LockKeeper), troubled.spec
        self._lock = Lock(manager, setting) if setting.kind == "lock" else Semaphore(manager, setting)
        client.spawn(self._use())

    @property
    def believes(self) -> bool:
        """Whether this client would act as a holder now."""
        is_acting = self.client.is_alive and not self.client.clock.is_paused
        return is_acting and self.held is not None and self.held.is_held

    async def _use(self) -> None:
        chance, clock = self.client.runtime.random, self.client.clock
        while True:
            try:
                if chance.random() < 0.2:
                    self.held = await self._lock.try_acquire()
                else:
                    self.held = await self._lock.acquire(timeout=None if chance.random() < 0.5 else 3.0)
                if self.held is not None:
                    await self._hold(self.held)
            except PeltonError:
                pass
            self.held = None
            await clock.sleep(chance.uniform(0.0, 1.0))

    async def _hold(self, held: LockLease) -> None:
        chance, clock = self.client.runtime.random, self.client.clock
        self.times += 1
        for _ in range(chance.choice((1, 2, 3, 12)) if self._troubled.is_rough else 1):
            # A client may be paused between the check and the write: that is what the token is for.
            is_held = held.is_held
            await clock.gate()
            if is_held:
                self._troubled.register.write(self.client.name, held.token)
            await clock.sleep(chance.uniform(0.05, 0.6))
        await held.release()


class Troubled:
    """One simulated run."""

    def __init__(self, seed: int) -> None:
        chance = Random(seed)
        self.chance = chance
        self.world = World(seed)
        slots = chance.choice((1, 1, 1, 2))
        self.spec = lock_spec("lock" if slots == 1 else "semaphore", "x", slots, chance.choice((1, 2, 5)))
        self.hazards = Hazards(
            lost_request=chance.choice((0.0, 0.05)),
            lost_reply=chance.choice((0.0, 0.05)),
            lost_event=chance.choice((0.0, 0.05)),
            slow=chance.choice((0.0, 0.05, 0.2)),
            longest=chance.choice((0.5, 3.0)),
            drift=chance.choice((0.0, 0.05)),
        )
        # Clients share one machine with the store and its clock, or each has its own; or the store's clock is
        # stepped: then only tokens order the holders.
        self.stepped: Stepped = chance.choice(("machine", "machine", "clients", "clients", "store"))
        self.is_rough = True
        self.register = FencedRegister()
        self.users: list[User] = []

    async def play(self) -> None:
        async with self.world:
            for _ in range(self.chance.choice((2, 3, 4))):
                self._join()
            for _ in range(40):
                self._befall()
                await self.world.run(1.0, watch=self._look)
            await self._calm()
        self._check()

    def _join(self) -> None:
        client = self.world.client(f"client{len(self.world.clients)}", self.hazards)
        self.users.append(User(self, client))

    def _befall(self) -> None:
        user, draw = self.chance.choice(self.users), self.chance.random()
        if draw < 0.2:
            user.client.pause()
        elif draw < 0.4:
            user.client.resume()
        elif draw < 0.5:
            user.client.crash()
            self.users.remove(user)
            self._join()
        elif draw < 0.65:
            user.client.hazards = _CUT_OFF if user.client.hazards is self.hazards else self.hazards
        elif draw < 0.8:
            self._step(user, self.chance.uniform(-600, 600))

    def _step(self, user: User, seconds: float) -> None:
        if self.stepped == "clients":
            user.client.clock.step_wall(seconds)
            return
        clock = self.world.clock
        clock.set_wall(clock.now() + round(seconds * 1e9))
        if self.stepped == "store":
            for one in self.users:
                one.client.clock.step_wall(-seconds)

    def _look(self) -> None:
        holders = [user.client.name for user in self.users if user.believes]
        assert self.stepped == "store" or len(holders) <= self.spec.slots, f"{holders} hold it at once"

    async def _calm(self) -> None:
        """Stop all failures: every client gets its turn."""
        self.is_rough = False
        for user in self.users:
            user.client.hazards = _CALM
            user.client.resume()
            user.times = 0
        # Heartbeats detect lost messages within 10 s, any other wait ends with a lease.
        for _ in range(math.ceil(40 + 4 * self.spec.ttl)):
            if all(user.times for user in self.users):
                return
            await self.world.run(1.0, watch=self._look)
        raise AssertionError(f"no end for {[user.client.name for user in self.users if not user.times]}")

    def _check(self) -> None:
        if self.spec.slots == 1:
            self.register.check()
        assert all(len(owners) == 1 for owners in self.register.owners().values())


@pytest.mark.at_length
@pytest.mark.parametrize("part", range(_PARTS))
async def test_never_two_holders_and_never_a_wait_without_an_end(part: int, pytestconfig: pytest.Config) -> None:
    asked = pytestconfig.getoption("simulated")
    # A run uses a whole store: by default few run, of a thousand all.
    number = asked if asked >= 1000 else asked // _SHARE
    for seed in range(part, number, _PARTS):
        try:
            await Troubled(seed).play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


async def test_the_world_is_rough_enough_for_leases_to_be_lost() -> None:
    """Otherwise the assertions here would hold for anything."""
    refused = 0
    for seed in range(6):
        troubled = Troubled(seed)
        troubled.stepped = "store"
        await troubled.play()
        refused += sum(not write.is_taken for write in troubled.register.writes)
    assert refused > 0
