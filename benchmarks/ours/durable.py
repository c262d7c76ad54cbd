"""Pelton's durable functions: steps, signals from another process, and what jobs that sleep or wait cost a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, perf_counter, process_time

import pelton
from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.ours import Sync
from pelton.queue import JobContext, Queue

_CONCURRENCY = 64
_SHARE = 50
_MONTH_S = 30 * 86_400
_PATIENCE_S = 60.0
_FILL = 10_000
jobs = pelton.Jobs()


@jobs.job
async def sleeping(context: JobContext) -> None:
    await context.sleep(_MONTH_S)


@jobs.job
async def waiting(context: JobContext) -> str:
    return await context.wait_for("approved", str)


@asynccontextmanager
async def _queue(path: Path, sync: Sync) -> AsyncIterator[Queue]:
    async with pelton.open(path, sync=sync) as jet:
        yield await jet.queue("bench", jobs=jobs)


async def worked(run: Run, sync: Sync, steps: int) -> Sample:
    """Steps a second, of jobs that do so many each; without steps, jobs a second."""
    total = run.drain // 8
    async with _queue(run.workdir / "jobs.pelton", sync) as queue:

        async def nothing() -> None: ...

        @queue.job
        async def stepping(context: JobContext) -> None:
            for number in range(steps):
                await context.step(f"{number}", nothing)

        await stepping.enqueue_many([()] * total)
        begun = perf_counter()
        await queue.work(concurrency=_CONCURRENCY, until_empty=True)
        return {"rate": total * max(steps, 1) / (perf_counter() - begun)}


async def resume_across(run: Run, sync: Sync) -> Sample:
    """Milliseconds from the call of send here to where `wait_for` returns, in a worker of another process."""
    path = run.workdir / "jobs.pelton"
    async with _queue(path, sync) as queue:
        # As many as `crossing` sends signals, and more.
        waits = iter(await queue.enqueue_many([waiting.bind() for _ in range(2 * run.samples)]))

        async def send(data: bytes) -> None:
            await next(waits).send("approved", data.decode())

        return await crossing(run.samples, "ours.durable:wait_there", str(path), send)


async def wait_there(path: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: a worker, which is ready when all jobs wait."""
    there = pelton.Jobs()

    @there.job(name="waiting")
    async def receive(context: JobContext) -> None:
        got((await context.wait_for("approved", str)).encode())

    async with pelton.open(path) as jet:
        queue = await jet.queue("bench", jobs=there)
        worker = asyncio.create_task(queue.work(concurrency=4))
        unfinished = await _until_all_wait(queue)
        ready()
        while (await queue.counts()).unfinished > unfinished - total:
            await asyncio.sleep(0.05)
        queue.stop()
        await worker


async def _until_all_wait(queue: Queue) -> int:
    deadline = monotonic() + _PATIENCE_S * 10
    while monotonic() < deadline:
        counts = await queue.counts()
        if counts.waiting + counts.scheduled == counts.unfinished:
            return counts.unfinished
        await asyncio.sleep(0.05)
    raise TimeoutError("jobs do not come to their wait")


async def fill(run: Run) -> None:
    """Make one store without jobs, and two of so many that wait or sleep."""
    for name, job in (("none", None), ("waiting", waiting), ("sleeping", sleeping)):
        async with _queue(run.shared / f"{name}.pelton", "off") as queue:
            if job is None:
                continue
            total = run.big // _SHARE
            for start in range(0, total, _FILL):
                await queue.enqueue_many([job.bind() for _ in range(min(_FILL, total - start))])
            worker = asyncio.create_task(queue.work(concurrency=_CONCURRENCY))
            await _until_all_wait(queue)
            queue.stop()
            await worker


async def idle_beside(run: Run, sync: Sync, store: str) -> Sample:
    """What a worker takes that has nothing to do: CPU milliseconds a second, and MB more than before it worked."""
    async with _queue(run.shared / f"{store}.pelton", sync) as queue:
        counts, before = await queue.counts(), _resident_mb()
        assert counts.unfinished == (0 if store == "none" else run.big // _SHARE), counts
        worker = asyncio.create_task(queue.work(concurrency=_CONCURRENCY, handle_signals=False))
        await asyncio.sleep(2.0)
        seconds, spent = max(run.seconds, 1.0) * 4, process_time()
        await asyncio.sleep(seconds)
        spent = process_time() - spent
        memory = _resident_mb() - before
        queue.stop()
        await worker
    return {"cpu": spent / seconds * 1e3, "memory": memory}


def _resident_mb() -> float:
    """What is resident now, in MB, on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20
