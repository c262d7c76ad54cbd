"""Pelton's queue: no-op jobs end to end, and how soon an idle worker starts one."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import JobTimes
from benchmarks.ours import Sync
from benchmarks.stats import percentile

_CONCURRENCY = 256


async def noop_jobs(run: Run, sync: Sync, bulk: bool = True) -> Sample:
    """Enqueue all (in bulk, or awaiting each), then work until the queue is empty."""
    total = run.drain
    async with pelton.open(run.workdir / "jobs.pelton", sync=sync) as jet:
        queue = await jet.queue("bench")
        ran = 0

        @queue.job
        async def noop() -> None:
            nonlocal ran
            ran += 1

        await _batch(queue, noop, total // 10, bulk)
        times = await _batch(queue, noop, total, bulk)
    assert ran == total + total // 10, f"{ran} runs"
    return times.rates(total)


async def _batch(queue: Any, noop: Any, total: int, bulk: bool) -> JobTimes:
    begun = perf_counter()
    if bulk:
        await noop.enqueue_many([()] * total)
    else:
        for _ in range(total):
            await noop.enqueue()
    enqueued = perf_counter()
    await queue.work(concurrency=_CONCURRENCY, until_empty=True)
    return JobTimes(begun, enqueued, perf_counter())


async def pick_up(run: Run, sync: Sync) -> Sample:
    """Milliseconds from the call of enqueue to the start of the job in an idle worker of this process."""
    async with pelton.open(run.workdir / "jobs.pelton", sync=sync) as jet:
        queue = await jet.queue("bench")
        started: asyncio.Queue[float] = asyncio.Queue()

        @queue.job
        async def noop() -> None:
            started.put_nowait(perf_counter())

        worker = asyncio.create_task(queue.work(concurrency=4))
        samples = []
        for _ in range(run.samples):
            await asyncio.sleep(0.005)
            enqueued = perf_counter()
            await noop.enqueue()
            samples.append((await started.get() - enqueued) * 1e3)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return {"p50": percentile(samples, 0.5), "p99": percentile(samples, 0.99)}
