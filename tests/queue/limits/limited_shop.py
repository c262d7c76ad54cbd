"""A simulated shop with limits: workers over a network that fails, who crash and are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

import msgspec

from pelton.api import PeltonError, PullRequest, StoreError
from pelton.queue import Queue
from pelton.queue.job_source import JobSource
from pelton.queue.model.limits import JobLimit, Order, Orders
from pelton.queue.model.records import AttemptRecords, Ended, PutOff, records_of
from pelton.queue.run.admission import Admission
from pelton.queue.run.leases import LeaseKeeper, SharedLease, SlotExtender
from pelton.queue.run.parking import Parking
from tests.kit.hazards import Hazards, SimulatedClient, World

LEASE_S = 3.0
_TICK_S = 0.05


class Span(NamedTuple):
    """An attempt that ran, by the world's clock in seconds."""

    job: str
    key: str
    began: float
    ended: float


class Rules(NamedTuple):
    """What is limited, and how much fails."""

    limits: Sequence[JobLimit]
    hazards: Hazards
    crashes: float = 0.0
    pauses: float = 0.0


class HandJob:
    """A job in a hand."""

    def __init__(self, records: AttemptRecords) -> None:
        self.records = records
        self.lost = False
        self.told = asyncio.Event()
        self.go = asyncio.Event()
        records.read()

    def lose(self, reason: str) -> None:
        self.lost = True
        self.told.set()
        self.go.set()


class LimitedShop:
    """Jobs of two kinds and some keys, and workers that come and go."""

    def __init__(self, seed: int, rules: Rules, workers: int) -> None:
        self.spans: list[Span] = []
        self.rules = rules
        self.chance = Random(seed)
        self.world = World(seed)
        self._size = workers
        self._crew: list[tuple[SimulatedClient, LimitedHand]] = []
        self._hired = 0

    async def run(self, jobs: int, seconds: float) -> None:
        """Enqueue jobs while failures last; then let all of them end."""
        async with self.world as world:
            queue = await world.jet.queue("shop", lease=LEASE_S)
            for _ in range(self._size):
                self._hire()
            for _ in range(jobs):
                name, key = self.chance.choice(("cut", "sew")), self.chance.choice(("", "k1", "k2"))
                await queue.options(key=key).enqueue(name)
                await world.run(seconds / jobs, tick=_TICK_S, watch=self._befall)
            for client, _ in self._crew:
                client.resume()
                client.hazards = Hazards()
            ended = 0
            for _ in range(400):
                await world.run(1.0, tick=_TICK_S)
                history = await (await world.jet.stream(queue.names.history)).info()
                if (ended := history.state.messages) == jobs:
                    break
            for _, hand in self._crew:
                hand.end_spans()
        assert ended == jobs, f"{jobs - ended} jobs never ended"

    def now(self) -> float:
        return self.world.clock.monotonic()

    def _hire(self) -> None:
        self._hired += 1
        client = self.world.client(f"w{self._hired}", self.rules.hazards)
        hand = LimitedHand(self, client)
        self._crew.append((client, hand))
        client.spawn(hand.work())

    def _befall(self) -> None:
        for client, hand in list(self._crew):
            if self._strikes(self.rules.crashes):
                # What it ran does not run any more.
                hand.end_spans()
                client.crash()
                self._crew.remove((client, hand))
                self._hire()
            elif client.clock.is_paused:
                if self._strikes(0.3):
                    client.resume()
            elif self._strikes(self.rules.pauses):
                # A stopped process does nothing, and when it goes on nobody can keep it from doing what it likes.
                hand.end_spans()
                hand.counts = False
                client.pause()

    def _strikes(self, a_second: float) -> bool:
        return self.chance.random() < a_second * _TICK_S


class LimitedHand:
    """A worker with the queue's own admission, except that its leases are kept on its loop."""

    def __init__(self, shop: LimitedShop, client: SimulatedClient) -> None:
        self._shop = shop
        self._client = client
        self._clock = client.clock
        self._running: dict[HandJob, float] = {}
        self.counts = True

    def end_spans(self) -> None:
        """Note what runs until now."""
        for job in list(self._running):
            self._ends(job)

    def _ends(self, job: HandJob) -> None:
        began = self._running.pop(job, None)
        if began is not None and self.counts:
            envelope = job.records.envelope
            self._shop.spans.append(Span(envelope.job, envelope.key, began, self._shop.now()))

    async def work(self) -> None:
        """Take jobs for ever."""
        while True:
            with suppress(StoreError):
                queue = await self._client.jet.queue("shop")
                break
            await self._clock.sleep(0.5)
        context, name = queue._context, self._client.name
        source = queue._context.source_for(name)
        self.admission = Admission(context, name)
        self.extender = SlotExtender(
            source.extender, context.backend, self.admission.register, self.admission.slots, name, self._clock
        )
        self.parking: Parking[HandJob] = Parking(context, self.admission, Orders(), 2)
        for limit in self._shop.rules.limits:
            self.admission.heed(Order(limit=limit))
        self._client.spawn(self.parking.follow(lambda jobs: [job.go.set() for job in jobs] and None))
        while True:
            room = self.parking.room()
            if room == 0:
                await self._clock.sleep(0.1)
                continue
            request = PullRequest(batch=2, expires_ns=10**9)
            asked = self._clock.boottime()
            try:
                found = await source.take(source.channels[0], request)
            except StoreError:
                await self._clock.sleep(0.5)
                continue
            for taken in found:
                job = HandJob(records_of(queue.names, name, taken.delivered))
                self._client.spawn(self._attempt(queue, source, job, asked))

    async def _attempt(self, queue: Queue, source: JobSource, job: HandJob, asked: float) -> None:
        lease = SharedLease([job], asked, LEASE_S, by_clock=True)
        keeper = self._client.spawn(self._keep(lease))
        try:
            ended = await self._admitted(job, lease)
            while ended is not None and not lease.is_over(self._clock.boottime()):
                try:
                    await source.settle(ended)
                except StoreError:
                    await self._clock.sleep(0.1)
                    continue
                except PeltonError:
                    break
                break
        finally:
            keeper.cancel()
            self.parking.remove(job)
            self.admission.leave([job])

    async def _admitted(self, job: HandJob, lease: SharedLease[HandJob]) -> Ended | None:
        while not lease.is_over(self._clock.boottime()):
            held_back = await self.admission.enter(job)
            if held_back is None:
                return await self._run(job, lease)
            job.go.clear()
            put_off = self.parking.hold_back(job, held_back)
            if put_off is not None:
                return self._put_off(job, put_off)
            await job.go.wait()
        return None

    def _put_off(self, job: HandJob, put_off: PutOff) -> Ended:
        return job.records.after(put_off, self._clock.now())

    async def _run(self, job: HandJob, lease: SharedLease[HandJob]) -> Ended | None:
        if lease.is_over(self._clock.boottime()):
            return None
        self._running[job] = self._shop.now()
        work = self._client.spawn(self._clock.sleep(self._client.runtime.random.choice((0.0, 0.2, 1.0, 4.0))))
        told = self._client.spawn(job.told.wait())
        await asyncio.wait((work, told), return_when=asyncio.FIRST_COMPLETED)
        await self._clock.gate()
        work.cancel()
        told.cancel()
        self._ends(job)
        if lease.is_over(self._clock.boottime()):
            return None
        return job.records.after_result(msgspec.Raw(b"null"), (), self._clock.now())

    async def _keep(self, lease: SharedLease[HandJob]) -> None:
        """Extend a lease as its keeper does, with a keeper of its own."""
        keeper = LeaseKeeper(self.extender, self._clock, LEASE_S)
        keeper.hold(lease)
        while not lease.lost:
            await self._clock.sleep(await keeper.round())
