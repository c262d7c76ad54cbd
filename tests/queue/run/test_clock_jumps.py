"""A wall clock that jumps under healthy workers: one job of a key, no attempt too many, no wait that is too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import pelton
from pelton import FlowNotFoundError, JobCounts, MessageNotFoundError
from pelton.api import Backoff
from pelton.queue import Rate
from pelton.queue.reactor import FlowCleaning
from pelton.testing import ManualRuntime, manual_runtime
from tests.queue.helpers import working

DAY = 86_400
JUMPS = pytest.mark.parametrize("seconds", [10, 40, DAY, -DAY])
jobs = pelton.Jobs()


@dataclass
class Running:
    """The jobs that run now, and what lets them end."""

    now: list[str]
    most: int
    end: asyncio.Event


@dataclass
class Stage:
    """Two workers' views of one queue, as two processes would have them, and their clock."""

    queues: list[pelton.Queue]
    runtime: ManualRuntime
    jet: pelton.Jet

    def jump(self, seconds: float) -> None:
        self.runtime.clock.set_wall(self.runtime.clock.now() + round(seconds * 1e9))

    async def settle(self) -> None:
        for _ in range(200):
            await asyncio.sleep(0)


running = Running([], 0, asyncio.Event())


@jobs.job(max_attempts=1)
async def repair(name: str) -> str:
    running.now.append(name)
    running.most = max(running.most, len(running.now))
    await running.end.wait()
    running.now.remove(name)
    return name


@jobs.job(max_attempts=2, backoff=Backoff(base=20, factor=1, cap=20, jitter=0))
async def fail() -> None:
    raise ValueError


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    global running
    running = Running([], 0, asyncio.Event())
    runtime = manual_runtime()
    path = tmp_path / "store.pelton"
    async with pelton.open(path, runtime=runtime) as one, pelton.open(path, runtime=runtime) as other:
        queues = [await jet.queue("garage", jobs=jobs, exclusive=True, lease=30) for jet in (one, other)]
        yield Stage(queues, runtime, one)


@JUMPS
async def test_a_key_has_one_job_at_a_time(stage: Stage, seconds: float) -> None:
    handles = [await stage.queues[0].options(key="car1").enqueue(repair, str(n)) for n in range(3)]
    async with working(*stage.queues, concurrency=2):
        while not running.now:
            await asyncio.sleep(0.001)
        stage.jump(seconds)
        for _ in range(4):
            await stage.queues[1].options(key="car2").enqueue(repair, "other")
            stage.runtime.clock.advance(2)
            await stage.settle()
        assert running.now.count("0") == 1
        assert not {"1", "2"} & set(running.now)
        running.end.set()
        for handle in handles:
            while (await handle.info()).state != "completed":
                await asyncio.sleep(0.001)
    assert (await stage.queues[0].counts()).failed == 0


@JUMPS
async def test_a_claimed_job_stays_held(stage: Stage, seconds: float) -> None:
    handle = await stage.queues[0].options(key="car1").enqueue(repair, "0")
    async with stage.queues[0].claims() as claims, stage.queues[1].claims() as others:
        (job,) = await claims.take(timeout=0)
        stage.jump(seconds)
        await stage.settle()
        assert await others.take(timeout=0) == []
        assert not job.lost
        job.complete()
        assert await claims.settle([job]) == []
    assert (await handle.info()).state == "completed"


async def test_what_was_put_off_while_the_clock_was_ahead_comes_in_time(stage: Stage) -> None:
    queue = stage.queues[0]
    stage.jump(DAY)
    await queue.options(delay=60, key="a").enqueue(repair, "delayed")
    await queue.options(key="b").enqueue(fail)
    async with queue.claims() as claims:
        (job,) = await claims.take(timeout=0)
        job.fail(ValueError("first"))
        await claims.settle([job])
    await queue.schedule("often", repair, args=("often",), every=3)
    assert await queue.counts() == JobCounts(scheduled=1, retrying=1)
    stage.jump(-DAY)
    async with queue.claims() as claims:
        stage.runtime.clock.advance(4)
        assert [job.job for job in await claims.take(9, timeout=0)] == ["repair"]
        stage.runtime.clock.advance(16)
        assert sorted(job.job for job in await claims.take(9, timeout=0)) == ["fail"]
        stage.runtime.clock.advance(40)
        assert [job.args for job in await claims.take(9, timeout=0)] == [b'{"name":"delayed"}']


async def test_a_lock_is_held_through_a_jump(tmp_path: Path) -> None:
    runtime = manual_runtime()
    path = tmp_path / "store.pelton"
    async with pelton.open(path, runtime=runtime) as one, pelton.open(path, runtime=runtime) as other:
        await other.create_stream("any")
        for seconds in (DAY, -DAY):
            async with one.lock("pump", ttl=30) as held:
                locks = await other.stream("KV_pelton_locks")
                keys = (await locks.info()).state.messages
                runtime.clock.set_wall(runtime.clock.now() + round(seconds * 1e9))
                await other.publish("any", b"")
                assert (await locks.info()).state.messages == keys
                assert held.is_held


async def test_a_schedule_runs_again_when_the_clock_is_right_again(stage: Stage) -> None:
    queue = stage.queues[0]
    running.end.set()
    await queue.schedule("often", repair, args=("often",), every=3)
    for seconds in (DAY, -DAY, 0):
        stage.jump(seconds)
        for _ in range(3):
            stage.runtime.clock.advance(3)
            await queue.work(until_idle=True, handle_signals=False)
    counts = await queue.counts()
    assert counts.completed >= 8
    assert counts.cancelled == 0


@pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (-3600,), (DAY, -DAY), (40, 40)])
async def test_a_time_to_live_counts_the_time_that_passes(stage: Stage, jumps: tuple[float, ...]) -> None:
    one, other = stage.queues
    running.end.set()
    handles = [await one.options(key="a", ttl=60).enqueue(repair, "at once")]
    for seconds in jumps:
        stage.jump(seconds)
        stage.runtime.clock.advance(12)
        handles.append(await one.options(key=f"{len(handles)}", ttl=60).enqueue(repair, "after"))
    await other.work(until_empty=True, handle_signals=False)
    assert {(await handle.info()).state for handle in handles} == {"completed"}


@pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (-3600,), (DAY, -DAY)])
async def test_a_time_to_live_ends_when_it_has_passed(stage: Stage, jumps: tuple[float, ...]) -> None:
    one, other = stage.queues
    running.end.set()
    handles = [await one.options(key="a", ttl=60).enqueue(repair, "at once")]
    for seconds in jumps:
        stage.jump(seconds)
        handles.append(await one.options(key=f"{len(handles)}", ttl=60).enqueue(repair, "after"))
    stage.runtime.clock.advance(61)
    await other.work(until_empty=True, handle_signals=False)
    assert {(await handle.info()).state for handle in handles} == {"expired"}


@jobs.job
async def nap(context: pelton.JobContext) -> None:
    await context.sleep(600)


@pytest.mark.parametrize("seconds", [DAY, -DAY])
async def test_a_sleep_lasts_as_long_as_it_was_asked_to(stage: Stage, seconds: float) -> None:
    queue = stage.queues[0]
    handle = await queue.options(key="a").enqueue(nap)
    await queue.work(until_idle=True, handle_signals=False)
    assert (await handle.info()).state != "completed"
    stage.jump(seconds)
    stage.runtime.clock.advance(598)
    await queue.work(until_idle=True, handle_signals=False)
    assert (await handle.info()).state != "completed"
    stage.runtime.clock.advance(3)
    await queue.work(until_idle=True, handle_signals=False)
    assert (await handle.info()).state == "completed"


@pytest.mark.parametrize("jumps", [(-30,), (-50, -50), (-3600,), (DAY, -DAY), (DAY, 0, -DAY - 50)])
async def test_a_rate_waits_no_longer_than_it_was_asked_to(stage: Stage, jumps: tuple[float, ...]) -> None:
    one, other = stage.queues
    running.end.set()
    await one.limit(rate=Rate(1, 10))
    for number in range(2 * len(jumps) + 2):
        await one.options(key=f"{number}").enqueue(repair, f"{number}")
    async with one.claims() as first, other.claims() as second:
        assert len(await first.take(9, timeout=0)) == 1
        for seconds in jumps:
            stage.jump(seconds)
            # Neither earlier nor later, whoever takes it: those that were put off are looked at in time.
            for claims, passes, most in ((second, 4, 0), (first, 6.1, 1), (first, 9.8, 0), (second, 0.3, 1)):
                stage.runtime.clock.advance(passes)
                await stage.settle()
                assert len(await claims.take(9, timeout=0)) == most


@pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (-3600,), (DAY, -DAY)])
async def test_a_time_to_live_counts_from_when_a_delayed_job_is_due(stage: Stage, jumps: tuple[float, ...]) -> None:
    one, other = stage.queues
    handles = [await one.options(key=f"{n}", delay=50, ttl=30).enqueue(repair, f"{n}") for n in range(2)]
    async with one.claims() as first, other.claims() as second:
        for seconds in jumps:
            stage.jump(seconds)
            stage.runtime.clock.advance(49.9 / len(jumps))
            assert await first.take(9, timeout=0) == []
        stage.runtime.clock.advance(0.1)
        assert len(await first.take(1, timeout=0)) == 1
        for seconds in jumps:
            stage.jump(seconds)
        stage.runtime.clock.advance(29.9)
        assert (await handles[1].info()).state == "pending"
        stage.runtime.clock.advance(0.1)
        assert await second.take(9, timeout=0) == []
        assert (await handles[1].info()).state == "expired"


@pytest.mark.parametrize("seconds", [DAY, -DAY])
async def test_a_job_that_a_worker_holds_for_a_limit_lives_as_long_as_it_was_asked_to(
    stage: Stage, seconds: float
) -> None:
    one, other = stage.queues
    await other.limit(concurrency=1)
    handles = [await one.options(key=f"{n}", ttl=40).enqueue(repair, f"{n}") for n in range(2)]
    async with working(one, concurrency=2):
        while [(await handle.info()).state for handle in handles] != ["running", "held"]:
            # Workers tell of what is held some time later.
            stage.runtime.clock.advance(0.01)
            await asyncio.sleep(0.001)
        stage.jump(seconds)
        stage.runtime.clock.advance(5)
        running.end.set()
        while (await handles[1].info()).state not in ("completed", "expired"):
            stage.runtime.clock.advance(0.1)
            await asyncio.sleep(0.001)
    assert [(await handle.info()).state for handle in handles] == ["completed", "completed"]


@pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (-3600,), (DAY, -DAY)])
@pytest.mark.parametrize("delay", [None, 20])
async def test_a_job_stays_unique_for_as_long_as_it_was_asked_to(
    stage: Stage, jumps: tuple[float, ...], delay: float | None
) -> None:
    one, other = stage.queues
    running.end.set()
    unique = one.options(unique="arguments", unique_for=600, delay=delay, key="a")
    handle = await unique.enqueue(repair, "once")
    for seconds in jumps:
        stage.jump(seconds)
        stage.runtime.clock.advance(30)
    async with other.claims() as claims:
        (job,) = await claims.take(timeout=0)
        # While it runs, and after it has ended.
        for seconds in jumps:
            stage.jump(seconds)
        job.complete()
        await claims.settle([job])
    for seconds in jumps:
        stage.jump(seconds)
    stage.runtime.clock.advance(570 - 30 * len(jumps))
    assert (await unique.enqueue(repair, "once")).id == handle.id
    # What is kept in the store ends on a whole second.
    stage.runtime.clock.advance(32)
    assert not (await unique.enqueue(repair, "once")).duplicate


async def test_what_is_scheduled_is_shown_and_moved_as_it_is_due(stage: Stage) -> None:
    queue, clock = stage.queues[0], stage.runtime.clock
    there = await stage.jet.queue("there", jobs=jobs)
    stage.jump(DAY)
    stays, moves = [await queue.options(delay=60, key=key).enqueue(repair, key) for key in ("a", "b")]
    await queue.schedule("often", repair, args=("often",), every=300)
    stage.jump(-DAY)
    assert (await stays.info()).due == clock.now() + 60 * 10**9
    (often,) = await queue.schedules()
    assert 0 < often.next_due - clock.now() <= 300 * 10**9
    moved = await queue.move(moves.id, there)
    stage.jump(DAY)
    clock.advance(59.9)
    assert [(await job.info()).state for job in (stays, moved)] == ["scheduled", "scheduled"]
    clock.advance(0.1)
    assert [(await job.info()).state for job in (stays, moved)] == ["pending", "pending"]


async def test_a_flow_is_removed_after_its_time_not_when_a_clock_is_ahead(stage: Stage) -> None:
    queue, clock = stage.queues[0], stage.runtime.clock
    running.end.set()
    flow = await queue.new_flow()
    flow.add(repair, "one")
    handle = await flow.enqueue()
    await queue.work(until_idle=True, handle_signals=False)
    context = queue._context
    names, flows = context.names, await stage.jet.stream(context.names.flows)
    age = (await (await stage.jet.stream(names.history)).info()).config.max_age.seconds
    # Of a program that is enqueuing it.
    await stage.jet.publish(names.flow_part("another", "0"), b"[]")
    cleaning = FlowCleaning(context)
    stage.jump(age + DAY)
    for _ in range(3):
        await cleaning.clean(flows)
        clock.advance(60)
    stage.jump(-age - DAY)
    await cleaning.clean(flows)
    assert (await handle.status()).state == "completed"
    assert await flows.get_last_message(names.flow_part("another", "0"))
    clock.advance(age + DAY)
    await cleaning.clean(flows)
    with pytest.raises(FlowNotFoundError):
        await handle.status()
    assert await flows.get_last_message(names.flow_part("another", "0"))
    clock.advance(600)
    await cleaning.clean(flows)
    with pytest.raises(MessageNotFoundError):
        await flows.get_last_message(names.flow_part("another", "0"))


@pytest.mark.parametrize("seconds", [DAY, -DAY])
async def test_what_comes_after_a_jump_counts_from_then(stage: Stage, seconds: float) -> None:
    one, other = stage.queues
    unique = one.options(unique="arguments", unique_for=600, key="a")
    async with other.claims() as claims:
        taking = asyncio.create_task(claims.take(timeout=30))
        await stage.settle()
        stage.jump(seconds)
        handle = await unique.enqueue(repair, "once")
        [job] = await taking
        job.complete()
        await claims.settle([job])
    stage.runtime.clock.advance(599)
    assert (await unique.enqueue(repair, "once")).id == handle.id
    stage.runtime.clock.advance(2)
    assert not (await unique.enqueue(repair, "once")).duplicate


@jobs.job(max_attempts=1)
async def durable(context: pelton.JobContext, how: str) -> str:
    if "undo" in how:
        await context.on_failure(running.now.append, "undone")
    if "sleep" in how:
        await context.step("before", running.now.append, "before")
        await context.sleep(600)
        return "awake"
    child = await context.call(repair, "called") if "call" in how else ""
    return child + await context.wait_for("approved", str, timeout=600, default="nobody")


@pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (DAY, -DAY), (-3600, DAY)])
@pytest.mark.parametrize("how", ["sleep", "sleep undo", "wait", "wait undo", "call and wait"])
async def test_a_durable_function_waits_as_long_as_it_was_asked_to(
    stage: Stage, jumps: tuple[float, ...], how: str
) -> None:
    running.end.set()
    one, other = stage.queues
    handle = await one.options(key="a").enqueue(durable, how)
    await one.work(until_idle=True, handle_signals=False)
    for seconds in jumps:
        stage.jump(seconds)
        stage.runtime.clock.advance(598 / len(jumps))
        for queue in (other, one):
            await queue.work(until_idle=True, handle_signals=False)
        assert (await handle.info()).state in ("scheduled", "waiting")
    stage.runtime.clock.advance(3)
    await other.work(until_idle=True, handle_signals=False)
    outcome = await handle.outcome(timeout=1)
    called = "called" * ("call" in how)
    assert (outcome.attempt, outcome.value()) == (1, "awake" if "sleep" in how else f"{called}nobody")
    assert running.now == ["before"] * ("sleep" in how)


@pytest.mark.parametrize("seconds", [DAY, -DAY])
@pytest.mark.parametrize("ends", ["signal", "cancel"])
async def test_a_durable_function_is_woken_though_the_clock_has_jumped(stage: Stage, seconds: float, ends: str) -> None:
    one, other = stage.queues
    handle = await one.options(key="a").enqueue(durable, "wait undo")
    await one.work(until_idle=True, handle_signals=False)
    stage.jump(seconds)
    await (handle.send("approved", "yes") if ends == "signal" else handle.cancel())
    stage.jump(-seconds / 2)
    await other.work(until_idle=True, handle_signals=False)
    outcome = await handle.outcome(timeout=1)
    assert outcome.state == ("completed" if ends == "signal" else "cancelled")
    assert running.now == ([] if ends == "signal" else ["undone"])
