"""One call of a function for many jobs, each of which ends by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pelton import ConfigError, Jet, JobArgumentsError
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


@ON_BOTH
@BOTH_KINDS
async def test_jobs_share_a_call_and_each_ends_by_itself(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    calls = list[list[int]]()

    @queue.job(batch=4, wait=5, max_attempts=1)
    async def job(items: list[int]) -> list[int | Exception]:
        calls.append(items)
        return [ValueError(f"odd {n}") if n % 2 else n * 10 for n in items]

    handles = [await queue.options(key=f"k{n}").enqueue(job, n) for n in range(8)]
    await drain(queue, concurrency=8)
    assert sorted(map(len, calls)) == [4, 4]
    assert sorted(item for call in calls for item in call) == list(range(8))
    outcomes = [await handle.outcome() for handle in handles]
    assert [o.value() for o in outcomes[::2]] == [0, 20, 40, 60]
    assert [o.error for o in outcomes[1::2]] == [f"ValueError: odd {n} (attempt 1 of 1)" for n in (1, 3, 5, 7)]


async def test_a_batch_starts_when_it_has_waited(queue: Queue) -> None:
    calls = list[list[str]]()

    @queue.job(batch=100, wait=0.05)
    async def job(items: list[str]) -> None:
        calls.append(items)

    await job.enqueue_many([("a",), ("b",)])
    await drain(queue)
    assert sorted(item for call in calls for item in call) == ["a", "b"]


async def test_a_call_that_raises_fails_all_and_they_are_retried(queue: Queue) -> None:
    calls = list[int]()

    @queue.job(batch=3, wait=1, backoff=FAST, max_attempts=2)
    async def job(items: list[int]) -> Any:
        calls.append(len(items))
        if len(calls) == 1:
            raise OSError("no line")
        return items[:1] if len(calls) == 2 else items

    handles = await job.enqueue_many([(n,) for n in range(3)])
    await drain(queue)
    outcomes = [await handle.outcome() for handle in handles]
    assert {(o.state, o.attempt) for o in outcomes} == {("failed", 2)}
    assert "was given 3 items, and returned 1 results" in outcomes[0].error


async def test_a_job_that_is_cancelled_leaves_its_batch(queue: Queue) -> None:
    begun = asyncio.Event()
    ended = asyncio.Event()

    @queue.job(batch=1)
    async def job(items: list[int]) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    handle = await job.enqueue(1)
    async with working(queue):
        await asyncio.wait_for(begun.wait(), 60)
        assert await handle.cancel()
        assert (await handle.outcome(timeout=60)).state == "cancelled"
        await asyncio.wait_for(ended.wait(), 60)


async def test_items_are_checked_and_what_cannot_be_is_refused(queue: Queue) -> None:
    @queue.job(batch=2)
    async def job(items: list[int]) -> list[int]:
        return items

    with pytest.raises(JobArgumentsError):
        await job.enqueue("one")  # type: ignore[arg-type]
    assert await job([1, 2]) == [1, 2]
    for options in ({"batch": 0}, {"batch": 2, "wait": -1}, {"batch": 2, "process": True}):
        with pytest.raises(ConfigError, match=r"job 'wrong': (batch|wait)"):
            queue.job(name="wrong", **options)(job.function)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="async functions"):
        queue.job(name="wrong", batch=2)(lambda items: None)  # type: ignore[arg-type, return-value]
