"""Workers of an exclusive queue are killed and paused at random points; the resulting history is checked."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pelton
from pelton import Jet
from pelton.queue import Job, JobHandle
from tests.crash.queue.worker import EFFECTS, LEASE_S, MAX_ATTEMPTS, QUEUE, Log, register
from tests.kit.judge.history import JobEvent, check_history
from tests.stopping import stand_still

ROOT = Path(__file__).parents[3]
KEYS = 12
decode = msgspec.json.Decoder(JobEvent).decode


class Workers:
    """A group of worker processes; a killed one is replaced."""

    def __init__(self, store: str, log: str, number: int) -> None:
        self._store = store
        self._arguments = [sys.executable, "-m", "tests.crash.queue.worker", store, log]
        self._crew: list[subprocess.Popen[bytes]] = []
        self.paused: set[int] = set()
        self.ever_paused: set[int] = set()
        for _ in range(number):
            self.hire()

    def hire(self) -> None:
        self._crew.append(subprocess.Popen(self._arguments, cwd=ROOT, stdout=subprocess.PIPE))

    async def ready(self) -> None:
        for worker in self._crew:
            assert worker.stdout is not None
            assert await asyncio.to_thread(worker.stdout.readline) == b"ready\n"

    def pick(self, chance: random.Random) -> subprocess.Popen[bytes]:
        return chance.choice([worker for worker in self._crew if worker.pid not in self.paused])

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.communicate()
        self._crew.remove(worker)
        self.hire()

    def pause(self, worker: subprocess.Popen[bytes]) -> None:
        stand_still(worker.pid, self._store)
        self.paused.add(worker.pid)
        self.ever_paused.add(worker.pid)

    def resume(self) -> None:
        for worker in self._crew:
            if worker.pid in self.paused:
                worker.send_signal(signal.SIGCONT)
        self.paused.clear()

    def dismiss(self) -> None:
        self.resume()
        for worker in self._crew:
            worker.kill()
            worker.communicate()


async def enqueue_some(job: Job[[int], None], log: list[JobEvent], numbers: range) -> list[JobHandle[Any]]:
    keys = [f"key.{number % KEYS}" for number in numbers]
    handles = await job.enqueue_many([(number,) for number in numbers], keys=keys)
    for key, handle in zip(keys, handles, strict=True):
        log.append(JobEvent(kind="enqueued", key=key, job=handle.id, at=time.monotonic_ns()))
    return handles


async def effects_of(jet: Jet) -> list[JobEvent]:
    stream = await jet.stream("effects")
    consumer = await stream.create_consumer(ack_policy="none")
    found: list[JobEvent] = []
    while messages := await consumer.fetch(500, no_wait=True):
        found += [decode(message.data) for message in messages]
    return found


def log_of(path: str) -> list[JobEvent]:
    return [decode(line) for line in Path(path).read_bytes().splitlines()]


async def opened(jet: Jet, log: str, replicas: int = 1) -> Job[[int], None]:
    await jet.create_stream("effects", subjects=[EFFECTS], num_replicas=replicas)
    queue = await jet.queue(QUEUE, exclusive=True, lease=LEASE_S, num_replicas=replicas)
    return register(queue, Log(log))


async def everything_ended(handles: list[JobHandle[Any]]) -> None:
    """Wait for the last job of each key: the others of its key ended before it."""
    await asyncio.gather(*(handle.outcome(timeout=60) for handle in handles[-KEYS:]))


def checked(events: list[JobEvent], effects: list[JobEvent], jobs: int, paused: set[int] | None = None) -> None:
    names = {event.worker for event in events if paused and int(event.worker.split("-")[0] or 0) in paused}
    assert check_history([*events, *effects], max_attempts=MAX_ATTEMPTS, paused=names) == []
    assert len(effects) == jobs


@dataclass(frozen=True)
class Play:
    """Rounds in which jobs are enqueued and a worker is killed, or paused for some leases."""

    where: str
    log: str
    crew: int
    rounds: int
    keys: int
    """How many jobs a round each key gets."""
    chance: random.Random

    async def kills(self) -> None:
        """Kill workers in each round; check that no history contradicts itself and that others took over."""

        async def befall(workers: Workers) -> None:
            for _ in range(self.chance.choice((1, 1, 2, 3))):
                await asyncio.sleep(self.chance.uniform(0.02, 0.3))
                workers.kill(workers.pick(self.chance))

        await self.befalling(befall)
        assert any(event.attempt > 1 for event in log_of(self.log))

    async def pauses(self, leases: int) -> None:
        """Pause a worker per round, for longer than its leases last; what it does afterwards has no effect."""

        async def befall(workers: Workers) -> None:
            await asyncio.sleep(self.chance.uniform(0.02, 0.1))
            workers.pause(workers.pick(self.chance))
            await asyncio.sleep(leases * LEASE_S)
            workers.resume()

        await self.befalling(befall, counted=False)

    async def befalling(self, befall: Callable[[Workers], Awaitable[None]], *, counted: bool = True) -> None:
        """Let something befall the workers in each round; ``counted``: every job must complete."""
        history, handles = list[JobEvent](), list[JobHandle[Any]]()
        async with pelton.open(self.where) as jet:
            job = await opened(jet, self.log)
            workers = Workers(self.where, self.log, self.crew)
            try:
                await workers.ready()
                for _ in range(self.rounds):
                    numbers = range(len(handles), len(handles) + self.keys * KEYS)
                    handles += await enqueue_some(job, history, numbers)
                    await befall(workers)
                await everything_ended(handles)
            finally:
                workers.dismiss()
            checked([*history, *log_of(self.log)], await effects_of(jet), len(handles), workers.ever_paused)
            if counted:
                counts = await job.queue.counts()
                assert (counts.completed, counts.failed, counts.unfinished) == (len(handles), 0, 0)


@pytest.mark.parametrize("rounds", [pytest.param(4, id="short"), pytest.param(40, id="long")])
async def test_killed_workers_leave_a_history_without_contradictions(tmp_path: Path, rounds: int) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await Play(store, log, crew=6, rounds=rounds, keys=5, chance=random.Random(rounds)).kills()


async def test_paused_workers_are_replaced_and_what_they_then_do_has_no_effect(tmp_path: Path) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await Play(store, log, crew=6, rounds=5, keys=10, chance=random.Random(3)).pauses(2)
