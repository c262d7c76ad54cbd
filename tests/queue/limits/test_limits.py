"""Limits of queues: how many jobs run at a time, and how many start in a period, in all processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

import pelton
from pelton import Jet
from pelton.api import PullRequest
from pelton.queue import JobContext, JobLimit, Queue, Rate
from pelton.queue.model.limits import Order
from pelton.queue.model.records import PutOff, records_of
from pelton.queue.run.parking import LatePutOffs
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import Child, drain, ended, waiting, working
from tests.queue.roles import QUEUE, register
from tests.stopping import stand_still

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


class Gauge:
    """How many jobs run, by kind and key, and the most that did."""

    def __init__(self) -> None:
        self.live: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.starts: list[str] = []

    def register(self, *queues: Queue) -> None:
        for queue in queues:
            for name in ("cut", "sew"):
                queue.job(name=name)(self._job(name))

    def _job(self, name: str):  # type: ignore[no-untyped-def]
        async def run(context: JobContext) -> None:
            groups = ["all", name, f"key {context.key}", f"{name} {context.key}"]
            for group in groups:
                self.live[group] += 1
                self.most[group] = max(self.most[group], self.live[group])
            self.starts.append(name)
            await asyncio.sleep(0.01)
            for group in groups:
                self.live[group] -= 1

        return run


@ON_BOTH
@BOTH_KINDS
async def test_limits_of_every_scope_hold_across_processes(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    elsewhere = await another("garage")
    gauge = Gauge()
    gauge.register(queue, elsewhere)
    await queue.limit(concurrency=4)
    await queue.limit(job="cut", concurrency=2)
    await queue.limit(per_key=True, concurrency=2)
    await queue.limit(job="sew", per_key=True, concurrency=1)
    for number in range(36):
        await queue.options(key=("", "k1", "k2")[number % 3]).enqueue("cut" if number % 2 else "sew")
    await asyncio.gather(drain(queue), drain(elsewhere))
    assert len(gauge.starts) == 36
    assert gauge.most["all"] <= 4
    assert gauge.most["cut"] <= 2
    assert max(gauge.most["key k1"], gauge.most["key k2"]) <= 2
    assert max(gauge.most["sew k1"], gauge.most["sew k2"]) == 1
    outcomes = await ended(queue)
    assert {outcome.state for outcome in outcomes} == {"completed"}
    if jet.backend.planning.has_exclusive_subjects:
        # On a cluster, an answer that takes a lease counts as one.
        assert {outcome.attempt for outcome in outcomes} == {1}


@ON_BOTH
async def test_starts_keep_to_the_rate(jet: Jet, another: OpenQueue) -> None:
    queue, elsewhere = await jet.queue("garage"), await another("garage")
    began: list[float] = []

    async def job() -> None:
        began.append(time.monotonic())

    for each in (queue, elsewhere):
        each.job(name="job")(job)
    await queue.limit(rate=Rate(20, burst=3))
    for _ in range(10):
        await queue.enqueue("job")
    started = time.monotonic()
    await asyncio.gather(drain(queue), drain(elsewhere))
    assert len(began) == 10
    # Three at once, and then one each 50 ms.
    assert max(began) - started >= 0.35


async def test_other_kinds_are_not_held_up(queue: Queue) -> None:
    gauge = Gauge()
    gauge.register(queue)
    await queue.limit(job="cut", rate=Rate(1, per=3600))
    for _ in range(100):
        await queue.enqueue("cut")
    for _ in range(10):
        await queue.enqueue("sew")
    async with working(queue, concurrency=2):
        while gauge.starts.count("sew") < 10:
            await asyncio.sleep(0.01)
    assert gauge.starts.count("cut") == 1
    counts = await queue.counts()
    assert (counts.unfinished, counts.completed) == (99, 11)
    waits = [info.attempt async for info in queue.jobs()]
    assert set(waits) == {0}, "to be held back is no attempt"


async def test_a_job_that_waits_does_not_count_as_one_of_max_jobs(queue: Queue) -> None:
    gauge = Gauge()
    gauge.register(queue)
    await queue.limit(concurrency=1)
    for _ in range(6):
        await queue.enqueue("cut")
    await asyncio.wait_for(queue.work(concurrency=2, max_jobs=4, handle_signals=False), 20)
    assert len(gauge.starts) == 4


@ON_BOTH
async def test_a_job_that_is_put_off_does_not_count_as_one_of_max_jobs(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    gauge = Gauge()
    gauge.register(queue)
    await queue.limit(job="cut", rate=pelton.Rate(1, per=3600))
    for job in ("cut", "cut", "cut", "sew"):
        await queue.enqueue(job)
    for _ in range(2):
        await asyncio.wait_for(queue.work(concurrency=1, max_jobs=1, handle_signals=False), 20)
    assert gauge.starts == ["cut", "sew"]


async def test_a_long_line_is_worked_off_without_a_break(queue: Queue) -> None:
    """Sixty jobs one after the other, each of which waits for the one before it and not for a timer."""
    gauge = Gauge()
    gauge.register(queue)
    await queue.limit(job="cut", concurrency=1)
    for _ in range(60):
        await queue.enqueue("cut")
    began = time.monotonic()
    async with working(queue, concurrency=2):
        while len(gauge.starts) < 60:
            await asyncio.sleep(0.01)
    assert time.monotonic() - began < 15, "a job takes 10 ms"


@ON_BOTH
async def test_limits_are_set_and_taken_away_while_workers_run(jet: Jet, another: OpenQueue) -> None:
    queue, elsewhere = await jet.queue("garage"), await another("garage")
    gauge = Gauge()
    gauge.register(queue)
    mail = await queue.limit(job="cut", concurrency=1, rate=Rate(1, per=3600))
    assert mail == JobLimit(job="cut", concurrency=1, rate=Rate(1, per=3600.0))
    assert await elsewhere.limits() == [mail]
    for _ in range(3):
        await queue.enqueue("cut")
    async with working(queue):
        while not gauge.starts:
            await asyncio.sleep(0.01)
        faster = await elsewhere.limit(job="cut", concurrency=1)
        assert await queue.limits() == [faster]
        while len(gauge.starts) < 3:
            await asyncio.sleep(0.01)
        await elsewhere.limit(concurrency=1)
        assert await elsewhere.unlimit(job="cut")
        assert not await elsewhere.unlimit(job="cut")
        assert await queue.limits() == [JobLimit(concurrency=1)]


async def test_a_job_that_waits_for_its_next_attempt_holds_no_slot(queue: Queue) -> None:
    @queue.job(backoff=[3600.0])
    async def broken() -> None:
        raise ValueError

    @queue.job
    async def sound() -> str:
        return "done"

    await queue.limit(concurrency=1)
    for _ in range(3):
        await queue.enqueue(broken)
    last = await queue.enqueue(sound)
    async with working(queue):
        assert await last.value(timeout=60) == "done"


async def test_jobs_on_threads_and_in_batches_are_limited(queue: Queue) -> None:
    live, most = [0], [0]

    @queue.job
    def thread(n: int) -> None:
        live[0] += 1
        most[0] = max(most[0], live[0])
        time.sleep(0.005)
        live[0] -= 1

    @queue.job(batch=8, wait=0.01)
    async def batch(items: list[int]) -> None:
        most[0] = max(most[0], len(items))

    await queue.limit(concurrency=2)
    await queue.enqueue_many([thread.bind(n) for n in range(10)])
    await queue.enqueue_many([batch.bind(n) for n in range(10)])
    await drain(queue)
    assert len(await ended(queue)) == 20
    assert 1 <= most[0] <= 2


@ON_BOTH
async def test_claims_keep_limits_and_return_slots(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    rules = pelton.JobRules()
    await queue.limit(concurrency=2)
    for _ in range(5):
        await queue.enqueue("job")
    async with queue.claims(rules) as claims, queue.claims(rules) as others:
        first = await claims.take(10)
        assert len(first) == 2
        assert await others.take(10, timeout=0.1) == []
        for job in first:
            job.complete()
        await claims.settle(first)
        found = await others.take(10, timeout=5)
        while len(found) < 2:
            found += await others.take(10, timeout=5)
        assert len(found) == 2
    # What was not settled was handed back, and its slots with it.
    async with queue.claims(rules) as claims:
        left = 3
        while left:
            again = await claims.take(10, timeout=5)
            assert all(job.attempt == 1 for job in again)
            for job in again:
                job.complete()
            await claims.settle(again)
            left -= len(again)


async def test_jobs_that_wait_can_be_cancelled_and_are_handed_back(queue: Queue) -> None:
    began = asyncio.Event()

    @queue.job
    async def job() -> None:
        began.set()
        await asyncio.sleep(3600)

    await queue.limit(concurrency=1)
    handles = [await queue.enqueue(job) for _ in range(3)]
    async with working(queue, grace=0.1):
        await asyncio.wait_for(began.wait(), 60)
        infos = {handle.id: (await handle.info()).state for handle in handles}
        await handles[1].cancel()
        assert (await handles[1].outcome(timeout=20)).state == "cancelled"
    assert set(infos.values()) <= {"pending", "running", "held"}
    assert [info.attempt async for info in queue.jobs()] == [0, 0]


async def test_a_drain_runs_all_that_its_limits_allow(queue: Queue) -> None:
    gauge = Gauge()
    gauge.register(queue)
    await queue.limit(concurrency=1)
    await queue.limit(job="cut", rate=Rate(1, per=3600, burst=2))
    for _ in range(5):
        await queue.enqueue("cut")
        await queue.enqueue("sew")
    await asyncio.wait_for(queue.work(until_idle=True, handle_signals=False), 60)
    assert Counter(gauge.starts) == {"cut": 2, "sew": 5}
    assert gauge.most["all"] == 1


@ON_BOTH
async def test_a_killed_worker_frees_its_slots(path: str, jet: Jet) -> None:
    queue = await jet.queue(QUEUE, exclusive=True, lease=60)
    register(queue)
    gauge = Gauge()
    gauge.register(queue)
    await queue.limit(concurrency=1)
    await queue.enqueue("endless")
    with Child("work", path, "60") as child:
        await child.says("started")
        await queue.pause(job="endless")
        async with working(queue, concurrency=2, grace=0.1):
            await asyncio.to_thread(stand_still, child.process.pid, path)
            # A server may hand some of them to the worker that is stopped.
            for _ in range(20):
                await queue.enqueue("cut")
            while (await queue.counts()).held == 0:
                await asyncio.sleep(0.01)
            # It has not ended: its lease decides.
            assert not gauge.starts
            child.process.kill()
            while not gauge.starts:
                await asyncio.sleep(0.01)
    assert "running" in [info.state for info in await waiting(queue)], "the lease of its job has not ended"


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("change", ["raised", "removed", "removed while nobody works"])
async def test_what_was_put_off_for_a_limit_starts_at_once_when_that_changes(
    jet: Jet, exclusive: bool, change: str
) -> None:
    queue = await jet.queue("garage", lease=5, exclusive=exclusive)
    started, all_have = list[int](), asyncio.Event()

    @queue.job
    async def cut(n: int) -> None:
        started.append(n)
        if len(started) == 8:
            all_have.set()

    await queue.limit(job="cut", rate=Rate(1, per=3600))
    for n in range(8):
        await queue.options(key=f"k{n}" if n % 2 else "").enqueue(cut, n)
    attempts = await jet.stream("JOBS_garage_attempts")

    async def all_are_put_off() -> None:
        while (await attempts.info()).state.messages < 7:
            await asyncio.sleep(0.01)

    async with working(queue, concurrency=1):
        await all_are_put_off()
        if change == "raised":
            # All may start at once: what has to wait a moment for the new rate may be overtaken.
            await queue.limit(job="cut", rate=Rate(1000, per=1, burst=8))
        elif change == "removed":
            await queue.unlimit(job="cut")
        if change != "removed while nobody works":
            await asyncio.wait_for(all_have.wait(), 20)
    if change == "removed while nobody works":
        await queue.unlimit(job="cut")
        async with working(queue, concurrency=1):
            await asyncio.wait_for(all_have.wait(), 20)
    assert sorted(started) == list(range(8))
    # What was taken from both channels of an exclusive queue, or by a pull of a stopped worker, is handed back.
    assert exclusive or "nobody" in change or started == sorted(started)


async def test_a_worker_that_hears_late_of_a_change_recalls_what_it_has_put_off_since() -> None:
    async with pelton.open("memory:") as jet:
        queue = await jet.queue("garage")
        started = asyncio.Event()

        @queue.job
        async def cut() -> None:
            started.set()

        late = LatePutOffs(queue._context)
        old, new = JobLimit(job="cut", rate=Rate(1, per=3600)), JobLimit(job="cut", rate=Rate(2, per=1))
        await queue.enqueue(cut)
        source = queue._context.source_for("w")
        [taken] = await source.take(source.channels[-1], PullRequest(batch=1, no_wait=True))
        records = records_of(queue.names, "w", taken.delivered)
        records.read()
        ended = records.put_off(PutOff(3600, "it waits", limit=old), queue._context.clock.now())
        late.heed(Order(limit=new))
        await source.settle(ended)
        late.note([ended])
        async with working(queue):
            await asyncio.wait_for(started.wait(), 20)
        await late.close()
        await source.close()
