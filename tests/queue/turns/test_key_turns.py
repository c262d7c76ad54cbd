"""Keys of exclusive queues take turns, and one whose next job has a priority comes first; each keeps its order."""

from __future__ import annotations

import asyncio
import json

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, ended, waiting, working

jobs = pelton.Jobs()


@jobs.job(backoff=FAST)
async def wash(car: str) -> str:
    return car


@jobs.job(backoff=FAST, max_attempts=2)
async def fail(context: pelton.JobContext, car: str) -> str:
    if context.attempt == 1:
        raise ValueError(car)
    return car


async def garage(jet: Jet) -> Queue:
    return await jet.queue("garage", jobs=jobs, exclusive=True)


async def enqueue(queue: Queue, *calls: tuple[str, int]) -> None:
    """Enqueue a job for each key and priority; its argument is both."""
    await queue.enqueue_many(
        [wash.bind(f"{key}{priority}").with_options(key=key, priority=priority) for key, priority in calls]
    )


async def order(queue: Queue) -> list[str]:
    """Return the results of the jobs that have ended, in the order in which they started."""
    done = [outcome for outcome in await ended(queue) if outcome.state == "completed"]
    return [str(one.value()) for one in sorted(done, key=lambda outcome: outcome.started_at)]


async def drained(queue: Queue) -> list[str]:
    await drain(queue, concurrency=1)
    return await order(queue)


@ON_BOTH
async def test_the_key_whose_next_job_has_the_highest_priority_is_next(jet: Jet) -> None:
    queue = await garage(jet)
    await enqueue(queue, *((f"{'abc'[n]}", priority) for n, priority in enumerate((0, 2, 3))))
    await enqueue(queue, ("d", 1), ("e", 3), ("f", 2))
    assert [info.priority for info in await waiting(queue)] == [0, 2, 3, 1, 3, 2]
    assert await queue.counts() == JobCounts(pending=6)
    found = await drained(queue)
    assert [int(one[1]) for one in found] == [3, 3, 2, 2, 1, 0]


@ON_BOTH
async def test_within_a_key_the_order_stays(jet: Jet) -> None:
    queue = await garage(jet)
    async with queue.claims() as claims:
        assert await claims.take() == []
        await enqueue(queue, ("a", 0), ("a", 3), ("b", 1), ("a", 1), ("c", 0))
        # Whether or not the worker was there when they were enqueued.
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < 5:
                for job in await claims.take(1, timeout=5):
                    found.append(json.loads(job.args)["car"])
                    job.complete()
                    assert await claims.settle([job]) == []
    assert found[0] == "b1"
    assert [one for one in found if one[0] == "a"] == ["a0", "a3", "a1"]
    # As soon as the first job of "a" has ended, the next one has the highest priority.
    assert found[found.index("a0") + 1] == "a3"


@ON_BOTH
async def test_one_of_eight_has_a_lower_priority(jet: Jet) -> None:
    queue = await garage(jet)
    await enqueue(queue, *((f"low{n}", 0) for n in range(3)), *((f"high{n}", 2) for n in range(20)))
    found = await drained(queue)
    assert [place for place, one in enumerate(found, 1) if one.startswith("low")][:2] == [8, 16]


@ON_BOTH
async def test_a_key_with_many_jobs_has_one_turn_in_a_round(jet: Jet) -> None:
    queue = await garage(jet)
    await enqueue(queue, *[("hot", 0)] * 30, ("b", 0), ("c", 0), ("b", 0))
    found = [one[:-1] for one in await drained(queue)]
    assert sorted(found[:3]) == ["b", "c", "hot"]
    assert sorted(found[3:5]) == ["b", "hot"]
    assert found[5:] == ["hot"] * 28


@ON_BOTH
async def test_a_priority_is_kept_with_a_key(jet: Jet) -> None:
    queue, plain = await garage(jet), await jet.queue("plain", jobs=jobs)
    retried = await queue.options(key="a", priority=2).enqueue(fail, "a")
    later = await queue.options(key="b", priority=3, delay=0.05).enqueue(wash, "b")
    first = await queue.options(key="c", priority=1, unique="arguments").enqueue(wash, "c")
    other = await queue.options(key="c", priority=3, unique="arguments").enqueue(wash, "c")
    assert (other.duplicate, other.id) == (True, first.id)
    label = await plain.options(priority=2, key="d").enqueue(wash, "d")
    moved = await plain.move(label.id, queue)
    handles = (retried, later, first, moved)
    assert [(info.key, info.priority) for info in [await one.info() for one in handles]] == [
        ("a", 2), ("b", 3), ("c", 1), ("d", 2)
    ]  # fmt: skip
    async with asyncio.timeout(30), working(queue, concurrency=2):
        for handle in handles:
            await handle.outcome(timeout=60)
    assert sorted(await order(queue)) == ["a", "b", "c", "d"]


@ON_BOTH
async def test_what_is_cancelled_is_found_at_its_priority(jet: Jet) -> None:
    queue = await garage(jet)
    await enqueue(queue, ("a", 0), ("a", 2), ("b", 1))
    placed = await queue.options(key="a", priority=3, id="mine").enqueue(wash, "x")
    assert await placed.cancel()
    infos = await waiting(queue)
    assert await queue.cancel(infos[1].id)
    assert await drained(queue) == ["b1", "a0"]


async def test_jobs_of_a_schedule_have_a_key_and_a_priority(jet: Jet) -> None:
    queue = await garage(jet)
    await queue.schedule("tick", "wash", args=("car",), every=1, key="car1", priority=1)
    [found] = await queue.schedules()
    assert (found.key, found.priority) == ("car1", 1)


@ON_BOTH
async def test_a_tenant_with_a_key_is_refused(jet: Jet) -> None:
    queue = await garage(jet)
    with pytest.raises(ConfigError, match="the keys themselves take turns"):
        await queue.options(tenant="acme", key="a").enqueue(wash, "a")


async def test_a_queue_of_an_older_version_gets_them(jet: Jet) -> None:
    queue = await garage(jet)
    await enqueue(queue, ("a", 0), ("a", 0), ("b", 0))
    async with queue.claims() as claims:
        assert len(await claims.take(1)) == 1
        stream = await jet.stream("JOBS_garage")
        subjects = [subject for subject in stream.config.subjects if ".key" not in subject or ".key." in subject]
        await stream.delete_consumer("workers")
        await jet.update_stream("JOBS_garage", subjects=subjects)
        await stream.create_consumer(
            durable_name="workers",
            filter_subject="$JOBS.garage.key.>",
            max_ack_pending_per_subject=1,
            max_ack_pending_subject_end="%",
            max_ack_pending=-1,
            ack_wait=30,
            max_deliver=-1,
        )
    again = await garage(jet)
    await enqueue(again, ("c", 3))
    assert (await drained(again))[0] == "c3"
