"""The processes of two queues whose jobs begin or wait: for limits, in threads, in child processes that fork.

Each job writes when its function starts and ends, and its worker what it is about to mark as begun.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from multiprocessing import current_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

import pelton
from pelton.api import Backoff
from pelton.queue.run.attempt import JobAttempt
from pelton.queue.run.leased_jobs import LeasedJob, LeasedJobs
from tests.journal import machine_ns
from tests.storm import inherited
from tests.storm.cast import Player
from tests.storm.plan import Place

DEPOT: Final = "depot"
FORKS: Final = "forks"
SLOTS: Final = 2
LEASE_S: Final = 3.0
ATTEMPTS: Final = {"narrow": 1, "whole": 2, "copier": 2}
_SOON: Final = Backoff(base=0.02, cap=0.05)
jobs: Final = pelton.Jobs()
forking: Final = pelton.Jobs()
QUEUES: Final = {DEPOT: jobs, FORKS: forking}


class DepotEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job: its worker is about to mark it as begun; its function starts, ends, is interrupted."""

    kind: Literal["begins", "start", "end", "interrupted"]
    queue: str
    id: str
    at: int
    pid: int
    job: str = ""
    attempt: int = 0


def note(folder: str | Path, event: DepotEvent) -> None:
    """Write an event, in one write."""
    file = os.open(Path(folder, "depot"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, msgspec.json.encode(event) + b"\n")
    os.close(file)


@contextmanager
def _noting(folder: str, context: pelton.JobContext) -> Iterator[None]:
    original = os.getpid()

    def say(kind: Any) -> None:
        if os.getpid() != original:
            # A copy leaves the block as well, and says nothing of how the job ends.
            return
        event = DepotEvent(
            kind=kind,
            queue=context.queue,
            id=context.id,
            at=machine_ns(),
            pid=int(context.worker.split("-")[0]),
            job=context.job,
            attempt=context.attempt,
        )
        note(folder, event)

    say("start")
    try:
        yield
    except asyncio.CancelledError:
        say("interrupted")
        raise
    except Exception:
        say("end")
        raise
    else:
        say("end")


# --- the jobs


@jobs.job(max_attempts=ATTEMPTS["narrow"])
async def narrow(number: int, folder: str, context: pelton.JobContext) -> int:
    """Wait for one of few slots."""
    with _noting(folder, context):
        await asyncio.sleep(0.01 + number % 5 * 0.01)
        return number * number


@jobs.job(max_attempts=ATTEMPTS["whole"], backoff=_SOON)
def whole(number: int, folder: str, context: pelton.JobContext) -> int:
    """Run in a thread."""
    with _noting(folder, context):
        time.sleep(number % 4 * 0.01)
        if number % 7 == 0 and context.attempt == 1:
            raise ValueError("it fails at first")
        return number * number


@forking.job(max_attempts=ATTEMPTS["copier"], backoff=_SOON, process=True)
def copier(number: int, folder: str, context: pelton.JobContext) -> int:
    """Fork: the copy returns, raises, exits or stays; its original returns, raises or crashes."""
    with _noting(folder, context):
        copy = os.fork()
        if copy:
            return _original(number, copy, context.attempt)
    return _copy(number)


def _original(number: int, copy: int, attempt: int) -> int:
    if number % 2:
        os.waitpid(copy, 0)
    if number % 9 == 4 and attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 9 == 8 and attempt == 1:
        raise ValueError("it fails at first")
    return number * number


def _copy(number: int) -> int:
    way = number // 2 % 4
    if way == 1:
        raise ValueError("a copy raises")
    if way == 2:
        os._exit(7)
    if way == 3 and not number % 2:
        time.sleep(60)
    return -1


# --- the processes


async def orderer(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Enqueue jobs, some of them for later, and look at what has become of the others."""
    actor, count = Player(pipe, place, who, seed), seed % 1000 * 1000

    async def order(jet: pelton.Jet) -> None:
        nonlocal count
        queue, job = actor.random.choice([(DEPOT, narrow)] * 3 + [(DEPOT, whole)] * 2 + [(FORKS, copier)])
        depot = await jet.queue(queue, jobs=QUEUES[queue])
        for _ in range(1 if queue == FORKS else actor.random.choice((1, 4, 8))):
            count += 1
            delay = actor.random.choice((0.0, 0.0, 0.0, actor.random.uniform(0.2, 3)))
            actor.notes.say("ordering", queue)
            at = machine_ns()
            ordered = await (depot.options(delay=delay) if delay else depot).enqueue(job, count, str(place.folder))
            actor.notes.say("ordered", queue, f"{ordered.id}={job.name}:{count}:{delay}", at)
        await _look(actor, depot)
        await asyncio.sleep(actor.random.uniform(0, 0.6))

    await actor.play(order)


async def _look(actor: Player, queue: pelton.Queue) -> None:
    at = machine_ns()
    found = [f"{job.id}={job.state}" async for job in queue.jobs()]
    actor.notes.say("seen", queue.name, " ".join(found), machine_ns(), at=at)


async def hand(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Work for the depot, or for one of the queues that an old store has had."""
    actor = Player(pipe, place, who, seed)

    async def work(jet: pelton.Jet) -> None:
        names = inherited.queues_in(place.folder)
        if names and actor.random.random() < 0.3:
            queue = await inherited.opened(jet, actor.random.choice(names))
        else:
            queue = await jet.queue(DEPOT, jobs=jobs)
        async with marking(place.folder, queue):
            await actor.work(queue, 8, actor.random.uniform(0.2, 2.0))

    await actor.play(work)


async def forester(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Work for the jobs that fork, for longer: their processes start slowly."""
    # A process of multiprocessing must not have others.
    current_process().daemon = False
    actor = Player(pipe, place, who, seed)

    async def work(jet: pelton.Jet) -> None:
        queue = await jet.queue(FORKS, jobs=forking)
        async with marking(place.folder, queue):
            await actor.work(queue, 2, actor.random.uniform(2.0, 8.0))

    await actor.play(work)


@asynccontextmanager
async def marking(folder: Path, queue: pelton.Queue) -> AsyncIterator[None]:
    """Let the worker of this process write what it begins and interrupts, before it does.

    An attempt must have been written; and of a child that is interrupted, nobody knows whether it had ended.
    """
    begin, interrupt = LeasedJobs.begin, JobAttempt.interrupt

    @wraps(begin)
    def noted(self: LeasedJobs[Any], job: LeasedJob) -> None:
        event = DepotEvent(kind="begins", queue=queue.name, id=job.records.id, at=machine_ns(), pid=os.getpid())
        note(folder, event)
        begin(self, job)

    @wraps(interrupt)
    def noted_end(self: JobAttempt) -> None:
        if self.records.has_begun and self.definition is not None and self.definition.in_process:
            id, attempt = self.records.id, self.records.attempt
            event = DepotEvent(
                kind="interrupted", queue=queue.name, id=id, at=machine_ns(), pid=os.getpid(), attempt=attempt
            )
            note(folder, event)
        interrupt(self)

    LeasedJobs.begin, JobAttempt.interrupt = noted, noted_end  # type: ignore[method-assign]
    try:
        yield
    finally:
        LeasedJobs.begin, JobAttempt.interrupt = begin, interrupt  # type: ignore[method-assign]


async def make_depot(jet: pelton.Jet) -> None:
    """Make the queues, and the limit."""
    depot = await jet.queue(DEPOT, jobs=jobs, lease=LEASE_S)
    await depot.limit(job=narrow.name, concurrency=SLOTS)
    await jet.queue(FORKS, jobs=forking, lease=LEASE_S)


async def outcomes(queue: pelton.Queue) -> list[pelton.Outcome]:
    """Return how the jobs of a queue have ended."""
    return [outcome async for outcome in queue.history()]
