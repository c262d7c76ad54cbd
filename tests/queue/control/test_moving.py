"""Moving jobs to another queue."""

from __future__ import annotations

import asyncio

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts, JobHandle, JobNotFoundError, JobNotMovedError
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import drain

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])
jobs = pelton.Jobs()


@jobs.job
async def wash(car: str) -> str:
    return f"{car} washed"


@ON_BOTH
@BOTH_KINDS
async def test_waiting_and_scheduled_jobs_are_moved(jet: Jet, exclusive: bool) -> None:
    here = await jet.queue("here", jobs=jobs, exclusive=exclusive, lease=5)
    there = await jet.queue("there", jobs=jobs, exclusive=not exclusive, lease=5)
    plain = await here.options(key="k.1").enqueue(wash, "car1")
    unique = await here.options(unique="one", key="k.1").enqueue(wash, "car2")
    later = await here.options(delay=3600).enqueue(wash, "car3")
    moved = [await here.move(handle.id, there) for handle in (plain, unique, later)]
    assert await here.counts() == JobCounts(cancelled=3)
    assert await there.counts() == JobCounts(pending=2, scheduled=1)
    assert (await moved[0].info()).key == "k.1"
    assert "moved to queue 'there'" in (await plain.outcome(timeout=60)).error
    assert (await there.options(unique="one", key="k.1").enqueue(wash, "car4")).id == moved[1].id
    await drain(there)
    assert await moved[0].value(timeout=60) == "car1 washed"
    assert await moved[1].value(timeout=60) == "car2 washed"
    assert (await moved[2].info()).state == "scheduled"


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("key", ["", "k"])
async def test_running_and_ended_jobs_stay(jet: Jet, exclusive: bool, key: str) -> None:
    here = await jet.queue("here", jobs=jobs, exclusive=exclusive, lease=5)
    there = await jet.queue("there", jobs=jobs)
    handle = await here.options(key=key).enqueue(wash, "car1")
    async with here.claims() as claims:
        [claimed] = await claims.take(1, timeout=20)
        with pytest.raises(JobNotMovedError, match="running"):
            await here.move(handle.id, there)
        claimed.complete()
        assert await claims.settle([claimed]) == []
    with pytest.raises(JobNotMovedError, match="completed"):
        await here.move(handle.id, there)
    assert await there.counts() == JobCounts()


@ON_BOTH
async def test_of_two_moves_one_counts(jet: Jet) -> None:
    here, there = await jet.queue("here", jobs=jobs), await jet.queue("there", jobs=jobs)
    handles = await here.enqueue_many([wash.bind(f"car{number}") for number in range(8)])
    moves = [here.move(handle.id, there) for handle in handles for _ in range(2)]
    found = await asyncio.gather(*moves, return_exceptions=True)
    assert {type(one) for one in found} <= {JobHandle, JobNotMovedError}
    assert await here.counts() == JobCounts(cancelled=8)
    assert await there.counts() == JobCounts(pending=8)


@ON_BOTH
async def test_a_duplicate_is_not_moved(jet: Jet) -> None:
    here, there = await jet.queue("here", jobs=jobs), await jet.queue("there", jobs=jobs)
    await there.options(unique="one").enqueue(wash, "car1")
    handle = await here.options(unique="one").enqueue(wash, "car2")
    with pytest.raises(JobNotMovedError, match="duplicate"):
        await here.move(handle.id, there)
    assert (await handle.info()).state == "pending"


async def test_where_jobs_cannot_be_moved(jet: Jet, another: OpenQueue) -> None:
    here = await jet.queue("here", jobs=jobs)
    handle = await here.enqueue(wash, "car1")
    for other in (here, await another("there")):
        with pytest.raises(ConfigError, match="another queue of the same opening"):
            await here.move(handle.id, other)
    with pytest.raises(JobNotFoundError):
        await here.move("77", await jet.queue("there"))


@ON_BOTH
async def test_it_goes_to_a_queue_not_to_a_name(jet: Jet) -> None:
    here = await jet.queue("here", jobs=jobs)
    handle = await here.enqueue(wash, "car1")
    with pytest.raises(ConfigError, match=r"move takes the other queue itself: await jet.queue\('there'\)"):
        await here.move(handle.id, "there")  # type: ignore[arg-type]  # what is refused
    assert await here.counts() == JobCounts(pending=1)
