"""Schedules: jobs by cron and at intervals, once however many define them, skipped if they would overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

import pelton
from pelton import ConfigError, Jet, JobArgumentsError, JobCounts, JobSchedule
from pelton.queue import Queue
from pelton.testing import ManualRuntime, manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import drain, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])
jobs = pelton.Jobs()


@jobs.job
async def wash(car: str, wax: bool = False) -> str:
    return f"{car} washed"


class Stage:
    """A queue in a store whose clock stands still."""

    def __init__(self, jet: Jet, queue: Queue, runtime: ManualRuntime) -> None:
        self.jet = jet
        self.queue = queue
        self.clock = runtime.clock

    async def later(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def pending(self) -> list[str]:
        return [info.id async for info in self.queue.jobs(state="pending")]

    async def only(self) -> JobSchedule:
        [found] = await self.queue.schedules()
        return found


@pytest.fixture(params=[False, True])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        yield Stage(jet, await jet.queue("garage", jobs=jobs, exclusive=request.param, lease=7200), runtime)


def instant(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC)


async def test_a_job_is_enqueued_each_time(stage: Stage) -> None:
    shown = await stage.queue.schedule("often", wash, args=("car1",), kwargs={"wax": True}, key="k.1", every=60)
    assert (shown.name, shown.job, shown.key, shown.every, shown.cron) == ("often", "wash", "k.1", 60.0, "")
    assert await stage.queue.counts() == JobCounts(), "a schedule is not a job"
    assert await stage.pending() == []
    for turn in range(1, 4):
        stage.clock.advance(61 if turn == 1 else 60)
        assert (await stage.queue.counts()).pending == 1
        [info] = [found async for found in stage.queue.jobs()]
        assert (info.job, info.key) == ("wash", "k.1")
        async with stage.queue.claims() as claims:
            [claimed] = await claims.take()
            assert claimed.args == b'{"car":"car1","wax":true}'
            claimed.complete()
            assert await claims.settle([claimed]) == []
        assert (await stage.queue.counts()).completed == turn
        last = await stage.only()
        assert last.last_job == info.id
        assert last.last_finished_at == stage.clock.now()
        assert 0 < last.next_due - stage.clock.now() <= 60e9


async def test_cron_has_five_or_six_fields_and_a_time_zone(stage: Stage) -> None:
    await stage.queue.schedule("nightly", wash, args=("car1",), cron="0 3 * * *", timezone="Europe/Zurich")
    await stage.queue.schedule("seconds", "wash", kwargs={"car": "car2"}, cron="30 0 3 * * *")
    nightly, seconds = await stage.queue.schedules()
    assert (nightly.cron, nightly.timezone, seconds.cron, seconds.timezone) == (
        "0 0 3 * * *",
        "Europe/Zurich",
        "30 0 3 * * *",
        "",
    )
    assert instant(nightly.next_due).hour in (1, 2)
    assert (instant(seconds.next_due).hour, instant(seconds.next_due).second) == (3, 30)
    stage.clock.advance(86_400)
    assert len(await stage.pending()) == 2


async def test_its_jobs_have_its_tenant(stage: Stage) -> None:
    shown = await stage.queue.schedule("often", wash, args=("car1",), tenant="a.c me", priority=2, every=60)
    assert (shown.tenant, shown.priority) == ("a.c me", 2)
    await stage.queue.enqueue_many([wash.bind(f"{n}").with_options(tenant="b", priority=2) for n in range(4)])
    for turn in range(1, 3):
        stage.clock.advance(61 if turn == 1 else 60)
        [info] = [found async for found in stage.queue.jobs(tenant="a.c me")]
        assert (info.job, info.tenant, info.priority) == ("wash", "a.c me", 2)
        async with stage.queue.claims() as claims:
            taken = await claims.take(2)
            assert info.id in [job.id for job in taken], "tenants take turns"
            for job in taken:
                job.complete()
            assert await claims.settle(taken) == []
        assert (await stage.only()).last_job == info.id
    handle = await stage.queue.run_schedule("often")
    assert (await handle.info()).tenant == "a.c me"
    await stage.queue.pause_schedule("often")
    assert (await stage.only()).tenant == "a.c me"
    await stage.queue.resume_schedule("often")
    assert (await stage.only()).tenant == "a.c me"


async def test_a_tenant_and_a_key_in_an_exclusive_queue(stage: Stage) -> None:
    if not stage.queue.exclusive:
        shown = await stage.queue.schedule("often", wash, args=("car1",), tenant="a", key="k", every=60)
        assert (shown.key, shown.tenant) == ("k", "a")
        return
    with pytest.raises(ConfigError, match="leave tenant or key out"):
        await stage.queue.schedule("often", wash, args=("car1",), tenant="a", key="k", every=60)


async def test_missed_times_are_made_up_for_once(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    stage.clock.advance(86_400)
    assert len(await stage.pending()) == 1


async def test_the_same_definition_changes_nothing(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    stage.clock.advance(45)
    await stage.queue.schedule("often", wash, kwargs={"car": "car1"}, every=60)
    stage.clock.advance(16)
    assert len(await stage.pending()) == 1
    await stage.queue.schedule("often", wash, args=("car2",), every=3600)
    stage.clock.advance(120)
    assert len(await stage.pending()) == 1
    assert (await stage.only()).every == 3600


async def test_a_schedule_is_paused_and_resumed(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    for _ in range(2):
        await stage.queue.pause_schedule("often")
    shown = await stage.only()
    assert (shown.paused, shown.next_due) == (True, 0)
    stage.clock.advance(300)
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    await stage.queue.schedule("often", wash, args=("car2",), every=60)
    assert (await stage.only()).paused, "a definition does not resume it"
    assert await stage.pending() == []
    for _ in range(2):
        await stage.queue.resume_schedule("often")
    shown = await stage.only()
    assert not shown.paused
    assert b"car2" in bytes(shown.args)
    stage.clock.advance(61)
    assert len(await stage.pending()) == 1


async def test_the_job_of_a_schedule_is_run_now(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60, priority=2)
    await stage.queue.pause_schedule("often")
    handle = await stage.queue.run_schedule("often")
    assert await stage.pending() == [handle.id]
    job = await stage.queue.get(handle.id)
    assert (job.job, job.priority) == ("wash", 2)
    assert (await stage.only()).paused
    with pytest.raises(pelton.ConfigError, match="has no schedule 'none'"):
        await stage.queue.run_schedule("none")


async def test_what_was_unscheduled_is_over(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    stage.clock.advance(61)
    assert await stage.queue.unschedule("often")
    assert not await stage.queue.unschedule("often")
    assert await stage.queue.schedules() == []
    stage.clock.advance(600)
    assert len(await stage.pending()) == 1, "what it has enqueued stays"
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    await stage.queue.pause_schedule("often")
    assert await stage.queue.unschedule("often")
    for ask in (stage.queue.pause_schedule, stage.queue.resume_schedule):
        with pytest.raises(ConfigError, match="no schedule 'often'"):
            await ask("often")


async def test_jobs_that_would_overlap_are_skipped(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    stage.clock.advance(61)
    async with stage.queue.claims() as claims:
        [first] = await claims.take()
        stage.clock.advance(20)
        for _ in range(3):
            stage.clock.advance(8)
            assert await claims.take() == []
        stage.clock.advance(20)
        assert await claims.take() == [], "the next one became due while the first one ran"
        first.complete()
        await claims.settle([first])
        assert await claims.take() == [], "it is not made up for"
        stage.clock.advance(60)
        [second] = await claims.take()
        second.complete()
        await claims.settle([second])
    assert await stage.queue.counts() == JobCounts(completed=2, cancelled=1)
    [skipped] = [outcome async for outcome in stage.queue.history("cancelled")]
    assert skipped.error.startswith("skipped")
    assert (await stage.only()).last_job == second.id


async def test_overlap_can_be_allowed() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as store:
        queue = await store.queue("garage", jobs=jobs, lease=7200)
        await queue.schedule("often", wash, args=("car1",), every=20, overlap="allow")
        async with queue.claims() as claims:
            taken = []
            for _ in range(3):
                runtime.clock.advance(21)
                taken += await claims.take()
            assert len(taken) == 3
            for job in taken:
                job.complete()
            assert await claims.settle(taken) == []


async def test_a_purge_leaves_schedules(stage: Stage) -> None:
    await stage.queue.schedule("often", wash, args=("car1",), every=60)
    stage.clock.advance(61)
    assert await stage.queue.purge() == 1
    assert (await stage.only()).name == "often"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "cron or every"),
        ({"cron": "0 3 * * *", "every": 60}, "cron or every"),
        ({"cron": "0 3 * *"}, "schedule 'x'"),
        ({"cron": "0 61 * * * *"}, "schedule 'x'"),
        ({"cron": "0 3 31 2 *"}, "no time"),
        ({"cron": ""}, "cron is ''"),
        ({"cron": "0 3 * * *", "timezone": "Mars/Phobos"}, "not a time zone"),
        ({"every": 0.5}, "at least 1 s"),
        ({"every": 60, "timezone": "UTC"}, "no time zone"),
        ({"every": 60, "overlap": "queue"}, "overlap is 'queue'"),
        ({"every": 60, "key": 7}, "key"),
    ],
)
async def test_wrong_schedules_are_refused(jet: Jet, given: dict[str, object], text: str) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    with pytest.raises(ConfigError, match=text):
        await queue.schedule("x", wash, args=("car1",), **given)  # type: ignore[arg-type]
    with pytest.raises(JobArgumentsError):
        await queue.schedule("x", wash, args=(1, 2, 3), every=60)
    for name in ("", 7):
        with pytest.raises(ConfigError, match="name of a schedule"):
            await queue.schedule(name, wash, args=("car1",), every=60)  # type: ignore[arg-type]
    assert await queue.schedules() == []


@ON_BOTH
@BOTH_KINDS
async def test_many_processes_define_it_and_it_fires_once(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive, lease=5)
    others = [await another("garage", jobs=jobs) for _ in range(2)]
    defining = (one.schedule("often", wash, args=("car1",), key="k.1", every=1) for one in (queue, *others))
    assert {shown.every for shown in await asyncio.gather(*defining)} == {1.0}
    async with working(queue, *others):
        while len([outcome async for outcome in queue.history("completed")]) < 3:
            await asyncio.sleep(0.05)
    await queue.pause_schedule("often")
    shown = (await queue.schedules())[0]
    assert shown.paused
    assert shown.last_job
    await drain(queue)
    outcomes = [outcome async for outcome in queue.history()]
    begun = sorted(outcome.enqueued_at for outcome in outcomes)
    assert {outcome.key for outcome in outcomes} == {"k.1"}
    assert all(later - earlier > 0.4e9 for earlier, later in pairwise(begun)), "once a second"
    before = len(outcomes)
    await queue.schedule("often", wash, args=("car1",), key="k.1", every=1)
    await asyncio.sleep(1.2)
    await drain(queue)
    assert len([outcome async for outcome in queue.history()]) == before, "it is paused"
    await queue.resume_schedule("often")
    async with working(queue):
        while len([outcome async for outcome in queue.history()]) == before:
            await asyncio.sleep(0.05)
    assert await queue.unschedule("often")
    assert await queue.schedules() == []


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("given", [{}, {"key": "k"}, {"tenant": "a.b"}], ids=["plain", "key", "tenant"])
async def test_runs_of_a_schedule_do_not_overlap(jet: Jet, exclusive: bool, given: dict[str, Any]) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    running, most = 0, 0
    go_on = asyncio.Event()

    @queue.job
    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1

    await queue.schedule("often", slow, cron="* * * * * *", **given)
    async with working(queue, concurrency=4):
        while running == 0:
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.2)
        await queue.unschedule("often")
        go_on.set()
    await drain(queue)
    counts = await queue.counts()
    assert most == 1
    assert counts.cancelled >= 1
    assert counts.unfinished == 0


@ON_BOTH
async def test_an_older_queue_gets_room_for_schedules(jet: Jet, another: OpenQueue) -> None:
    await jet.queue("garage", jobs=jobs)
    stream = await jet.stream("JOBS_garage")
    await jet.update_stream("JOBS_garage", subjects=[name for name in stream.config.subjects if ".cron." not in name])
    queue = await another("garage", jobs=jobs)
    await queue.schedule("often", wash, args=("car1",), every=60)
    assert [shown.name for shown in await queue.schedules()] == ["often"]
