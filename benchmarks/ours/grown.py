"""What each verb costs in a store that holds much of one kind: CPU time of this process in ms, medians.

A process of its own makes the store, so that the memory of the measuring one is only what it needs to use it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, PAYLOAD
from benchmarks.ours.big import resident_mb
from pelton import observe

_TIMES = 15
_ENOUGH = 4.0
"""Seconds of CPU after which a verb is not measured again."""
_AT_ONCE = 200
_RARE = 100
"""One of so many subjects or jobs is what a filter is to find, so 1 %."""

Verb = Callable[[], Awaitable[object]]


async def cost(verb: Verb, times: int = _TIMES, before: Verb | None = None) -> float:
    """Return the median CPU time of a verb in ms; `before` is done each time and not counted."""
    spent: list[float] = []
    while len(spent) < times and sum(spent) < _ENOUGH:
        if before is not None:
            await before()
        gc.collect()
        start = process_time()
        await verb()
        spent.append(process_time() - start)
    return median(spent) * 1e3


async def all_of(found: AsyncIterator[object]) -> int:
    """Exhaust an iterator; return how many there were."""
    return len([one async for one in found])


def measure(run: Run, kind: str, count: int) -> Sample:
    """Make a store of a kind with `count` of it in another process; measure it in this one."""
    path = run.workdir / "grown.pelton"
    maker = get_context("spawn").Process(target=make, args=(path, kind, count))
    maker.start()
    maker.join()
    assert maker.exitcode == 0, "the store was not made"
    return asyncio.run(_measure(path, kind, count)) | {"memory, making it": float(path.with_suffix(".mb").read_text())}


def make(path: Path, kind: str, count: int) -> None:
    """Make the store."""
    asyncio.run(_make(path, kind, count))


async def _make(path: Path, kind: str, count: int) -> None:
    before = resident_mb()
    async with pelton.open(path, sync="off") as jet:
        await _MAKERS[kind](jet, count)
    path.with_suffix(".mb").write_text(str(resident_mb() - before))


async def _measure(path: Path, kind: str, count: int) -> Sample:
    before = resident_mb()
    start = process_time()
    async with pelton.open(path, sync="off") as jet:
        sample = {"open": (process_time() - start) * 1e3}
        sample |= await _VERBS[kind](jet, path, count, before)
        sample["stream_names"] = await cost(jet.stream_names)
        sample["store summary"] = await cost(lambda: observe.store_summary(jet))
    return sample


# --- messages on 100 subjects


async def _make_messages(jet: pelton.Jet, count: int) -> None:
    await jet.create_stream("s", subjects=["s.>"])
    for first in range(0, count, BATCH):
        await jet.publish_batch([(f"s.{number % _RARE}", PAYLOAD) for number in range(first, first + BATCH)])


async def _verbs_of_messages(jet: pelton.Jet, path: Path, count: int, before: float) -> Sample:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c")

    async def settle() -> None:
        await consumer.ack(await consumer.fetch(1))

    sample = {
        "publish": await cost(lambda: jet.publish("s.1", PAYLOAD)),
        "get by sequence": await cost(lambda: stream.get_message(count // 2)),
        "last by subject": await cost(lambda: stream.get_last_message("s.50")),
        "fetch and ack": await cost(settle),
        "create a consumer of a subject": await cost(lambda: stream.create_consumer(filter_subject="s.7")),
        "memory": resident_mb() - before,
        "purge 1 %": await cost(lambda: stream.purge(filter="s.7"), 1),
    }
    return sample | {"purge, keep half": await cost(lambda: stream.purge(keep=count // 2), 1)}


# --- subjects of one message, and keys of a bucket


async def _make_subjects(jet: pelton.Jet, count: int) -> None:
    await jet.create_stream("s", subjects=["s.*.*"])
    for first in range(0, count, BATCH):
        await jet.publish_batch([(f"s.{number}.{number % _RARE}", PAYLOAD) for number in range(first, first + BATCH)])


async def _verbs_of_subjects(jet: pelton.Jet, path: Path, count: int, before: float) -> Sample:
    stream = await jet.stream("s")
    fresh = iter(range(count, 2 * count))
    return {
        "publish": await cost(lambda: jet.publish("s.1.1", PAYLOAD)),
        "publish to a new subject": await cost(lambda: jet.publish(f"s.{next(fresh)}.1", PAYLOAD)),
        "last by subject": await cost(lambda: stream.get_last_message("s.50.50")),
        "memory, used": resident_mb() - before,
        "create a consumer of `s.*.7`": await cost(lambda: stream.create_consumer(filter_subject="s.*.7"), 5),
        "purge one": await cost(lambda: stream.purge(filter=f"s.{next(fresh) - count}.1")),
        "purge 1 %": await cost(lambda: stream.purge(filter="s.*.7"), 1),
        "memory": resident_mb() - before,
    }


async def _make_keys(jet: pelton.Jet, count: int) -> None:
    bucket = await jet.create_bucket("b")
    for first in range(0, count, BATCH):
        await asyncio.gather(*(bucket.put(f"k{number}", PAYLOAD) for number in range(first, first + BATCH)))


async def _verbs_of_keys(jet: pelton.Jet, path: Path, count: int, before: float) -> Sample:
    bucket = await jet.bucket("b")
    return {
        "put": await cost(lambda: bucket.put("k1", PAYLOAD)),
        "get": await cost(lambda: bucket.get("k50")),
        "memory, used": resident_mb() - before,
        "all keys": await cost(lambda: all_of(bucket.keys()), 3),
        "memory": resident_mb() - before,
    }


# --- jobs of one queue


async def _make_jobs(jet: pelton.Jet, count: int) -> None:
    noop, rare = _jobs_of(await jet.queue("q"))
    for _ in range(0, count, BATCH):
        await noop.enqueue_many([(number,) for number in range(BATCH - BATCH // _RARE)])
        await rare.enqueue_many([(number,) for number in range(BATCH // _RARE)])


def _jobs_of(queue: pelton.Queue) -> list[pelton.Job[[int], None]]:
    async def work(number: int) -> None: ...

    return [queue.job(name=name)(work) for name in ("noop", "rare")]


async def _verbs_of_jobs(jet: pelton.Jet, path: Path, count: int, before: float) -> Sample:
    start = process_time()
    queue = await jet.queue("q")
    first = (process_time() - start) * 1e3
    noop, _ = _jobs_of(queue)
    sample = {
        "first `jet.queue`": first,
        "enqueue": await cost(lambda: noop.enqueue(1)),
        "claim and complete": await _claiming(queue),
        "counts": await cost(queue.counts),
        "queue summary": await cost(lambda: observe.queue_summary(jet, "q")),
        "memory": resident_mb() - before,
        "`jobs(job=...)`, no match": await cost(lambda: all_of(queue.jobs(job="none")), 3),
        "`jobs(job=...)`, 1 %": await cost(lambda: all_of(queue.jobs(job="rare")), 1),
    }
    return sample | {"`purge(job=...)`, 1 %": await cost(lambda: queue.purge(job="rare"), 1)}


async def _claiming(queue: pelton.Queue) -> float:
    async with queue.claims() as claims:

        async def claim() -> None:
            taken = await claims.take(1)
            for job in taken:
                job.complete()
            await claims.settle(taken)

        return await cost(claim)


# --- queues of one job, and consumers of one stream


async def _make_queues(jet: pelton.Jet, count: int) -> None:
    async def one(number: int) -> None:
        await _jobs_of(await jet.queue(f"q{number}"))[0].enqueue(1)

    for first in range(0, count, _AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(first, min(first + _AT_ONCE, count))))


async def _verbs_of_queues(jet: pelton.Jet, path: Path, count: int, before: float) -> Sample:
    start = process_time()
    queue = await jet.queue("q1")
    first = (process_time() - start) * 1e3
    noop, _ = _jobs_of(queue)
    async with pelton.open(path, sync="off") as elsewhere:
        new = iter(range(_TIMES))
        beside = await cost(lambda: noop.enqueue(1), before=lambda: elsewhere.queue(f"new{next(new)}"))
    return {
        "first `jet.queue`": first,
        "`jet.queue` of another": await cost(lambda: jet.queue("q2")),
        "enqueue": await cost(lambda: noop.enqueue(1)),
        "claim and complete": await _claiming(queue),
        "counts": await cost(queue.counts),
        "a queue is made elsewhere, then enqueue": beside,
        "memory": resident_mb() - before,
        "queue summaries": await cost(lambda: observe.queue_summaries(jet), 3),
    }


async def _make_consumers(jet: pelton.Jet, count: int) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish_batch([(f"s.{number % count}", PAYLOAD) for number in range(BATCH)])
    for first in range(0, count, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, count))
        await asyncio.gather(*(stream.create_consumer(durable_name=f"c{n}", filter_subject=f"s.{n}") for n in numbers))


async def _verbs_of_consumers(jet: pelton.Jet, path: Path, count: int, before: float) -> Sample:
    stream = await jet.stream("s")
    consumer = await stream.consumer("c1")

    async def settle() -> None:
        await consumer.ack(await consumer.fetch(1))

    async with pelton.open(path, sync="off") as elsewhere:
        other = await elsewhere.stream("s")
        beside = await cost(lambda: jet.publish("s.1", PAYLOAD), before=lambda: other.create_consumer())
    return {
        "publish": await cost(lambda: jet.publish("s.1", PAYLOAD)),
        "fetch and ack": await cost(settle),
        "create a consumer": await cost(stream.create_consumer),
        "a consumer is made elsewhere, then publish": beside,
        "memory": resident_mb() - before,
        "consumer_names": await cost(stream.consumer_names),
        "consumer summaries": await cost(lambda: observe.consumer_summaries(jet), 3),
    }


_MAKERS: dict[str, Callable[[pelton.Jet, int], Awaitable[None]]] = {
    "messages": _make_messages,
    "subjects": _make_subjects,
    "keys": _make_keys,
    "jobs": _make_jobs,
    "queues": _make_queues,
    "consumers": _make_consumers,
}
_VERBS: dict[str, Callable[[pelton.Jet, Path, int, float], Awaitable[Sample]]] = {
    "messages": _verbs_of_messages,
    "subjects": _verbs_of_subjects,
    "keys": _verbs_of_keys,
    "jobs": _verbs_of_jobs,
    "queues": _verbs_of_queues,
    "consumers": _verbs_of_consumers,
}
