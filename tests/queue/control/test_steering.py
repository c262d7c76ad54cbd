"""Cancelling jobs, and pausing queues, keys and kinds of jobs, from any process."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

import pelton
from pelton import Jet, JobCounts, JobFailedError, JobNotFoundError
from pelton.api import PullRequest
from pelton.queue import JobContext, Queue
from pelton.queue.model.limits import Order, Orders
from pelton.queue.model.records import PutOff, records_of
from pelton.queue.registry import TakenJob
from pelton.queue.run.parking import LatePutOffs
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


@ON_BOTH
@BOTH_KINDS
async def test_waiting_and_scheduled_jobs_are_cancelled_at_once(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    ran = list[int]()

    @queue.job
    async def job(n: int) -> None:
        ran.append(n)

    waiting = await queue.options(key="k").enqueue(job, 1)
    free = await queue.enqueue(job, 2)
    later = await queue.options(key="k", delay=60).enqueue(job, 3)
    unique = await queue.options(key="k", unique="one").enqueue(job, 4)
    kept = await queue.options(key="k").enqueue(job, 5)
    for handle in (waiting, free, later, unique):
        assert await handle.cancel(reason="not wanted")
        assert await handle.cancel(), "it is cancelled already"
        assert (await handle.info()).state == "cancelled"
        with pytest.raises(JobFailedError, match="not wanted"):
            await handle.value(timeout=60)
    again = await queue.options(key="k", unique="one").enqueue(job, 6)
    assert not again.duplicate
    await drain(queue)
    assert ran == [5, 6]
    assert not await kept.cancel(), "it has completed"
    assert (await kept.info()).state == "completed"
    assert await queue.counts() == JobCounts(completed=2, cancelled=4)
    assert not [info async for info in queue.jobs()]


async def test_a_job_that_nobody_knows_cannot_be_cancelled(queue: Queue) -> None:
    with pytest.raises(JobNotFoundError):
        await queue.cancel("7")
    with pytest.raises(pelton.ConfigError, match="not a job id"):
        await queue.cancel("*")


async def test_a_retried_job_is_cancelled_between_its_attempts(queue: Queue) -> None:
    @queue.job(backoff=pelton.Backoff(base=60))
    async def job() -> None:
        raise ValueError

    handle = await job.enqueue()
    async with working(queue):
        while (await handle.info()).state != "retrying":
            await asyncio.sleep(0.01)
        assert await handle.cancel()
        outcome = await handle.outcome(timeout=60)
    assert (outcome.state, outcome.attempt) == ("cancelled", 1)
    assert await queue.counts() == JobCounts(cancelled=1)


@ON_BOTH
@BOTH_KINDS
async def test_a_running_job_is_cancelled_from_another_process(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    elsewhere = await another("garage")
    began, ended = asyncio.Event(), asyncio.Event()

    @queue.job
    async def job() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    @queue.job
    async def after() -> str:
        return "done"

    handle = await queue.options(key="k").enqueue(job)
    following = await queue.options(key="k").enqueue(after)
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        assert await elsewhere.cancel(handle.id, reason="too long")
        outcome = await handle.outcome(timeout=60)
        await asyncio.wait_for(ended.wait(), 60)
        assert await following.value(timeout=60) == "done"
    assert outcome.state == "cancelled"
    assert "too long" in outcome.error
    assert await queue.counts() == JobCounts(completed=1, cancelled=1)


async def test_a_job_on_a_thread_is_told(queue: Queue) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    seen = threading.Event()

    @queue.job
    def job(context: JobContext) -> None:
        loop.call_soon_threadsafe(began.set)
        while not context.cancelled:
            seen.wait(0.01)
        context.check()

    handle = await queue.enqueue(job)
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        assert await handle.cancel()
        assert (await handle.outcome(timeout=60)).state == "cancelled"


@ON_BOTH
async def test_orders_that_were_carried_out_are_not_kept(jet: Jet, another: OpenQueue) -> None:
    queue, other = await jet.queue("garage", lease=5), await another("garage", lease=5)
    started = asyncio.Event()

    @queue.job
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    control = await jet.stream("JOBS_garage_control")
    async with working(queue), asyncio.timeout(30):
        for _ in range(3):
            started.clear()
            handle = await endless.enqueue()
            await started.wait()
            assert await other.cancel(handle.id)
            assert (await handle.outcome(timeout=60)).state == "cancelled"
        waiting = await other.options(delay=60).enqueue("endless")
        assert await waiting.cancel()
    seq = 1
    while seq <= (await control.info()).state.last_seq:
        try:
            stored = await control.get_next_message("$JOBS.garage.control.cancel.*", seq)
        except pelton.MessageNotFoundError:
            break
        assert "Nats-TTL" in stored.headers, stored.subject
        seq = stored.seq + 1


def test_orders_are_forgotten_when_they_are_over() -> None:
    orders = Orders()
    orders.heed(Order(cancel="1", reason="why"))
    assert "why" in str(orders.cancellation("1", ""))
    orders.heed(Order(cancel="1", over=True))
    assert orders.cancellation("1", "") is None
    for number in range(10_001):
        orders.heed(Order(cancel=f"{number}", ended=number != 1))
    orders.heed(Order(cancel="10001", ended=True))
    known = [number for number in range(10_002) if orders.cancellation(f"{number}", "") is not None]
    assert (len(known), known[:2]) == (10_001, [1, 2]), "the oldest of those that have ended is not"


async def test_a_job_can_ignore_that_it_is_cancelled(queue: Queue) -> None:
    began = asyncio.Event()

    @queue.job
    async def job() -> str:
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "finished all the same"
        return ""

    @queue.job
    async def other() -> str:
        await asyncio.sleep(0)
        return "ran after it, in the same slot"

    handle = await job.enqueue()
    async with working(queue, concurrency=1):
        await asyncio.wait_for(began.wait(), 60)
        assert await handle.cancel()
        assert await handle.value(timeout=60) == "finished all the same"
        assert await (await other.enqueue()).value(timeout=60)


@ON_BOTH
async def test_the_next_worker_cancels_a_job_whose_worker_died(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("garage", lease=0.5)
    ran = list[int]()

    @queue.job
    async def job() -> None:
        ran.append(1)

    handle = await job.enqueue()
    source = queue._context.source_for("gone")
    [_] = await source.take(source.channels[0], PullRequest(expires_ns=60 * 10**9))
    assert await handle.cancel()
    async with working(queue):
        outcome = await handle.outcome(timeout=60)
    assert (outcome.state, ran) == ("cancelled", [])


@ON_BOTH
@BOTH_KINDS
async def test_a_paused_queue_starts_nothing(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    ran = asyncio.Event()

    @queue.job
    async def job() -> None:
        ran.set()

    await (await another("garage")).pause()
    handles = [await queue.options(key=key).enqueue(job) for key in ("a", "")]
    async with working(queue):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ran.wait(), 0.5)
        assert (await queue.counts()).pending == 2
        await queue.resume()
        for handle in handles:
            assert (await handle.outcome(timeout=60)).state == "completed"


@ON_BOTH
@BOTH_KINDS
async def test_keys_and_kinds_are_paused_alone(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    ran = list[str]()

    @queue.job(backoff=FAST, max_attempts=1)
    async def wash(car: str) -> None:
        ran.append(car)

    @queue.job
    async def paint(car: str) -> None:
        ran.append(car)

    await queue.pause(key="car.1")
    await queue.pause(job="paint")
    held = [
        await queue.options(key="car.1").enqueue(wash, "1"),
        await queue.options(key="car.2").enqueue(paint, "2"),
    ]
    free = await queue.options(key="car.3").enqueue(wash, "3")
    async with working(queue):
        assert (await free.outcome(timeout=60)).state == "completed"
        assert {(await handle.info()).state for handle in held} <= {"pending", "retrying", "running"}
        await queue.resume(key="car.1")
        await queue.resume(job="paint")
        outcomes = [await handle.outcome(timeout=40) for handle in held]
    assert sorted(ran) == ["1", "2", "3"]
    assert [outcome.attempt for outcome in outcomes] == [1, 1]


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("paused", ["key", "job"])
async def test_what_was_put_off_for_a_pause_starts_at_once_when_that_is_over(
    jet: Jet, exclusive: bool, paused: str
) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    started = asyncio.Event()

    @queue.job
    async def wash() -> None:
        started.set()

    named = {paused: "wash"}
    await queue.options(key="wash").enqueue(wash)
    await queue.pause(**named)
    # As a worker gives it back that has met it many times, but for longer.
    source = queue._context.source_for("w")
    found: list[TakenJob] = []
    while not found:
        # nats-server tells a consumer a little later.
        found = [one for way in source.channels for one in await source.take(way, PullRequest(no_wait=True))]
    [taken] = found
    records = records_of(queue.names, "w", taken.delivered)
    records.read()
    [scope] = Order(pause_key=named.get("key", ""), pause_job=named.get("job", "")).pause_scopes
    await source.settle(records.put_off(PutOff(3600, "it is paused", pause=scope), queue._context.clock.now()))
    await source.close()
    async with working(queue):
        await queue.resume(**named)
        await asyncio.wait_for(started.wait(), 20)


async def test_a_worker_that_hears_late_of_the_end_of_a_pause_recalls_what_it_has_put_off_since() -> None:
    async with pelton.open("memory:", runtime=(runtime := manual_runtime())) as jet:
        queue = await jet.queue("garage")

        @queue.job
        async def wash() -> None: ...

        handle = await queue.options(key="k").enqueue(wash)
        pause, other = Order(pause_key="k"), Order(pause_job="wash")
        late = LatePutOffs(queue._context)
        late.heed(pause)
        source = queue._context.source_for("w")
        [taken] = await source.take(source.channels[-1], PullRequest(no_wait=True))
        records = records_of(queue.names, "w", taken.delivered)
        records.read()
        ended = records.put_off(PutOff(3600, "it is paused", pause=pause.pause_scopes[0]), runtime.clock.now())
        await source.settle(ended)
        late.note([ended])
        late.heed(other)
        late.heed(msgspec.structs.replace(other, over=True))
        assert not late._tasks, "it is still paused"
        late.heed(msgspec.structs.replace(pause, over=True))
        await asyncio.gather(*late._tasks)
        assert (await handle.info()).due <= runtime.clock.now()
        assert await source.take(source.channels[-1], PullRequest(no_wait=True))
        await late.close()
        await source.close()


@ON_BOTH
@BOTH_KINDS
async def test_a_retry_that_falls_due_does_not_start_in_a_paused_queue(
    jet: Jet, another: OpenQueue, exclusive: bool
) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    runs, failed = list[int](), asyncio.Event()

    @queue.job(backoff=[1.5], max_attempts=2)
    async def job(context: JobContext) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            failed.set()
            raise ValueError("again")

    handle = await queue.options(key="k").enqueue(job)
    async with working(queue):
        await asyncio.wait_for(failed.wait(), 60)
        await (await another("garage")).drain(timeout=20)
        with pytest.raises(TimeoutError):
            await handle.outcome(timeout=2.5)
        assert runs == [1]
        await queue.resume()
        assert (await handle.outcome(timeout=60)).attempt == 2
