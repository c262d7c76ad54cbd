"""Purging and deleting queues, opening only what is there, and listing jobs by what they are."""

from __future__ import annotations

import asyncio

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts, QueueInUseError, QueueNotFoundError
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import drain, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


@ON_BOTH
@BOTH_KINDS
async def test_purged_jobs_are_cancelled_and_running_ones_stay(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    ran = list[int]()
    began, go_on = asyncio.Event(), asyncio.Event()

    @queue.job
    async def job(n: int) -> None:
        ran.append(n)
        began.set()
        await go_on.wait()

    @queue.job
    async def other(n: int) -> None:
        ran.append(n)

    running = await queue.enqueue(job, 0)
    async with working(queue, concurrency=1):
        await asyncio.wait_for(began.wait(), 60)

        waiting = [
            await queue.options(key="k").enqueue(job, 1),
            await queue.options(key="k").enqueue(job, 2),
            await queue.enqueue(job, 3),
            await queue.options(delay=60, key="k").enqueue(job, 4),
            await queue.options(unique="one").enqueue(job, 5),
        ]
        kept = await queue.options(key="k").enqueue(other, 6)
        # The worker may hold one for a moment, and give it back: it has one slot, and asked for both kinds of keys.
        purged = 0
        while purged < len(waiting):
            purged += await queue.purge(job="job")
        assert purged == len(waiting)
        assert await queue.purge(job="job") == 0
        assert [(await handle.info()).state for handle in waiting] == ["cancelled"] * len(waiting)
        assert "purged" in (await waiting[0].outcome(timeout=60)).error
        go_on.set()
        await running.value(timeout=60)
        await kept.value(timeout=60)
    assert sorted(ran) == [0, 6]
    assert await queue.counts() == JobCounts(completed=2, cancelled=5)


@ON_BOTH
async def test_many_jobs_are_purged_by_key(jet: Jet) -> None:
    queue = await jet.queue("garage")

    @queue.job
    async def job(n: int) -> None: ...

    await job.enqueue_many([(n,) for n in range(200)], keys=[f"key {n % 2}" for n in range(200)])
    assert await queue.purge(key="key 1") == 100
    assert await queue.counts() == JobCounts(pending=100, cancelled=100)
    assert {info.key async for info in queue.jobs()} == {"key 0"}
    assert await queue.purge() == 100
    assert await queue.counts() == JobCounts(cancelled=200)


async def test_retried_jobs_are_purged(queue: Queue) -> None:
    @queue.job(backoff=pelton.Backoff(base=600))
    async def job() -> None:
        raise ValueError

    handle = await job.enqueue()
    async with working(queue):
        while (await handle.info()).state != "retrying":
            await asyncio.sleep(0.01)
    assert await queue.purge() == 1
    assert await queue.counts() == JobCounts(cancelled=1)


@ON_BOTH
@BOTH_KINDS
async def test_a_deleted_queue_is_gone_and_can_be_made_anew(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)

    @queue.job(max_attempts=1)
    async def job() -> None:
        raise ValueError

    await queue.options(key="k").enqueue(job)
    await drain(queue)
    await queue.options(key="k").enqueue(job)
    assert await jet.queue_names() == ["garage"]
    assert repr(queue) == ("<Queue 'garage', exclusive>" if exclusive else "<Queue 'garage'>")
    await queue.delete()
    assert await jet.stream_names("$JOBS.>") == []
    assert await jet.queue_names() == []
    await queue.delete()
    for options in ({}, {"unique": "one"}, {"delay": 60}, {"key": "k"}):
        with pytest.raises(QueueNotFoundError, match="no queue 'garage'"):
            await queue.options(**options).enqueue(job)  # type: ignore[arg-type]
    with pytest.raises(QueueNotFoundError, match="no queue 'garage'"):
        await another("garage", create=False)
    assert await jet.stream_names("$JOBS.>") == []
    again = await another("garage", exclusive=not exclusive)
    assert await again.counts() == JobCounts()
    assert (await jet.queue("garage", create=False)).exclusive is not exclusive


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_queue_with_running_jobs_is_deleted_by_force_only(jet: Jet, exclusive: bool, key: str) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)

    @queue.job
    async def job() -> None: ...

    await queue.options(key=key).enqueue(job)
    async with queue.claims() as claims:
        [_] = await claims.take(1, timeout=20)
        with pytest.raises(QueueInUseError, match="workers hold 1 of its jobs") as refused:
            await queue.delete()
        assert (refused.value.queue, refused.value.running) == ("garage", 1)
        assert (await queue.counts()).unfinished + refused.value.running >= 1
        await claims.settle([])
    await queue.delete(force=True)
    assert await jet.stream_names("$JOBS.>") == []


@ON_BOTH
async def test_queues_are_listed_by_name(jet: Jet) -> None:
    for name in ("mail", "mail_2", "a-b"):
        await jet.queue(name, exclusive=name == "mail")
    await jet.create_stream("JOBS_other", subjects=["other"])
    assert sorted(await jet.queue_names()) == ["a-b", "mail", "mail_2"]


async def test_jobs_are_listed_by_state_key_and_name(jet: Jet) -> None:
    queue = await jet.queue("garage", exclusive=True)

    @queue.job
    async def wash() -> None: ...

    @queue.job
    async def paint() -> None: ...

    for key in ("car.1", "car.2"):
        await queue.options(key=key).enqueue(wash)
        await queue.options(key=key, delay=60).enqueue(paint)
    assert [info.job async for info in queue.jobs(state="scheduled")] == ["paint", "paint"]
    assert [info.job async for info in queue.jobs(key="car.1")] == ["wash", "paint"]
    assert [info.key async for info in queue.jobs(job="wash")] == ["car.1", "car.2"]
    assert [info.key async for info in queue.jobs(job="wash", key="car.2", state="pending")] == ["car.2"]
    for wrong in ({"state": "failed"}, {"key": ""}, {"job": 7}):
        with pytest.raises(ConfigError):
            [_ async for _ in queue.jobs(**wrong)]  # type: ignore[arg-type]
