"""Jobs with a priority start first, wherever they were enqueued from, and the others still start."""

from __future__ import annotations

import asyncio
import json

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts
from pelton.queue import ClaimedJob, Queue
from pelton.queue.model.turns import BYPASS
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, Child, drain, ended, waiting, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])
jobs = pelton.Jobs()


@jobs.job(backoff=FAST)
async def wash(car: str) -> str:
    return f"{car} washed"


@jobs.job(backoff=FAST, max_attempts=2)
async def fail(context: pelton.JobContext, car: str) -> str:
    if context.attempt == 1:
        raise ValueError(car)
    return car


async def enqueue(queue: Queue, priority: int, count: int) -> None:
    calls = [wash.bind(f"{priority}.{n}").with_options(priority=priority) for n in range(count)]
    await queue.enqueue_many(calls)


def car_of(job: ClaimedJob) -> str:
    return str(json.loads(job.args)["car"])


async def order(queue: Queue) -> list[int]:
    """Return the priorities of the jobs that have ended, in the order in which they started."""
    outcomes = sorted(await ended(queue), key=lambda outcome: outcome.started_at)
    return [int(str(outcome.value())[0]) for outcome in outcomes]


@ON_BOTH
@BOTH_KINDS
async def test_the_highest_priority_starts_first(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    for priority in (0, 2, 1, 3):
        await enqueue(queue, priority, 3)
    assert [(info.priority, info.state) for info in await waiting(queue)][3] == (2, "pending")
    assert await queue.counts() == JobCounts(pending=12)
    await drain(queue, concurrency=1)
    found = await order(queue)
    # One of eight comes from below.
    assert found[:7] == [3, 3, 3, 2, 2, 2, 1]
    assert sorted(found[7:]) == [0, 0, 0, 1, 1]
    assert await queue.counts() == JobCounts(completed=12)


@ON_BOTH
async def test_those_below_are_bypassed_by_seven_at_most(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await enqueue(queue, 0, 5)
    await enqueue(queue, 3, 40)
    await drain(queue, concurrency=1)
    found = await order(queue)
    places = [n for n, priority in enumerate(found) if not priority]
    # As soon as jobs turn out to be quick, several are taken at once.
    assert [place // BYPASS for place in places[:4]] == [0, 1, 2, 3]
    assert places[4] < 45


@ON_BOTH
@BOTH_KINDS
async def test_a_waiting_worker_takes_them_at_once(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    async with working(queue, concurrency=2):
        for priority in (0, 1, 0, 3, 3, 2):
            handle = await queue.options(priority=priority).enqueue(wash, str(priority))
            assert await handle.value(timeout=60) == f"{priority} washed"
        handles = await queue.enqueue_many([wash.bind(str(n)).with_options(priority=n % 4) for n in range(40)])
        for n, one in enumerate(handles):
            assert await one.value(timeout=60) == f"{n} washed"


@ON_BOTH
@BOTH_KINDS
async def test_a_busy_worker_takes_them_next(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    go, began = asyncio.Event(), asyncio.Semaphore(0)

    @queue.job
    async def wait() -> None:
        began.release()
        await go.wait()

    blocking = [await wait.enqueue() for _ in range(2)]
    await enqueue(queue, 0, 30)
    async with working(queue, concurrency=2), asyncio.timeout(60):
        for _ in blocking:
            await began.acquire()
        await enqueue(queue, 3, 2)
        go.set()
        while (await queue.counts()).unfinished:
            await asyncio.sleep(0.01)
    done = [outcome for outcome in await ended(queue) if outcome.job == "wash"]
    found = [str(outcome.value())[0] for outcome in sorted(done, key=lambda outcome: outcome.started_at)]
    # It finds out about them now and then, and may have taken some ahead.
    assert "3" in found, found


@ON_BOTH
@BOTH_KINDS
async def test_claims_take_them_first(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    await enqueue(queue, 0, 2)
    await enqueue(queue, 2, 2)
    found: list[str] = []
    async with queue.claims() as claims:
        while taken := await claims.take(1):
            found += map(car_of, taken)
            for job in taken:
                job.complete()
            await claims.settle(taken)
        assert found == ["2.0", "2.1", "0.0", "0.1"]
        taking = asyncio.create_task(claims.take(5, timeout=20))
        await asyncio.sleep(0)
        await enqueue(queue, 1, 1)
        [job] = await taking
        await enqueue(queue, 3, 1)
        [other] = await claims.take(5)
        assert (car_of(job), car_of(other)) == ("1.0", "3.0")
        for one in (job, other):
            one.complete()
        assert await claims.settle([job, other]) == []
    assert await queue.counts() == JobCounts(completed=6)


@ON_BOTH
@BOTH_KINDS
async def test_with_delays_ids_and_unique_jobs(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    later = await queue.options(delay=1, priority=3).enqueue(wash, "3")
    named = await queue.options(id="one", priority=2).enqueue(wash, "2")
    unique = await queue.options(unique="text", priority=1).enqueue(wash, "1")
    again = [
        await queue.options(id="one").enqueue(wash, "0"),
        await queue.options(unique="text", priority=3, delay=5).enqueue(wash, "0"),
    ]
    assert [(handle.id, handle.duplicate) for handle in again] == [(named.id, True), (unique.id, True)]
    debounced = [
        await queue.options(unique="d", delay=3600, replace=True, priority=n).enqueue(wash, str(n)) for n in (1, 3)
    ]
    assert debounced[0].id == debounced[1].id
    assert (await later.info()).priority == 3
    found = {handle.id: await handle.info() for handle in (named, unique, debounced[0])}
    assert [(info.priority, info.state) for info in found.values()] == [
        (2, "pending"), (1, "pending"), (3, "scheduled"),
    ]  # fmt: skip
    assert await debounced[0].cancel()
    async with working(queue):
        for handle, value in ((later, "3"), (named, "2"), (unique, "1")):
            assert await handle.value(timeout=60) == f"{value} washed"
    assert (await queue.options(id="one", priority=1).enqueue(wash, "0")).duplicate is False


@ON_BOTH
@BOTH_KINDS
async def test_they_can_be_cancelled_moved_purged_and_redriven(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    other = await jet.queue("other", jobs=jobs, exclusive=not exclusive)
    first = await queue.options(priority=3).enqueue(wash, "3")
    second = await queue.options(priority=2, delay=3600).enqueue(wash, "2")
    third = await queue.options(priority=1, id="third").enqueue(wash, "1")
    assert await first.cancel()
    moved = [await queue.move(handle.id, other) for handle in (second, third)]
    assert [(await handle.info()).priority for handle in moved] == [2, 1]
    await drain(other)
    assert await moved[1].value(timeout=60) == "1 washed"
    await enqueue(queue, 3, 2)
    await enqueue(queue, 0, 2)
    assert await queue.purge(job="wash") == 4

    @queue.job(max_attempts=1)
    async def broken(car: str) -> None:
        raise ValueError(car)

    failed = await queue.options(priority=2).enqueue(broken, "2")
    await drain(queue)
    again = await queue.redrive(failed.id)
    info = await again.info()
    assert (info.priority, info.state) == (2, "pending")


@ON_BOTH
async def test_a_purge_spares_only_what_may_run(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await enqueue(queue, 0, 2)
    await enqueue(queue, 3, 1)
    await enqueue(queue, 1, 1)
    async with queue.claims() as claims:
        assert list(map(car_of, await claims.take(1))) == ["3.0"]
        assert await queue.purge() == 3
        assert [info.priority for info in await waiting(queue)] == [3]


@ON_BOTH
@BOTH_KINDS
async def test_retries_keep_their_priority(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    handles = [await queue.options(priority=n).enqueue(fail, str(n)) for n in range(4)]
    await drain(queue)
    for n, handle in enumerate(handles):
        assert await handle.value(timeout=60) == str(n)
        assert (await handle.outcome()).attempt == 2


@ON_BOTH
async def test_the_job_of_a_lost_lease_comes_again(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs, lease=1)
    handle = await queue.options(priority=3).enqueue(wash, "3")
    async with queue.claims() as claims:
        assert len(await claims.take(1)) == 1
        claims._held.stop()
        async with working(queue):
            assert await handle.value(timeout=60) == "3 washed"
        assert (await handle.outcome()).attempt == 2


@ON_BOTH
async def test_a_killed_worker_costs_its_job_one_attempt(jet: Jet, path: str) -> None:
    queue = await jet.queue("shop", exclusive=True, lease=1)
    handle = await queue.options(priority=2).enqueue("endless")
    with Child("work", path, "1") as first:
        await first.says("started 1")
        first.process.kill()
        with Child("work", path, "1") as second:
            await second.says("started 2")
            assert (await handle.info()).priority == 2


@ON_BOTH
async def test_schedules_have_a_priority(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    schedule = await queue.schedule("tick", wash, args=("car",), every=1, priority=2)
    assert schedule.priority == 2
    async with working(queue):
        async with asyncio.timeout(60):
            while not await ended(queue):
                await asyncio.sleep(0.05)
    assert (await queue.schedules())[0].last_job


async def test_a_run_of_another_priority_is_an_earlier_run_all_the_same() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", jobs=jobs)
        for priority in (1, 3):
            await queue.schedule("tick", wash, args=("car",), every=60, priority=priority)
            runtime.clock.advance(61)
            assert (await queue.counts()).pending == 1 + (priority == 3)
        await queue.unschedule("tick")
        await drain(queue, concurrency=1)
        assert [outcome.state for outcome in await ended(queue)] == ["cancelled", "completed"]


async def test_in_a_transaction_and_by_name(jet: Jet) -> None:
    queue = await jet.queue("garage")
    async with jet.transaction() as tx:
        handle = await tx.queue(queue).options(priority=1).enqueue("wash", car="1")
        plain = await tx.queue(queue).enqueue("wash", car="0")
    other = await queue.options(priority=2).enqueue("wash", car="2")
    assert [(await one.info()).priority for one in (handle, plain, other)] == [1, 0, 2]


@pytest.mark.parametrize("priority", [4, -1, "1", 1.0, True, None])
async def test_what_is_no_priority(queue: Queue, priority: object) -> None:
    with pytest.raises(ConfigError, match=r"priority is .* from 0 to 3"):
        queue.options(priority=priority)  # type: ignore[typeddict-item]
    with pytest.raises(ConfigError, match=r"priority is .* from 0 to 3"):
        await queue.schedule("tick", "wash", every=1, priority=priority)  # type: ignore[arg-type]


@ON_BOTH
async def test_a_queue_of_an_older_version_gets_them(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await queue.enqueue(wash, "0")
    stream = await jet.stream("JOBS_garage")
    for name in ("rank1", "rank2", "rank3"):
        await stream.delete_consumer(name)
    # As the first version made it: one consumer took everything.
    await stream.create_consumer(durable_name="workers", ack_wait=30, max_ack_pending=-1, max_deliver=-1)
    await jet.update_stream("JOBS_garage", subjects=["$JOBS.garage.key.>", "$JOBS.garage.free"])
    again = await jet.queue("garage", jobs=jobs)
    await again.options(priority=3).enqueue(wash, "3")
    await drain(again, concurrency=1)
    assert await order(again) == [3, 0]


@ON_BOTH
async def test_workers_share_them(jet: Jet, another: OpenQueue) -> None:
    queue, other = await jet.queue("garage", jobs=jobs), await another("garage", jobs=jobs)
    async with working(queue, other, concurrency=3):
        handles = await queue.enqueue_many([wash.bind(str(n)).with_options(priority=n % 4) for n in range(200)])
        for n, handle in enumerate(handles):
            assert await handle.value(timeout=60) == f"{n} washed"
            assert (await handle.outcome()).attempt == 1
    assert await queue.counts() == JobCounts(completed=200)


async def test_pausing_holds_them_up(queue: Queue) -> None:
    queue.job(name="wash")(wash.function)
    await queue.pause()
    await queue.options(priority=3).enqueue("wash", car="3")
    async with queue.claims() as claims:
        assert await claims.take(1) == []
        await queue.resume()
        assert len(await claims.take(1)) == 1
