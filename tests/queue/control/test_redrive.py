"""Redriving dead letters: in one step, once, edited, many; and discarding them."""

from __future__ import annotations

import pytest

import pelton
from pelton import ConfigError, Jet, JobArgumentsError, JobCounts, JobNotFoundError, StoreError
from pelton.cluster import publisher
from pelton.queue import JobContext, Queue
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import drain

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])
jobs = pelton.Jobs()


@jobs.job(max_attempts=1)
async def paint(car: str, colour: str = "none") -> str:
    if colour == "none":
        raise ValueError("no colour")
    return f"{car} is {colour}"


@jobs.job(max_attempts=1)
async def wash(car: str) -> None:
    raise ValueError("no water")


async def dead(queue: Queue) -> list[str]:
    return [letter.outcome.id async for letter in queue.dead_letters()]


@ON_BOTH
@BOTH_KINDS
async def test_a_redriven_job_runs_again_with_other_arguments(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    handle = await queue.options(key="k.1", delay=0.1, ttl=60).enqueue(paint, "car1")
    await queue.options(key="k.1").enqueue(wash, "car1")
    while await queue.counts() != JobCounts(failed=2):
        await drain(queue)
    assert handle.id in await dead(queue)
    again = await queue.redrive(handle.id, {"colour": "red"})
    info = await again.info()
    assert (info.state, info.key, info.job) == ("pending", "k.1", "paint")
    assert again.id != handle.id
    assert handle.id not in await dead(queue)
    with pytest.raises(JobNotFoundError):
        await queue.redrive(handle.id)
    await drain(queue)
    assert await again.value(timeout=60) == "car1 is red"
    assert (await handle.info()).state == "failed"


@ON_BOTH
async def test_a_job_is_redriven_as_often_as_it_fails(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=True, lease=5)
    found = await queue.options(key="k").enqueue(wash, "car1")
    ids = [found.id]
    for _ in range(3):
        await drain(queue)
        assert await dead(queue) == ids[-1:]
        ids.append((await queue.redrive(ids[-1])).id)
    assert len({*ids}) == 4
    await drain(queue)
    assert await queue.counts() == JobCounts(failed=4)


async def test_wrong_arguments_are_refused_and_the_letter_stays(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    handle = await queue.enqueue(paint, "car1")
    await drain(queue)
    for wrong in ({"colour": 7}, {"color": "red"}):
        with pytest.raises(JobArgumentsError):
            await queue.redrive(handle.id, wrong)
    with pytest.raises(ConfigError, match="args is"):
        await queue.redrive(handle.id, ["red"])  # type: ignore[arg-type]
    assert await dead(queue) == [handle.id]


class KilledError(StoreError):
    """The process dies here."""


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("runs", [False, True])
async def test_an_interrupted_redrive_can_be_repeated(
    jet: Jet, another: OpenQueue, monkeypatch: pytest.MonkeyPatch, exclusive: bool, runs: bool
) -> None:
    """On a cluster, the job is stored and the letter is still there; in a file there is nothing between the two."""
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    handle = await queue.options(key="k").enqueue(paint, "car1")
    await drain(queue)
    elsewhere = await another("garage", jobs=jobs)

    def dies(**_: object) -> None:
        raise KilledError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "MsgDelete", dies)
        if jet.backend.planning.atomic_batches:
            await elsewhere.redrive(handle.id, {"colour": "red"})
        else:
            with pytest.raises(KilledError):
                await elsewhere.redrive(handle.id, {"colour": "red"})
            assert await dead(queue) == [handle.id]
    if runs:
        await drain(queue)
    if jet.backend.planning.atomic_batches:
        assert await queue.redrive_all() == 0
    else:
        again = await queue.redrive(handle.id, {"colour": "red"})
        assert again.duplicate
        assert await dead(queue) == []
        await drain(queue)
        assert await again.value(timeout=60) == "car1 is red"
    await drain(queue)
    assert await queue.counts() == JobCounts(failed=1, completed=1)


@ON_BOTH
async def test_many_are_redriven_by_name_and_key(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    for n in range(70):
        await queue.options(key=f"k{n % 2}").enqueue(wash, "car1")
    await queue.options(key="k0").enqueue(paint, "car1")
    await drain(queue)
    assert len([_ async for _ in queue.dead_letters(job="paint")]) == 1
    assert len([_ async for _ in queue.dead_letters(key="k0")]) == 36
    assert await queue.redrive_all(job="paint", key="k1") == 0
    assert await queue.redrive_all(job="wash", key="k1") == 35
    assert (await queue.counts()).pending == 35
    await drain(queue)
    assert await queue.redrive_all() == 71
    await drain(queue)
    assert len(await dead(queue)) == 71


@ON_BOTH
async def test_a_redriven_job_waits_for_the_jobs_of_its_key(jet: Jet) -> None:
    queue = await jet.queue("garage", exclusive=True, lease=5)
    ran = list[tuple[str, int]]()

    @queue.job(max_attempts=1)
    async def sand(car: str, context: JobContext) -> None:
        ran.append((car, context.attempt))
        if ran == [("first", 1)]:
            raise ValueError("no paper")

    keyed = queue.options(key="k.1", priority=2)
    first = await keyed.enqueue(sand, "first")
    await drain(queue)
    for car in ("second", "third"):
        await keyed.enqueue(sand, car)
    again = await queue.redrive(first.id)
    info = await again.info()
    assert (info.key, info.priority, info.state) == ("k.1", 2, "pending")
    await drain(queue)
    assert ran == [("first", 1), ("second", 1), ("third", 1), ("first", 1)]
    assert (await again.outcome(timeout=60)).key == "k.1"


@ON_BOTH
async def test_a_letter_is_discarded(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    handle = await queue.enqueue(wash, "car1")
    await drain(queue)
    await queue.discard(handle.id)
    assert await dead(queue) == []
    for gone in (queue.discard, queue.redrive):
        with pytest.raises(JobNotFoundError):
            await gone(handle.id)
    with pytest.raises(ConfigError):
        await queue.discard("*")
    assert (await handle.info()).state == "failed"


async def test_a_redriven_job_keeps_what_it_was_redriven_from(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    seen = list[str]()

    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> None:
        seen.append(context.id)
        raise ValueError

    handle = await queue.enqueue(job)
    await drain(queue)
    again = await queue.redrive(handle.id)
    await drain(queue)
    assert seen == [handle.id, again.id]
    [letter] = [found async for found in queue.dead_letters()]
    assert letter.envelope.redriven_from == handle.id
