"""Jobs that a running job calls: each is enqueued once, and the caller goes on with its value or its error."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import msgspec
import pytest

import pelton
from pelton import ConfigError, Jet, JobFailedError
from pelton.queue import JobContext, Queue
from tests.kit.judge.history import JobEvent, check_history
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, ended, working
from tests.queue.run.test_signals import until_waiting
from tests.queue.run.test_steps import BOTH_KINDS, traces


@ON_BOTH
@BOTH_KINDS
async def test_a_job_calls_others_once_and_holds_no_slot(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("shop", exclusive=exclusive)
    jobs, runs = pelton.Jobs(), Counter[str]()
    parcels = await jet.queue("parcels", jobs=jobs)

    @jobs.job
    async def pack(order: int) -> str:
        runs[f"pack {order}"] += 1
        return f"parcel {order}"

    @parcels.job(max_attempts=1)
    async def ship(parcel: str) -> None:
        runs["ship"] += 1
        raise ValueError(f"no van for {parcel}")

    @queue.job
    async def charge(order: int) -> int:
        runs[f"charge {order}"] += 1
        return order * 10

    @queue.job(backoff=FAST, max_attempts=2)
    async def order(context: JobContext, number: int) -> list[Any]:
        one = await context.call(charge.options(key="other"), number)
        if context.attempt == 1:
            raise ValueError("once more")
        many = await context.gather(*(context.call(charge, n) for n in range(10)), at_once=3)
        try:
            await context.call(ship, "parcel")
        except JobFailedError as error:
            failed = error.error
        calls: list[Any] = [context.call(ship, "two"), context.call(charge, 7)]
        both = await context.gather(*calls, return_exceptions=True)
        return [one, many, failed, type(both[0]).__name__, both[1]]

    handle = await queue.options(key="k").enqueue(order, 5)
    async with working(queue, parcels, concurrency=1):
        value = await handle.value(timeout=60)
    assert value[:2] == [50, [n * 10 for n in range(10)]]
    assert "no van for parcel" in value[2]
    assert value[3:] == ["JobFailedError", 70]
    assert runs == {**{f"charge {n}": 1 for n in range(10) if n not in (5, 7)}, "charge 5": 2, "charge 7": 2, "ship": 2}
    assert await traces(queue) == 0


@ON_BOTH
async def test_a_caller_of_many_is_woken_by_the_last_one(jet: Jet) -> None:
    queue, starts = await jet.queue("shop"), list[int]()

    @queue.job
    async def child(number: int) -> int:
        return number

    @queue.job
    async def parent(context: JobContext, at_once: int | None) -> int:
        starts.append(context.attempt)
        return sum(await context.gather(*(context.call(child, n) for n in range(40)), at_once=at_once))

    for at_once, most in ((None, 4), (20, 15)):
        starts.clear()
        handle = await parent.enqueue(at_once)
        await drain(queue, concurrency=2)
        assert await handle.value() == 780
        assert len(starts) <= most, "not by each"
        assert set(starts) == {1}


@ON_BOTH
async def test_what_a_job_waits_for_is_cancelled_with_it(jet: Jet) -> None:
    queue = await jet.queue("shop")

    @queue.job
    async def forever(context: JobContext) -> None:
        await context.wait_for("never")

    @queue.job
    async def middle(context: JobContext) -> None:
        await context.call(forever)

    @queue.job
    async def top(context: JobContext) -> None:
        await context.gather(context.call(middle), context.call(forever).detach())

    @queue.job(max_attempts=1)
    async def fails(context: JobContext) -> None:
        try:
            await context.gather(context.call(forever), context.call(broken))
        except JobFailedError:
            raise ValueError("so do I") from None

    @queue.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no")

    handle = await top.enqueue()
    async with working(queue):
        await until_waiting(queue, handle.id)
        while Counter([info.job async for info in queue.jobs()]) != {"top": 1, "middle": 1, "forever": 2}:
            await jet.runtime.clock.sleep(0.01)
        for info in [info async for info in queue.jobs()]:
            await until_waiting(queue, info.id)
        assert await handle.cancel()
        assert Counter([info.job async for info in queue.jobs()]) == {"forever": 1}
        [left] = [info.id async for info in queue.jobs()]
        assert (await (await fails.enqueue()).outcome(timeout=60)).state == "failed"
        while [info.id async for info in queue.jobs()] != [left]:
            await jet.runtime.clock.sleep(0.01)
    states = Counter((outcome.job, outcome.state) for outcome in await ended(queue))
    assert states == {
        ("top", "cancelled"): 1,
        ("middle", "cancelled"): 1,
        ("forever", "cancelled"): 2,
        ("broken", "failed"): 1,
        ("fails", "failed"): 1,
    }


async def test_a_job_waits_for_the_version_that_made_its_calls(queue: Queue, another: OpenQueue) -> None:
    def declare(opened: Queue, first: str) -> None:
        @opened.job
        async def one(context: JobContext) -> str:
            return await context.wait_for("go", str)

        @opened.job
        async def two() -> str:
            return "two"

        @opened.job(max_attempts=1)
        async def caller(context: JobContext) -> str:
            return await context.call(one if first == "one" else two)

    declare(queue, "one")
    newer = await another("garage")
    declare(newer, "two")
    handle = await queue.enqueue("caller")
    async with working(queue):
        await until_waiting(queue, handle.id)
        [child] = [info.id async for info in queue.jobs() if info.job == "one"]
        await until_waiting(queue, child)
    await queue.send(child, "go", "one")
    async with working(newer):
        while "was of 'one' before" not in (await handle.info()).last_error:
            await asyncio.sleep(0.01)
    assert (await handle.info()).attempt == 0, "given back, not failed"
    async with working(queue):
        assert await handle.value(timeout=60) == "one"


@pytest.mark.parametrize("asks", [False, True])
@ON_BOTH
async def test_a_job_that_began_with_other_code_is_told_what_is_new(
    queue: Queue, another: OpenQueue, *, asks: bool
) -> None:
    done = list[str]()

    @queue.job(name="sell", max_attempts=1)
    async def older(context: JobContext) -> str:
        await context.step("charge", done.append, "charge")
        await context.wait_for("go")
        return "older"

    newer = await another("garage")

    @newer.job(name="sell", max_attempts=1)
    async def sell(context: JobContext) -> str:
        if not asks or await context.changed("fraud-check"):
            await context.step("check", done.append, "check")
        await context.step("charge", done.append, "charge")
        await context.wait_for("go")
        return "newer"

    handle = await queue.enqueue(older)
    async with working(queue):
        await until_waiting(queue, handle.id)
    await handle.send("go")
    async with working(newer):
        if asks:
            assert await handle.value(timeout=60) == "newer"
        else:
            while (info := await handle.info()).state != "stuck":
                await asyncio.sleep(0.01)
            assert "step 'check' comes before step 'charge', which it has done" in info.last_error
            assert (info.attempt, (await newer.counts()).stuck) == (0, 1)
        new = await newer.enqueue(sell)
        await until_waiting(newer, new.id)
    assert done == ["charge", "check", "charge"]
    if not asks:
        async with working(queue):
            assert await handle.value(timeout=60) == "older"


@ON_BOTH
async def test_what_is_done_side_by_side_has_no_order(queue: Queue, another: OpenQueue) -> None:
    """Also what follows a step that failed: where it succeeds, that does not follow."""

    def declare(opened: Queue, *, is_new: bool) -> None:
        def charge() -> str:
            if not is_new:
                raise ValueError
            return "new"

        @opened.job(name="both", max_attempts=1)
        async def both(context: JobContext) -> list[str]:
            if is_new:
                await context.step("first", str)
            return [*await asyncio.gather(context.step("a", str), context.step("b", str)), await later(context)]

        async def later(context: JobContext) -> str:
            return await context.wait_for("go", str)

        @opened.job(name="fails", max_attempts=1)
        async def fails(context: JobContext) -> str:
            try:
                return await context.step("charge", charge)
            except ValueError:
                await context.step("tell", str)
                return await later(context)

    newer = await another("garage")
    declare(queue, is_new=False)
    declare(newer, is_new=True)
    handles = [await queue.enqueue(name) for name in ("both", "fails")]
    async with working(queue):
        await until_waiting(queue, *(handle.id for handle in handles))
    for handle in handles:
        await handle.send("go", "sent")
    async with working(newer):
        assert [await handle.value(timeout=60) for handle in handles] == [["", "", "sent"], "new"]


async def test_calls_that_cannot_be_made_are_refused(keyed: Queue) -> None:
    @keyed.job
    async def child() -> None: ...

    @keyed.job(max_attempts=1)
    async def itself(context: JobContext) -> None:
        await context.call(child.options(key="k"))

    @keyed.job(max_attempts=1)
    async def unique(context: JobContext) -> None:
        await context.call(child.options(unique="arguments"))

    handles = [await job.options(key="k").enqueue() for job in (itself, unique)]
    await drain(keyed)
    errors = [(await handle.outcome()).error for handle in handles]
    assert "with its own key 'k'" in errors[0]
    assert "leave unique out" in errors[1]
    assert ConfigError.__name__ in errors[0]


@ON_BOTH
async def test_who_waits_without_a_key_takes_it_by_calls_in_its_order(jet: Jet, another: OpenQueue) -> None:
    jobs, events = pelton.Jobs(), list[JobEvent]()

    @jobs.job
    async def part(context: JobContext, name: str) -> str:
        enqueued = JobEvent(kind="enqueued", key=context.key, job=context.id, at=context.enqueued_at)
        start = msgspec.structs.replace(
            enqueued, kind="start", at=time.time_ns(), worker=context.worker, token=context.token, attempt=1
        )
        await asyncio.sleep(0.002)
        events.extend((enqueued, start, msgspec.structs.replace(start, kind="finished", at=time.time_ns())))
        return f"{name} {context.token}"

    @jobs.job
    async def service(context: JobContext, name: str, car: str) -> list[str]:
        first = await context.call(part.options(key=car), name)
        how = await context.wait_for("approved", str)
        return [first, await context.call(part.options(key=car), f"{name} {how}")]

    queue = await jet.queue("yard", exclusive=True, jobs=jobs)
    other = await another("yard", exclusive=True, jobs=jobs)
    async with working(queue, other, concurrency=3):
        services = [await queue.enqueue(service, f"s{n}", f"key{n % 2}") for n in range(6)]
        await until_waiting(queue, *(one.id for one in services))
        between = [await queue.options(key=f"key{n % 2}").enqueue(part, "between") for n in range(12)]
        for one in services:
            await one.send("approved", "new")
        values = [await one.value(timeout=60) for one in services]
        assert [(await one.outcome(timeout=60)).state for one in between] == ["completed"] * 12
    assert check_history(events, max_attempts=1) == []
    assert len(events) == 3 * (2 * 6 + 12)
    for (first, second), number in zip(values, range(6), strict=True):
        assert second.startswith(f"s{number} new")
        assert int(first.split()[-1]) < int(second.split()[-1])
