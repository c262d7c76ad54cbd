"""Attempts that end in one round of the event loop are settled together, each as if it were alone."""

import asyncio
import gc
from collections.abc import Sequence

import pytest

from pelton.api import PeltonError, StoreBusyError
from pelton.queue import JobContext, JobCounts, Queue
from pelton.queue.job_source import ConsumerJobSource
from pelton.queue.model.records import Ended
from pelton.queue.run.slots import IdleSlots
from tests.queue.helpers import drain, ended, working


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many attempts were settled together, each time."""
    counts: list[int] = []
    settle_many = ConsumerJobSource.settle_many

    async def counted(source: ConsumerJobSource, endings: Sequence[Ended]) -> list[PeltonError | None]:
        counts.append(len(endings))
        return await settle_many(source, endings)

    monkeypatch.setattr(ConsumerJobSource, "settle_many", counted)
    return counts


async def test_quick_jobs_do_not_wait_for_the_settlement_of_others(queue: Queue, together: list[int]) -> None:
    @queue.job
    async def job(number: int) -> int:
        return number

    await job.enqueue_many([(number,) for number in range(64)])
    await drain(queue, concurrency=16)
    assert [outcome.value() for outcome in sorted(await ended(queue), key=lambda o: int(o.id))] == [*range(64)]
    assert max(together) <= 4 * 16
    assert sum(together) > 48


async def test_what_ends_during_a_settlement_is_settled_after_it_and_together(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_many, counts = ConsumerJobSource.settle_many, list[int]()
    settling, may_settle, started = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)

    async def held_up(source: ConsumerJobSource, endings: Sequence[Ended]) -> list[PeltonError | None]:
        counts.append(len(endings))
        settling.set()
        await may_settle.wait()
        return await settle_many(source, endings)

    monkeypatch.setattr(ConsumerJobSource, "settle_many", held_up)

    @queue.job
    async def first() -> None: ...

    @queue.job
    async def later() -> None:
        started.release()
        await settling.wait()

    await later.enqueue_many([()] * 4)
    await first.enqueue()
    async with working(queue, concurrency=5):
        async with asyncio.timeout(60):
            for _ in range(4):
                await started.acquire()
            await settling.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert counts == [1]
            may_settle.set()
            while (await queue.counts()).completed < 5:
                await asyncio.sleep(0.01)
    assert counts == [1, 4]


async def test_a_job_that_goes_on_holds_up_the_settlement_of_no_other(queue: Queue) -> None:
    started, goes_on = asyncio.Event(), asyncio.Event()

    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def slow() -> None:
        started.set()
        await goes_on.wait()

    await quick.enqueue_many([()] * 5)
    await slow.enqueue()
    async with working(queue, concurrency=7):
        await asyncio.wait_for(started.wait(), 60)
        while (await queue.counts()).completed < 5:
            await asyncio.sleep(0.01)
        assert await queue.counts() == JobCounts(running=1, completed=5)
        goes_on.set()
        while (await queue.counts()).completed < 6:
            await asyncio.sleep(0.01)


async def test_slow_jobs_run_in_all_slots_at_once_and_in_no_more(queue: Queue) -> None:
    running = most = 0

    @queue.job
    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    await job.enqueue_many([()] * 100)
    await drain(queue, concurrency=40)
    assert most == 40


async def test_one_whose_messages_are_refused_fails_alone(queue: Queue, together: list[int]) -> None:
    @queue.job(max_attempts=1)
    async def job(context: JobContext, number: int) -> None:
        if number == 3:
            context.emit("nobody.takes.this", b"")

    await job.enqueue_many([(number,) for number in range(20)])
    await drain(queue, concurrency=20)
    assert await queue.counts() == JobCounts(completed=19, failed=1)
    assert max(together) > 1


async def test_what_a_busy_store_refuses_together_is_settled_all_the_same(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_many = ConsumerJobSource.settle_many
    refused = 0

    async def busy_once(source: ConsumerJobSource, endings: Sequence[Ended]) -> list[PeltonError | None]:
        nonlocal refused
        if not refused:
            refused = len(endings)
            return [StoreBusyError("x")] * len(endings)
        return await settle_many(source, endings)

    monkeypatch.setattr(ConsumerJobSource, "settle_many", busy_once)

    @queue.job
    async def job(number: int) -> int:
        return number

    await job.enqueue_many([(number,) for number in range(20)])
    await drain(queue, concurrency=10)
    assert refused > 1
    assert await queue.counts() == JobCounts(completed=20)


async def test_jobs_with_and_without_keys_end_together(keyed: Queue, together: list[int]) -> None:
    @keyed.job
    async def job(number: int) -> int:
        return number

    await job.enqueue_many([(number,) for number in range(40)], keys=[f"k{n}" if n % 2 else "" for n in range(40)])
    await drain(keyed, concurrency=20)
    assert {outcome.value() for outcome in await ended(keyed)} == {*range(40)}


async def test_jobs_leave_nothing_for_the_garbage_collector(queue: Queue) -> None:
    @queue.job
    async def plain() -> None: ...

    @queue.job
    async def with_context(context: JobContext) -> None:
        context.check()

    async def garbage(jobs: int) -> int:
        await plain.enqueue_many([()] * jobs)
        await with_context.enqueue_many([()] * jobs)
        gc.collect()
        gc.disable()
        try:
            await drain(queue)
            return gc.collect()
        finally:
            gc.enable()

    await garbage(10)
    assert await garbage(400) < 400


async def _idle(idle: IdleSlots, woken: list[int], number: int) -> None:
    await idle.wait()
    woken.append(number)


async def test_idle_slots_wake_twice_as_many_each_time_and_survive_cancelled_ones() -> None:
    idle, woken = IdleSlots(), list[int]()
    resting = [asyncio.create_task(_idle(idle, woken, number)) for number in range(10)]
    await asyncio.sleep(0)
    idle.wake_anew(5)
    idle.wake(5)  # one is coming already
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(woken) == 1
    idle.wake(5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(woken) == 3
    left = [task for task in resting if not task.done()]
    left[0].cancel()
    left[-1].cancel()
    idle.wake(4)
    await asyncio.sleep(0.01)
    assert sum(task.cancelled() for task in resting) == 2
    idle.wake_all()
    await asyncio.wait(resting)
    assert len(woken) == 8
