"""The threads of a worker: lists in both directions, and a thread for each job that needs one."""

from __future__ import annotations

import asyncio
import threading

from pelton.queue import Queue
from pelton.queue.run.slots import Called, JobThreads
from tests.queue.helpers import drain

LIMIT = 8


class Jobs:
    """Runs jobs by number, and waits until all have ended."""

    def __init__(self) -> None:
        self.threads = JobThreads[int](LIMIT, self._done)
        self.rounds: list[list[Called[int]]] = []
        self._changed = asyncio.Event()

    def _done(self, called: list[Called[int]]) -> None:
        self.rounds.append(called)
        self._changed.set()

    async def ended(self, count: int) -> list[Called[int]]:
        while sum(map(len, self.rounds)) < count:
            self._changed.clear()
            await self._changed.wait()
        self.threads.close(wait=True)
        return [called for round_ in self.rounds for called in round_]


async def test_jobs_that_end_together_wake_the_loop_together() -> None:
    jobs, gate, last = Jobs(), threading.Event(), threading.Event()
    jobs.threads.run(0, gate.wait)
    for number in range(1, 99):
        jobs.threads.run(number, lambda: None)
    jobs.threads.run(99, last.set)
    # The loop does not look meanwhile.
    assert last.wait(30)
    gate.set()
    ended = await jobs.ended(100)
    assert {called.job for called in ended} == set(range(100))
    assert len(jobs.rounds) <= 3


async def test_each_job_that_waits_has_a_thread() -> None:
    jobs, meeting = Jobs(), threading.Barrier(LIMIT, timeout=30)
    for number in range(LIMIT):
        jobs.threads.run(number, meeting.wait)
    ended = await jobs.ended(LIMIT)
    assert sorted(called.job for called in ended) == list(range(LIMIT))
    assert not any(called.error for called in ended)


async def test_whatever_is_raised_is_handed_over() -> None:
    jobs = Jobs()

    def stop() -> None:
        raise StopIteration("over")

    jobs.threads.run(1, stop)
    [called] = await jobs.ended(1)
    assert isinstance(called.error, StopIteration)


async def test_ends_after_the_loop_is_gone_hurt_nobody() -> None:
    gate, began = threading.Event(), threading.Event()

    async def leave() -> JobThreads[int]:
        jobs = Jobs()
        jobs.threads.run(1, lambda: (began.set(), gate.wait()))
        jobs.threads.run(2, lambda: None)
        await asyncio.to_thread(began.wait)
        return jobs.threads

    threads = await asyncio.to_thread(asyncio.run, leave())
    gate.set()
    threads.close(wait=True)


async def test_whatever_a_thread_raises_is_of_its_job(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def job() -> None:
        raise GeneratorExit

    handle = await job.enqueue()
    await drain(queue)
    assert (await handle.outcome()).error.startswith("GeneratorExit")
