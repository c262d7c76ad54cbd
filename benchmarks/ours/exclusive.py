"""Pelton's exclusive queues, in a file and on a NATS server: jobs a second, and how soon the next of a key starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.peers.nats_server import running
from benchmarks.stats import percentile

_CONCURRENCY = 32
_KEYS = 256


async def keyed_jobs(run: Run, server: bool, exclusive: bool = True) -> Sample:
    """No-op jobs of 256 keys; then a chain of one key, from the end of a job to the start of the next."""
    total = run.drain // 4
    async with _store(run, server) as jet:
        queue = await jet.queue("bench", exclusive=exclusive)
        ran = 0

        @queue.job
        async def noop() -> None:
            nonlocal ran
            ran += 1

        await noop.enqueue_many([()] * total, keys=[f"key{n % _KEYS}" for n in range(total)])
        begun = perf_counter()
        await queue.work(concurrency=_CONCURRENCY, until_empty=True)
        took = perf_counter() - begun
        assert ran == total, f"{ran} runs"
        waits = await _chain(queue, run.samples)
    return {"drain": total / took, "p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99)}


async def _chain(queue: Any, number: int) -> list[float]:
    """Return milliseconds between the jobs of one key."""
    waits: list[float] = []
    ended = 0.0

    @queue.job
    async def link() -> None:
        nonlocal ended
        if ended:
            waits.append((perf_counter() - ended) * 1e3)
        ended = perf_counter()

    await link.enqueue_many([()] * number, keys=["chain"] * number)
    await queue.work(concurrency=4, until_empty=True)
    return waits


@asynccontextmanager
async def _store(run: Run, server: bool) -> AsyncIterator[Any]:
    if not server:
        async with pelton.open(run.workdir / "jobs.pelton") as jet:
            yield jet
        return
    async with running(run.workdir) as url, pelton.open(url) as jet:
        yield jet
