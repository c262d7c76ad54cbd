"""Pelton's streams and exclusive queues with many subjects, in an order without locality."""

from __future__ import annotations

import random
from itertools import cycle
from time import perf_counter, process_time
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, PAYLOAD, in_flight, one_by_one
from benchmarks.ours.streams import store

_CONCURRENCY = 64
_JOBS = 5
"""Jobs for each message of `Run.drain`, so that a full run has one for each of 100,000 keys."""


def shuffled(number: int, count: int) -> list[str]:
    """Return `count` subjects, of which `number` are distinct; the same ones each time."""
    names = [f"bench.{each}" for each in range(number)]
    random.Random(number).shuffle(names)
    return [name for name, _ in zip(cycle(names), range(count), strict=False)]


def _batches(subjects: int) -> list[list[tuple[str, bytes]]]:
    messages = [(subject, PAYLOAD) for subject in shuffled(subjects, max(subjects, BATCH))]
    return [messages[begin : begin + BATCH] for begin in range(0, len(messages), BATCH)]


async def publish_batch(run: Run, subjects: int) -> Sample:
    """Batches of 1,000, awaiting each batch."""
    batches = _batches(subjects)
    async with store(run, "commit") as jet:
        for batch in batches:
            await jet.publish_batch(batch)
        following = cycle(batches)
        cpu = process_time()
        begun = perf_counter()
        rate = await one_by_one(run.seconds, lambda: jet.publish_batch(next(following)), each=BATCH)
        return {"rate": rate, "cpu": _each(cpu, begun, rate)}


async def publish_in_flight(run: Run, subjects: int) -> Sample:
    """1,000 publishes in flight at all times."""
    batches = _batches(subjects)
    async with store(run, "commit") as jet:
        for batch in batches:
            await jet.publish_batch(batch)
        following = cycle([subject for batch in batches for subject, _ in batch])
        cpu = process_time()
        begun = perf_counter()
        rate = await in_flight(run.seconds, lambda: jet.publish(next(following), PAYLOAD))
        return {"rate": rate, "cpu": _each(cpu, begun, rate)}


def _each(cpu: float, begun: float, rate: float) -> float:
    """Return the microseconds of CPU for each message since `begun`, warm-up included."""
    return (process_time() - cpu) / (perf_counter() - begun) / rate * 1e6


async def exclusive_jobs(run: Run, keys: int) -> Sample:
    """No-op jobs of an exclusive queue, enqueued beforehand, that one worker drains."""
    total, ran = run.drain * _JOBS, 0
    async with pelton.open(run.workdir / "jobs.pelton") as jet:
        queue: Any = await jet.queue("bench", exclusive=True)

        @queue.job
        async def noop() -> None:
            nonlocal ran
            ran += 1

        names = shuffled(keys, total)
        for begin in range(0, total, BATCH):
            chunk = names[begin : begin + BATCH]
            await noop.enqueue_many([()] * len(chunk), keys=chunk)
        cpu, begun = process_time(), perf_counter()
        await queue.work(concurrency=_CONCURRENCY, until_empty=True, handle_signals=False)
        took, spent = perf_counter() - begun, process_time() - cpu
    assert ran == total, f"{ran} runs of {total}"
    return {"rate": total / took, "cpu": spent / total * 1e6}
