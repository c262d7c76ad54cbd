"""A queue of which something was deleted, and that is opened again: old state is not mistaken for new."""

import asyncio

import pytest

import pelton
from pelton import Jet
from pelton.queue import JobRules, Queue
from tests.kit.clocks import runtime_behind
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, ended

A_YEAR = 366 * 86_400.0
RULES = JobRules(max_attempts=3, backoff=FAST)


def paint(colour: str) -> None: ...


async def end(queue: Queue, colour: str, *, attempts: int = 1) -> str:
    """Enqueue a job of key k, let it end at some attempt, and return its id."""
    job = queue.jobs_by_name.get("paint") or queue.job(paint)
    handle = await job.enqueue(colour, key="k")
    async with queue.claims(RULES) as claims:
        for attempt in range(1, attempts + 1):
            [taken] = await claims.take(timeout=20)
            assert (taken.id, taken.attempt) == (handle.id, attempt)
            if attempt < attempts:
                taken.fail(ValueError(colour))
            else:
                taken.complete(colour)
            assert await claims.settle([taken]) == []
    outcome = await asyncio.wait_for(handle.outcome(), 60)
    assert (outcome.value(), outcome.attempt) == (colour, attempts)
    return handle.id


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_jobs_deleted_alone_leave_no_results_to_those_that_follow(
    jet: Jet, another: OpenQueue, exclusive: bool
) -> None:
    queue = await jet.queue("g", exclusive=exclusive)
    for colour in ("red", "green"):
        await end(queue, colour, attempts=2)
    await jet.delete_stream("JOBS_g")
    queue = await another("g", exclusive=exclusive)
    ids = [await end(queue, colour, attempts=2) for colour in ("blue", "black")]
    assert sorted(outcome.value() for outcome in await ended(queue)) == ["black", "blue", "green", "red"]
    assert not {"1", "2"} & {*ids}


@ON_BOTH
async def test_many_may_make_it_at_once(another: OpenQueue) -> None:
    for name in ("g", "h", "i"):
        queues = await asyncio.gather(*(another(name, exclusive=True) for _ in range(4)))
        await end(queues[0], "red")
        assert [outcome.value() for outcome in await ended(queues[-1])] == ["red"]


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_tokens_of_a_key_grow_though_the_queue_is_deleted(path: str, exclusive: bool) -> None:
    """And though the clock was set back, by a year."""
    tokens: list[int] = []
    for behind in (0.0, A_YEAR, A_YEAR, 0.0):
        async with pelton.open(path, runtime=runtime_behind(behind)) as jet:
            queue = await jet.queue("g", exclusive=exclusive, lease=0.5)
            await queue.job(paint).enqueue("red", key="k")
            async with queue.claims(RULES) as claims:
                [taken] = await claims.take(timeout=20)
                tokens.append(taken.token)
                taken.complete()
                assert await claims.settle([taken]) == []
            for name in await jet.stream_names():
                if name.startswith("JOBS_"):
                    await jet.delete_stream(name)
    assert tokens == sorted(set(tokens))


@ON_BOTH
async def test_ids_are_not_given_again_though_the_clock_was_set_back(path: str) -> None:
    ids: list[str] = []
    for behind in (0.0, 0.0, A_YEAR, A_YEAR):
        async with pelton.open(path, runtime=runtime_behind(behind)) as jet:
            queue = await jet.queue("g")
            ids.append((await queue.job(paint).enqueue("red")).id)
            await jet.delete_stream("JOBS_g")
    assert sorted(ids, key=int) == ids
    assert len(set(ids)) == len(ids)
