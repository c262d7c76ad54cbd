"""Pelton's queue: jobs with options, picked up across processes, beside a backlog and schedules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter, process_time
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.ours import Sync
from pelton.queue import Queue

_CLAIM = 256
_FILL = 20_000


@asynccontextmanager
async def _queue(run: Run, sync: Sync, **options: Any) -> AsyncIterator[Queue]:
    async with pelton.open(run.workdir / "jobs.pelton", sync=sync) as jet:
        yield await jet.queue("bench", **options)


async def enqueued(run: Run, sync: Sync, options: dict[str, Any]) -> Sample:
    """Jobs a second, enqueued many at once with ``options``."""
    total = run.drain
    async with _queue(run, sync) as queue:

        @queue.job
        async def noop(number: int) -> None: ...

        with_options = noop.options(**options)

        async def batch(numbers: range) -> float:
            begun = perf_counter()
            if options:
                await queue.enqueue_many([with_options.bind(number) for number in numbers])
            else:
                await noop.enqueue_many([(number,) for number in numbers])
            return len(numbers) / (perf_counter() - begun)

        await batch(range(total, total + total // 10))
        return {"rate": await batch(range(total))}


async def claimed_beside(run: Run, sync: Sync, share: float) -> Sample:
    """Jobs a second, taken and completed from a queue with keys in which ``share`` of the run's most jobs wait."""
    waiting = max(int(run.big * share), run.drain)
    async with _queue(run, sync, exclusive=True) as queue:

        @queue.job
        async def noop() -> None: ...

        keys = max(waiting // 50, 1)
        for start in range(0, waiting, _FILL):
            some = range(start, min(start + _FILL, waiting))
            await noop.enqueue_many([()] * len(some), keys=[f"key{number % keys}" for number in some])
        done, begun = 0, perf_counter()
        async with queue.claims() as claims:
            while done < run.drain and (jobs := await claims.take(_CLAIM)):
                for job in jobs:
                    job.complete()
                await claims.settle(jobs)
                done += len(jobs)
        return {"rate": done / (perf_counter() - begun)}


async def idle_with_schedules(run: Run, sync: Sync, schedules: int) -> Sample:
    """CPU milliseconds per second of a worker that has nothing to do, beside so many schedules that are not due."""
    async with _queue(run, sync) as queue:

        @queue.job
        async def noop() -> None: ...

        for number in range(schedules):
            await queue.schedule(f"yearly {number}", noop, cron=f"{number % 60} {number % 24} 1 1 *")
        worker = asyncio.create_task(queue.work(handle_signals=False))
        await asyncio.sleep(1.0)
        seconds = max(run.seconds, 1.0) * 3
        before = process_time()
        await asyncio.sleep(seconds)
        spent = process_time() - before
        queue.stop()
        await worker
        return {"cpu": spent / seconds * 1e3}


async def pick_up_across(run: Run, sync: Sync) -> Sample:
    """Milliseconds from the call of enqueue here to the start of the job in an idle worker of another process."""
    async with _queue(run, sync) as queue:
        path = str(run.workdir / "jobs.pelton")

        async def enqueue(data: bytes) -> None:
            await queue.enqueue("stamped", stamp=data.decode())

        return await crossing(run.samples, "ours.job_options:work_there", path, enqueue)


async def work_there(path: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: a worker."""
    async with pelton.open(path) as jet:
        queue = await jet.queue("bench")

        @queue.job
        async def stamped(stamp: str) -> None:
            got(stamp.encode())

        asyncio.get_running_loop().call_later(0.5, ready)
        await queue.work(concurrency=4, max_jobs=total)
