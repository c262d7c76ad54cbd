"""Draining a queue: its workers finish what they hold and take nothing more; the caller learns when they are done."""

from __future__ import annotations

import asyncio

import pytest

import pelton
from pelton import Jet, JobCounts
from pelton.api import PullRequest
from pelton.queue import JobContext
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


@ON_BOTH
@BOTH_KINDS
async def test_a_drained_queue_holds_nothing_until_it_is_resumed(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    other = await another("garage")
    began, go_on, ended = asyncio.Event(), asyncio.Event(), list[int]()

    @queue.job
    async def job(number: int) -> None:
        began.set()
        await go_on.wait()
        ended.append(number)

    handles = [await queue.options(key=f"k{number}" * (number % 2)).enqueue(job, number) for number in range(6)]
    async with working(queue, concurrency=2):
        await asyncio.wait_for(began.wait(), 60)
        draining = asyncio.create_task(other.drain())
        done, _ = await asyncio.wait([draining], timeout=0.5)
        assert not done, "two jobs run"
        go_on.set()
        await asyncio.wait_for(draining, 60)
        finished = len(ended)
        assert finished >= 2
        await queue.enqueue(job, 9)
        await asyncio.sleep(0.3)
        counts = await queue.counts()
        assert (len(ended), counts.running, counts.completed) == (finished, 0, finished)
        await other.drain(timeout=5)
        await queue.resume()
        for handle in handles:
            assert (await handle.outcome(timeout=60)).state == "completed"
    assert (await queue.counts()).completed in (6, 7)


@ON_BOTH
async def test_jobs_that_wait_for_another_attempt_are_held_by_nobody(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)

    tried = asyncio.Event()

    @queue.job(backoff=pelton.Backoff(base=3600))
    async def fails() -> None:
        tried.set()
        raise ValueError

    await queue.enqueue(fails)
    async with working(queue):
        await asyncio.wait_for(tried.wait(), 60)
        await queue.drain(timeout=20)
        later = await queue.options(delay=60).enqueue(fails)
        await queue.drain(timeout=20)
        assert (await later.info()).state == "scheduled"


@ON_BOTH
async def test_the_limit_is_told_and_the_queue_stays_paused(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    began = asyncio.Event()

    @queue.job
    async def job(context: JobContext) -> None:
        began.set()
        while not context.stopping:
            await asyncio.sleep(0.01)

    await queue.enqueue(job)
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        with pytest.raises(TimeoutError, match=r"after 0\.3 s, .*workers still have .*; it stays paused"):
            await queue.drain(timeout=0.3)
        waiting = await queue.enqueue(job)
    assert (await queue.counts()).pending == 1
    await queue.drain(timeout=5)
    assert (await waiting.info()).state == "pending"


async def test_what_a_dead_worker_held_is_waited_for_until_its_lease_is_over() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", lease=30)

        @queue.job
        async def job() -> None: ...

        await queue.enqueue(job)
        source = queue._context.source_for("gone")
        [_] = await source.take(source.channels[0], PullRequest(expires_ns=60 * 10**9))
        draining = asyncio.create_task(queue.drain())
        for _ in range(29):
            runtime.clock.advance(1)
            await asyncio.sleep(0)
        assert not draining.done()
        async with asyncio.timeout(60):
            while not draining.done():
                runtime.clock.advance(0.5)
                await asyncio.sleep(0)
        await queue.resume()
        await queue.work(until_empty=True, handle_signals=False)
        assert await queue.counts() == JobCounts(completed=1)
