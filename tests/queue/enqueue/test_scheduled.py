"""Jobs with a time: delayed, scheduled and expiring ones; and unique jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import drain, working

jobs = pelton.Jobs()


@jobs.job
async def wash(car: str, wax: bool = False) -> str:
    return f"{car} washed"


@jobs.job
async def order(ran: str) -> str:
    return ran


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_delayed_job_starts_when_it_is_due(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    later = await queue.options(delay=1.5, key="car.1").enqueue(wash, "car1")
    free = await queue.options(at=datetime.now(UTC) + timedelta(seconds=1.5)).enqueue(wash, "car2")
    far = await queue.options(delay=3600, key="car.1").enqueue(wash, "car4")
    now = await queue.options(key="car.1").enqueue(wash, "car3")
    info = await later.info()
    assert (info.job, info.key, info.id) == ("wash", "car.1", later.id)
    assert info.due > info.enqueued_at
    assert (await far.info()).state == "scheduled"
    assert (await queue.counts()).unfinished == 4
    assert {found.state async for found in queue.jobs()} == {"pending", "scheduled"}
    async with working(queue):
        assert await now.value(timeout=60) == "car3 washed"
        assert await later.value(timeout=60) == "car1 washed"
        assert await free.value(timeout=60) == "car2 washed"
    ended = (await later.info()).outcome
    assert ended is not None
    assert ended.started_at >= info.due
    assert (ended.id, (await later.info()).state) == (later.id, "completed")
    # Those after it did not wait for it.
    assert await queue.counts() == JobCounts(completed=3, scheduled=1)


async def complete_due(queue: pelton.Queue) -> int:
    """Complete what can be taken now; return how many jobs that were."""
    async with queue.claims() as claims:
        found = await claims.take(10, timeout=0)
        for job in found:
            job.complete()
        assert await claims.settle(found) == []
        return len(found)


async def test_delays_follow_the_clock() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", jobs=jobs)
        hour = await queue.options(delay=timedelta(hours=1)).enqueue(wash, "car1")
        for seconds, done in ((0, 0), (3599, 0), (2, 1)):
            runtime.clock.advance(seconds)
            assert await complete_due(queue) == done
            assert (await hour.info()).state == ("completed" if done else "scheduled")


async def test_a_time_in_the_past_is_now(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    past = await queue.options(at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(wash, "car1")
    none = await queue.options(delay=0).enqueue(wash, "car2")
    assert await queue.counts() == JobCounts(pending=2)
    await drain(queue)
    assert await past.value() == "car1 washed"
    assert await none.value() == "car2 washed"


async def test_a_job_that_nobody_starts_in_time_expires() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", jobs=jobs)
        short = await queue.options(ttl=10).enqueue(wash, "car1")
        delayed = await queue.options(ttl=10, delay=5).enqueue(wash, "car2")
        runtime.clock.advance(12)
        assert await complete_due(queue) == 1
        outcome = await short.outcome()
        assert (outcome.state, outcome.attempt) == ("expired", 0)
        with pytest.raises(pelton.JobFailedError, match="time to live"):
            await short.value()
        assert (await delayed.info()).state == "completed"
        assert await queue.counts() == JobCounts(completed=1, expired=1)
        assert [found.id async for found in queue.history("expired")] == [short.id]


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_one_unfinished_job_of_the_same_arguments(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    unique = queue.options(unique="arguments", key="k")
    first = await unique.enqueue(wash, "car1", wax=True)
    same = await unique.enqueue("wash", wax=True, car="car1")
    other = await unique.enqueue(wash, "car2")
    plain = await queue.options(key="k").enqueue(wash, "car1", wax=True)
    assert (same.id, first.duplicate, same.duplicate) == (first.id, False, True)
    assert not other.duplicate
    assert not plain.duplicate
    await drain(queue)
    again = await unique.enqueue(wash, "car1", wax=True)
    assert not again.duplicate
    assert again.id != first.id
    await drain(queue)
    assert await queue.counts() == JobCounts(completed=4)


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_scheduled_job_is_unique_from_the_start(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    later = await queue.options(unique="nightly", delay=1.2, key="a.b").enqueue(wash, "car1")
    for options in ({"delay": 5}, {}):
        same = await queue.options(unique="nightly", key="a.b", **options).enqueue(wash, "car2")  # type: ignore[arg-type]
        assert (same.id, same.duplicate) == (later.id, True)
    async with working(queue):
        assert await later.value(timeout=60) == "car1 washed"
    again = await queue.options(unique="nightly", delay=60, key="a.b").enqueue(wash, "car1")
    assert not again.duplicate
    assert again.id != later.id
    assert (await again.info()).state == "scheduled"
    assert (await later.info()).state == "completed"


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_scheduled_job_is_replaced(jet: Jet, exclusive: bool) -> None:
    """Debounce: the last arguments count, and the time starts anew."""
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    first = await queue.options(unique="index", replace=True, delay=3600, key="k.1").enqueue(wash, "car1")
    second = await queue.options(unique="index", replace=True, delay=1800, key="k.1").enqueue(wash, "car2")
    assert await queue.counts() == JobCounts(scheduled=1)
    later = queue.options(unique="index", replace=True, delay=1.2, key="k.1")
    third = await later.enqueue(wash, "car3")
    assert first.id == second.id == third.id
    assert (await queue.counts()).unfinished == 1
    assert (await first.info()).due < (await first.info()).enqueued_at + 5e9
    async with working(queue):
        assert await first.value(timeout=60) == "car3 washed"
    assert await queue.counts() == JobCounts(completed=1)
    fresh = await later.enqueue(wash, "car4")
    assert fresh.id != first.id


async def test_a_job_that_is_due_is_not_replaced(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    first = await queue.options(unique="index").enqueue(wash, "car1")
    second = await queue.options(unique="index", replace=True, delay=60).enqueue(wash, "car2")
    third = await queue.options(unique="index", replace=True, delay=0).enqueue(wash, "car3")
    assert {second.id, third.id} == {first.id}
    assert second.duplicate
    await drain(queue)
    assert await first.value() == "car1 washed"


async def test_a_scheduled_job_is_replaced_in_a_transaction(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    first = await queue.options(unique="index", delay=60).enqueue(wash, "car1")
    async with jet.transaction() as tx:
        second = await tx.queue(queue).options(unique="index", replace=True, delay=3600).enqueue(wash, "car2")
    assert second.id == first.id
    info = await first.info()
    assert info.due > info.enqueued_at + 3000e9


async def test_unique_by_key(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=True)
    one = queue.options(unique="key", key="car1")
    first, same = await one.enqueue(wash, "x"), await one.enqueue(order, "y")
    assert same.id == first.id
    assert not (await queue.options(unique="key", key="car2").enqueue(wash, "x")).duplicate
    with pytest.raises(ConfigError, match="give key"):
        queue.options(unique="key")


async def test_a_running_and_a_retried_job_stay_unique(jet: Jet) -> None:
    queue = await jet.queue("garage")
    began, go_on = asyncio.Event(), asyncio.Event()

    @queue.job(backoff=pelton.Backoff(base=0.01))
    async def job() -> None:
        began.set()
        await go_on.wait()
        if not (again := await queue.options(unique="arguments").enqueue(job)).duplicate:
            raise pelton.PermanentJobError(f"{again} is new")
        raise ValueError

    handle = await queue.options(unique="arguments").enqueue(job)
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        assert (await queue.options(unique="arguments").enqueue(job)).id == handle.id
        go_on.set()
        outcome = await handle.outcome(timeout=60)
    assert (outcome.state, outcome.attempt) == ("failed", 5)


async def test_jobs_of_a_key_keep_their_order_whatever_place_they_have(jet: Jet) -> None:
    queue = await jet.queue("garage", exclusive=True)
    ran = list[int]()
    running = 0

    @queue.job
    async def job(n: int) -> None:
        nonlocal running
        running += 1
        assert running == 1, "two jobs of a key run at once"
        await asyncio.sleep(0)
        ran.append(n)
        running -= 1

    for number in range(12):
        if number % 3 == 0:
            await queue.options(key="k", unique=f"u{number}").enqueue(job, number)
        else:
            await queue.options(key="k").enqueue(job, number)
    await drain(queue)
    assert ran == list(range(12))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": 1, "at": datetime.now(UTC)}, "delay or at"),
        ({"at": datetime(2026, 1, 1)}, "at"),
        ({"ttl": 0}, "ttl"),
        ({"unique": 7}, "unique"),
        ({"unique": "a", "idempotency_key": "b"}, "one of them"),
        ({"unique": "a", "replace": True}, "replace is for scheduled unique jobs"),
        ({"delay": 1, "replace": True}, "replace is for scheduled unique jobs"),
        ({"unique": "a", "delay": 1, "replace": "yes"}, "replace is 'yes'"),
        ({"dealy": 1}, "no option 'dealy'"),
    ],
)
async def test_wrong_options_are_refused_before_anything_is_stored(
    jet: Jet, options: dict[str, object], text: str
) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    with pytest.raises(ConfigError, match=text):
        queue.options(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=text):
        wash.options(**options)  # type: ignore[arg-type]
    assert await queue.counts() == JobCounts()


async def test_scheduled_and_unique_jobs_in_a_transaction(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    async with jet.transaction() as tx:
        later = await tx.queue(queue).options(delay=60).enqueue(wash, "car1")
        first = await tx.queue(queue).options(unique="once").enqueue(wash, "car2")
    assert (await later.info()).state == "scheduled"
    async with jet.transaction() as tx:
        same = await tx.queue(queue).options(unique="once").enqueue(wash, "car3")
    assert (same.id, same.duplicate) == (first.id, True)
    assert await queue.counts() == JobCounts(pending=1, scheduled=1)


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_job_with_an_id_of_its_own_is_stored_once(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    named = queue.options(id="order 7/ä", key="k")
    first, same = await named.enqueue(wash, "car1"), await named.enqueue(wash, "car2")
    later = await queue.options(id="order 8", delay=60).enqueue(wash, "car3")
    again = await queue.options(id="order 8").enqueue(wash, "car4")
    assert (same.id, first.duplicate, same.duplicate) == (first.id, False, True)
    assert (again.id, again.duplicate) == (later.id, True)
    await drain(queue)
    assert await first.value() == "car1 washed"
    assert await queue.counts() == JobCounts(completed=1, scheduled=1)
    assert not (await named.enqueue(wash, "car5")).duplicate, "the first has ended"
    with pytest.raises(ConfigError, match="one of them"):
        queue.options(id="a", unique="b")
