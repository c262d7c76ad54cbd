"""A simulated shop: workers of an exclusive queue whose keys are records, and everything that can fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import msgspec

from pelton.api import Delivered, Outgoing, PeltonError, PullRequest, StoreError
from pelton.jet import ack_of
from pelton.queue import Outcome, Queue
from pelton.queue.job_source import JobSource
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.records import Ended, records_of
from pelton.queue.registry import TakenJob
from pelton.queue.run.leases import LeaseKeeper, SharedLease
from tests.kit.hazards import Hazards, SimulatedClient, World
from tests.kit.judge.history import Contradiction, JobEvent, check_history
from tests.queue.helpers import pretend_cluster

LEASE_S = 3.0
EFFECTS = "effects"
MANY = 10_000
_TICK_S = 0.05
# Without failures a job must end within this: traffic that is late, a lease that runs out, a claim, the longest job.
_STANDSTILL_S = 20
_decode = msgspec.json.Decoder(JobEvent).decode


@dataclass(frozen=True, kw_only=True)
class Troubles:
    """How much fails: shares, or the probability that a worker fails within a second."""

    lost: float = 0.0
    slow: float = 0.0
    drift: float = 0.0
    pauses: float = 0.0
    crashes: float = 0.0
    steps: float = 0.0


class Shop:
    """Jobs of a few keys, and workers that come and go. ``events`` are recorded by the world's clock."""

    def __init__(self, seed: int, troubles: Troubles, *, keys: int, workers: int) -> None:
        self.events: list[JobEvent] = []
        self.paused: set[str] = set()
        self._chance = Random(seed)
        self._troubles = troubles
        self._keys = keys
        self._size = workers
        self._world = World(seed)
        self._crew: list[SimulatedClient] = []
        self._hired = 0

    async def run(self, jobs: int, seconds: float) -> list[Contradiction]:
        """Enqueue jobs while failures last; then end them all, and return what contradicts the guarantees."""
        async with self._world as world:
            pretend_cluster(world.jet)
            await world.jet.create_stream(EFFECTS, allow_direct=True)
            queue = await world.jet.queue("shop", exclusive=True, lease=LEASE_S)
            job = queue.job(_nothing, name="job")
            for _ in range(self._size):
                self._hire(self._hazards())
            for number in range(jobs):
                key = f"k{self._chance.randrange(self._keys)}"
                handle = await job.enqueue(number, key=key)
                self.events.append(JobEvent(kind="enqueued", key=key, job=handle.id, at=self._now()))
                await world.run(seconds / jobs, tick=_TICK_S, watch=self._befall)
            await self._calm(queue, jobs)
            effects = await self._effects()
            outcomes = [outcome async for outcome in queue.history()]
        assert len(outcomes) == jobs
        return check_history([*self.events, *effects], max_attempts=MANY, paused=self.paused)

    async def _calm(self, queue: Queue, jobs: int) -> None:
        for client in self._crew:
            client.resume()
            client.hazards = Hazards()
        self._hire(Hazards())
        left = jobs
        while left:
            before, left = left, await self._end_some(queue, jobs, left)
            assert left < before, f"no job has ended for {_STANDSTILL_S} s: {await queue.counts()}"
        # Messages in flight have arrived, however late they were.
        await self._world.run(5.0, tick=_TICK_S)

    async def _end_some(self, queue: Queue, jobs: int, left: int) -> int:
        """Go on until a further job has ended, or all should be over that may be waited for; return how many are left.

        How long all jobs take is chance: those of one key may be all the long ones.
        """
        for _ in range(_STANDSTILL_S):
            now_left = jobs - len([outcome async for outcome in queue.history()])
            if now_left < left:
                return now_left
            await self._world.run(1.0, tick=_TICK_S)
        return left

    async def _effects(self) -> list[JobEvent]:
        stream = await self._world.jet.stream(EFFECTS)
        found: list[JobEvent] = []
        while messages := await stream.get_messages(seq=len(found) + 1):
            found += [_decode(message.data) for message in messages]
        return found

    def _hazards(self) -> Hazards:
        t = self._troubles
        return Hazards(
            lost_request=t.lost,
            lost_reply=t.lost,
            lost_event=t.lost,
            slow=t.slow,
            longest=LEASE_S,
            patience=0.5,
            drift=t.drift,
        )

    def _hire(self, hazards: Hazards) -> None:
        self._hired += 1
        client = self._world.client(f"w{self._hired}", hazards)
        self._crew.append(client)
        client.spawn(Hand(self, client).work())

    def _befall(self) -> None:
        for client in list(self._crew):
            if self._strikes(self._troubles.crashes):
                client.crash()
                self._crew.remove(client)
                self._hire(self._hazards())
            elif client.clock.is_paused:
                if self._strikes(0.3):
                    client.resume()
            elif self._strikes(self._troubles.pauses):
                client.pause()
                self.paused.add(client.name)
            elif self._strikes(self._troubles.steps):
                client.clock.step_wall(self._chance.uniform(-3600, 3600))

    def _strikes(self, a_second: float) -> bool:
        return self._chance.random() < a_second * _TICK_S

    def _now(self) -> int:
        return round(self._world.clock.monotonic() * 1e9)

    def note(self, kind: str, taken: TakenJob, worker: str) -> JobEvent:
        d = taken.delivered
        event = JobEvent(
            kind=kind,  # type: ignore[arg-type]
            key=d.subject.rpartition(".")[2],
            job=str(d.seq),
            at=self._now(),
            worker=worker,
            token=d.token,
            attempt=d.num_delivered,
        )
        self.events.append(event)
        return event


async def _nothing(number: int) -> None: ...


class Held:
    """A job in a hand; ``told`` once its lease is lost."""

    def __init__(self, delivered: Delivered, told: asyncio.Event) -> None:
        self.lost = False
        self.records = records_of(QueueNames("shop"), "", delivered)
        self._told = told

    def lose(self, reason: str) -> None:
        self.lost = True
        self._told.set()


class Hand:
    """A real worker, except that its lease is kept on its own loop: threads do not follow simulated time."""

    def __init__(self, shop: Shop, client: SimulatedClient) -> None:
        self._shop = shop
        self._client = client
        self._clock = client.clock

    async def work(self) -> None:
        """Take jobs forever."""
        while True:
            with suppress(StoreError):
                queue = await self._client.jet.queue("shop")
                break
            await self._clock.sleep(0.5)
        job_source = queue._context.source_for(self._client.name)
        while True:
            try:
                found = await job_source.take(job_source.channels[0], PullRequest(batch=2, expires_ns=10**9))
            except StoreError:
                await self._clock.sleep(0.5)
                continue
            for taken in found:
                self._client.spawn(self._attempt(queue, job_source, taken))

    async def _attempt(self, queue: Queue, job_source: JobSource, taken: TakenJob) -> None:
        d = taken.delivered
        assert taken.asked is not None
        told = asyncio.Event()
        lease = SharedLease([Held(d, told)], taken.asked, LEASE_S, by_clock=True)
        if not lease.is_over(self._clock.monotonic()):
            self._shop.note("start", taken, self._client.name)
            keeper = self._client.spawn(self._keep(job_source, lease))
            try:
                await self._run(queue, job_source, taken, lease, told)
            finally:
                keeper.cancel()
        job_source.forget([d])

    async def _run(
        self, queue: Queue, job_source: JobSource, taken: TakenJob, lease: SharedLease[Held], told: asyncio.Event
    ) -> None:
        d = taken.delivered
        work = self._client.spawn(self._clock.sleep(self._client.runtime.random.choice((0.0, 0.3, 2.0, 5.0))))
        lost = self._client.spawn(told.wait())
        await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
        await self._clock.gate()
        work.cancel()
        lost.cancel()
        if lease.is_over(self._clock.monotonic()):
            self._shop.note("lost", taken, self._client.name)
            return
        effect = msgspec.structs.replace(self._shop.note("end", taken, self._client.name), kind="finished")
        outcome = Outcome(
            id=str(d.seq),
            job="job",
            state="completed",
            attempt=1,
            worker="",
            enqueued_at=0,
            started_at=0,
            finished_at=0,
        )
        record = Outgoing(queue.names.ending_subject("completed", outcome.id), msgspec.json.encode(outcome))
        emitted = [Outgoing(EFFECTS, msgspec.json.encode(effect))]
        ended = Ended(d, ack_of(d, "ack"), (*emitted, record))
        while not lease.is_over(self._clock.monotonic()):
            try:
                await job_source.settle(ended)
            except StoreError:
                await self._clock.sleep(0.1)
            except PeltonError:
                return
            else:
                return

    async def _keep(self, job_source: JobSource, lease: SharedLease[Held]) -> None:
        """Extend a lease as its keeper does, with a keeper of its own."""
        keeper = LeaseKeeper(job_source.extender, self._clock, LEASE_S)
        keeper.hold(lease)
        while not lease.lost:
            await self._clock.sleep(await keeper.round())
