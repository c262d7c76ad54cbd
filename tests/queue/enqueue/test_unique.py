"""Unique jobs: until they have started, for a period, and what a duplicate does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import pelton
from pelton import ConfigError, DuplicateJobError, Jet, JobCounts
from pelton.queue import Queue
from pelton.queue.enqueuer import Enqueuer
from pelton.testing import drain as drain_by_hand
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, waiting, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])
jobs = pelton.Jobs()


@jobs.job
async def wash(car: str) -> str:
    return f"{car} washed"


@jobs.job(max_attempts=1)
async def fail() -> None:
    raise ValueError


# --- until started


@ON_BOTH
@BOTH_KINDS
async def test_unique_until_started(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    began, go_on, ran = asyncio.Queue[int](), asyncio.Event(), list[int]()

    @queue.job
    async def job(number: int) -> int:
        began.put_nowait(number)
        await go_on.wait()
        ran.append(number)
        return number

    once = queue.options(unique="index", unique_until="started", key="k")
    one, same = await once.enqueue(job, 1), await once.enqueue(job, 2)
    assert (same.id, same.duplicate) == (one.id, True)
    async with working(queue, concurrency=1):
        assert await asyncio.wait_for(began.get(), 60) == 1
        two, again = await once.enqueue(job, 3), await once.enqueue(job, 4)
        assert not two.duplicate
        assert two.id != one.id
        assert (again.id, again.duplicate) == (two.id, True)
        go_on.set()
        assert (await one.value(timeout=60), await two.value(timeout=60)) == (1, 3)
    assert ran == [1, 3]
    assert await queue.counts() == JobCounts(completed=2)
    assert not (await once.enqueue(job, 5)).duplicate


@BOTH_KINDS
async def test_a_delayed_job_may_be_enqueued_while_the_first_runs(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    began, go_on = asyncio.Event(), asyncio.Event()

    @queue.job
    async def job(number: int) -> int:
        began.set()
        await go_on.wait()
        return number

    once = queue.options(unique="index", unique_until="started", key="k", delay=0.3)
    first = await once.enqueue(job, 1)
    assert (await once.enqueue(job, 2)).id == first.id
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        second = await once.enqueue(job, 3)
        assert second.id != first.id
        assert (await first.info()).state == "running"
        assert (await second.info()).state in ("scheduled", "pending")
        while (await second.info()).state == "scheduled":
            await asyncio.sleep(0.02)
        assert (await first.info()).state == "running", "it is found beside the other one"
        go_on.set()
        assert (await first.value(timeout=60), await second.value(timeout=60)) == (1, 3)


async def test_a_retried_job_has_started(jet: Jet) -> None:
    queue = await jet.queue("garage")

    @queue.job(backoff=pelton.Backoff(base=60))
    async def job() -> None:
        raise ValueError

    once = queue.options(unique="arguments", unique_until="started")
    first = await once.enqueue(job)
    async with working(queue):
        while (await first.info()).state != "retrying":
            await asyncio.sleep(0.01)
    assert not (await once.enqueue(job)).duplicate


# --- for a period


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("delay", [None, 0.2])
async def test_unique_for_a_period(jet: Jet, exclusive: bool, delay: float | None) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    once = queue.options(unique="nightly", unique_for=timedelta(hours=1), key="a.b", delay=delay)
    first = await once.enqueue(wash, "car1")
    assert (await once.enqueue(wash, "car2")).id == first.id
    async with working(queue):
        assert await first.value(timeout=60) == "car1 washed"
    same = await once.enqueue(wash, "car3")
    assert (same.id, same.duplicate) == (first.id, True)
    assert await same.value() == "car1 washed"
    assert not (await queue.options(unique="other", key="a.b").enqueue(wash, "car4")).duplicate
    await drain(queue)
    assert await queue.counts() == JobCounts(completed=2)
    assert await waiting(queue) == []


@BOTH_KINDS
async def test_the_period_begins_when_the_job_is_enqueued(exclusive: bool) -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
        once = queue.options(unique="arguments", unique_for=3600, key="k")
        first = await once.enqueue(fail)
        runtime.clock.advance(1800)
        await drain_by_hand(queue, raises=False)
        assert (await first.info()).state == "failed"
        runtime.clock.advance(1700)
        assert (await once.enqueue(fail)).id == first.id
        runtime.clock.advance(200)
        assert not (await once.enqueue(fail)).duplicate
        assert (await queue.redrive(first.id)).id != first.id


async def test_a_job_that_outlives_its_period_stays_unique_until_it_has_ended() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", jobs=jobs)
        once = queue.options(unique="x", unique_for=10)
        first = await once.enqueue(wash, "car1")
        runtime.clock.advance(20)
        assert (await once.enqueue(wash, "car2")).id == first.id
        await drain_by_hand(queue)
        assert not (await once.enqueue(wash, "car3")).duplicate


async def test_one_that_is_cancelled_while_it_waits_leaves_its_place(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    once = queue.options(unique="x", unique_for=3600)
    assert await (await once.enqueue(wash, "car1")).cancel()
    assert not (await once.enqueue(wash, "car2")).duplicate


async def test_a_kept_place_is_no_job(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await queue.options(unique="x", unique_for=3600).enqueue(wash, "car1")
    await drain(queue)
    assert await queue.counts() == JobCounts(completed=1)
    assert await queue.purge() == 0
    assert (await queue.options(unique="x", unique_for=3600).enqueue(wash, "car1")).duplicate
    replaced = await queue.options(unique="x", replace=True, delay=5).enqueue(wash, "car2")
    assert replaced.duplicate
    await queue.delete()


# --- duplicates


@ON_BOTH
@BOTH_KINDS
async def test_a_duplicate_raises_if_it_is_to(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    strict = queue.options(unique="x", key="k", on_duplicate="raise")
    first = await strict.enqueue(wash, "car1")
    for options in ({}, {"delay": 60}):
        with pytest.raises(DuplicateJobError, match="same unique job") as caught:
            await queue.options(unique="x", key="k", on_duplicate="raise", **options).enqueue(wash, "car2")  # type: ignore[arg-type]
        assert (caught.value.queue, caught.value.job_id) == ("garage", first.id)
    assert await queue.counts() == JobCounts(pending=1)


async def test_all_of_it_in_transactions(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    async with jet.transaction() as tx:
        first = await tx.queue(queue).options(unique="x", unique_for=60).enqueue(wash, "car1")
    await drain(queue)
    async with jet.transaction() as tx:
        assert (await tx.queue(queue).options(unique="x").enqueue(wash, "car2")).id == first.id
        with pytest.raises(DuplicateJobError):
            await tx.queue(queue).options(unique="x", on_duplicate="raise").enqueue(wash, "car3")
        await tx.queue(queue).enqueue(wash, "car4")
    assert await queue.counts() == JobCounts(pending=1, completed=1)


async def test_the_job_that_is_to_be_replaced_is_gone_meanwhile(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    @queue.job(backoff=FAST)
    async def job(number: int) -> None: ...

    index = queue.options(unique="index", replace=True, delay=60)
    first = await index.enqueue(job, 1)
    resolve = Enqueuer._resolve

    async def resolve_and_cancel(self: Enqueuer, *args: Any) -> Any:
        found = await resolve(self, *args)
        await first.cancel()
        return found

    monkeypatch.setattr(Enqueuer, "_resolve", resolve_and_cancel)
    second = await asyncio.wait_for(index.enqueue(job, 2), 60)
    assert (second.duplicate, second.id == first.id) == (False, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique_until": "started"}, "give unique"),
        ({"unique_for": 60}, "give unique"),
        ({"on_duplicate": "raise"}, "give unique"),
        ({"unique": "a", "unique_until": "ever"}, "unique_until is 'ever'"),
        ({"unique": "a", "on_duplicate": "replace"}, "on_duplicate is 'replace'"),
        ({"unique": "a", "unique_for": 0.5}, "from 1 s"),
        ({"unique": "a", "unique_for": 60, "unique_until": "started"}, "not both"),
    ],
)
async def test_wrong_options_are_refused(queue: Queue, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        queue.options(**options)


@ON_BOTH
@BOTH_KINDS
async def test_many_unique_jobs_at_once(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    ran = list[str]()

    @queue.job
    async def note(car: str) -> None:
        ran.append(car)

    once = note.options(unique="arguments", key="k")
    cars = [f"car{number % 40}" for number in range(60)]
    handles = await queue.enqueue_many([once.bind(car) for car in cars])
    assert [handle.duplicate for handle in handles] == [False] * 40 + [True] * 20
    assert [handle.id for handle in handles[40:]] == [handle.id for handle in handles[:20]]
    await drain(queue, concurrency=1)
    assert ran == cars[:40], "in the order in which they were given"


async def test_of_many_one_that_is_refused_does_not_affect_the_others(queue: Queue) -> None:
    @queue.job
    async def note(car: str) -> None: ...

    strict = note.options(unique="arguments", on_duplicate="raise")
    with pytest.raises(DuplicateJobError):
        await queue.enqueue_many([strict.bind(car) for car in ("a", "a", "b")])
    assert await queue.counts() == JobCounts(pending=2)


@BOTH_KINDS
async def test_unique_until_started_in_a_transaction(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    began, go_on = asyncio.Event(), asyncio.Event()

    @queue.job
    async def job(number: int) -> int:
        began.set()
        await go_on.wait()
        return number

    options: dict[str, Any] = {"unique": "index", "unique_until": "started", "key": "k"}
    first = await queue.options(**options).enqueue(job, 1)
    async with asyncio.timeout(60), jet.transaction() as tx:
        assert (await tx.queue(queue).options(**options).enqueue(job, 2)).id == first.id
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        async with asyncio.timeout(60), jet.transaction() as tx:
            second = await tx.queue(queue).options(**options).enqueue(job, 3)
        assert not second.duplicate
        go_on.set()
        assert await second.value(timeout=60) == 3


@ON_BOTH
@BOTH_KINDS
async def test_a_job_is_found_by_the_id_it_was_given(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    given: list[dict[str, Any]] = [{}, {"delay": 60}, {"tenant": "a.b"}, {"tenant": "c", "priority": 2, "delay": 60}]
    given += [{"key": "k"}, {"key": "k l", "delay": 60}]
    for number, options in enumerate(given):
        handle = await queue.options(id=f"my {number}", **options).enqueue("wash", car="1")
        where = {name: value for name, value in options.items() if name in ("key", "tenant")}
        assert (await queue.named(f"my {number}", **where)).id == handle.id
        assert await (await queue.named(f"my {number}", **where)).cancel()
        with pytest.raises(pelton.JobNotFoundError, match=f"my {number}"):
            await queue.named(f"my {number}", **where)
    with pytest.raises(pelton.JobNotFoundError):
        await queue.named("")


# What excludes what. Each has a text of its own, so that pairs are apart.
_KINDS: dict[str, dict[str, Any]] = {
    "unique": {"unique": "{x}"},
    "unique of a key": {"unique": "{x}", "key": "{x}"},
    "unique of a priority": {"unique": "{x}", "priority": 1},
    "unique of a tenant": {"unique": "{x}", "tenant": "t"},
    "id": {"id": "{x}"},
    "id of a key": {"id": "{x}", "key": "{x}"},
    "idempotency": {"idempotency_key": "{x}"},
    "idempotency of a key": {"idempotency_key": "{x}", "key": "{x}"},
    "one of a key": {"unique": "key", "key": "{x}"},
    "any of a key": {"key": "{x}"},
}


@ON_BOTH
@BOTH_KINDS
async def test_what_unique_id_and_idempotency_key_exclude_of_each_other(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, jobs=jobs)
    found = dict[str, set[str]]()
    for same in (True, False):
        for first in _KINDS:
            for second in _KINDS:
                x = f"{same} {first} {second}"
                options = [
                    {k: v.format(x=x) if isinstance(v, str) else v for k, v in _KINDS[n].items()}
                    for n in (first, second)
                ]
                await queue.options(**options[0]).enqueue(wash, x)
                handle = await queue.options(**options[1]).enqueue(*((wash, x + "!") if same else (fail,)))
                if handle.duplicate:
                    found.setdefault(first if same else f"{first}, other job", set()).add(second)
    groups = [{"unique", "unique of a priority"}, {"unique of a key"}, {"id"}, {"id of a key"}]
    if not exclusive:
        groups = [groups[0] | groups[1], groups[2] | groups[3]]
    groups += [{"unique of a tenant"}, {"one of a key"}]
    expected = {name + other: group for group in groups for name in group for other in ("", ", other job")}
    idempotent = {"idempotency", "idempotency of a key"}
    assert found == expected | dict.fromkeys(idempotent, idempotent)
