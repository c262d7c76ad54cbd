"""Jobs of tenants start in turns, by their weights, wherever they were enqueued from."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts, TenantCounts, observe
from pelton.queue import ClaimedJob, Queue, job_source
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, Child, drain, ended, waiting, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])
jobs = pelton.Jobs()


@jobs.job(backoff=FAST)
async def wash(car: str) -> str:
    return car


@jobs.job(backoff=FAST, max_attempts=2)
async def fail(context: pelton.JobContext, car: str) -> str:
    if context.attempt == 1:
        raise ValueError(car)
    return car


async def enqueue(queue: Queue, tenant: str, count: int, **options: object) -> None:
    calls = [wash.bind(f"{tenant}.{n}").with_options(tenant=tenant, **options) for n in range(count)]
    await queue.enqueue_many(calls)


async def order(queue: Queue) -> list[str]:
    """Return the tenants of the jobs that have ended, in the order in which they started."""
    outcomes = sorted(await ended(queue), key=lambda outcome: outcome.started_at)
    return [str(outcome.value()).split(".")[0] for outcome in outcomes]


@ON_BOTH
@BOTH_KINDS
async def test_tenants_take_turns(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    await enqueue(queue, "acme", 30)
    await enqueue(queue, "", 10)
    await enqueue(queue, "small & co.", 3)
    await enqueue(queue, "b", 6)
    assert await queue.counts() == JobCounts(pending=49)
    infos = await waiting(queue)
    assert Counter(info.tenant for info in infos) == {"acme": 30, "": 10, "small & co.": 3, "b": 6}
    await drain(queue, concurrency=1)
    found = await order(queue)
    for first in (0, 4, 8):
        assert Counter(found[first : first + 4]) == {"acme": 1, "": 1, "small & co": 1, "b": 1}
    assert found[12:].index("b") < 4
    assert found[-20:] == ["acme"] * 20
    assert await queue.counts() == JobCounts(completed=49)
    values = [str(outcome.value()) for outcome in await ended(queue)]
    assert [value for value in values if value[0] == "b"] == [f"b.{n}" for n in range(6)]


@ON_BOTH
async def test_each_has_as_many_turns_as_its_weight(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await (await another("garage")).weigh("acme", 3)
    await queue.weigh("b", 7)
    await queue.weigh("b", 1)
    assert await queue.weights() == {"acme": 3}
    for tenant in ("acme", "b", "c"):
        await enqueue(queue, tenant, 12)
    await drain(queue, concurrency=1)
    found = await order(queue)
    for first in (0, 5, 10):
        assert Counter(found[first : first + 5]) == {"acme": 3, "b": 1, "c": 1}


@ON_BOTH
async def test_a_running_worker_hears_of_a_weight(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    go, began = asyncio.Event(), asyncio.Event()

    @queue.job
    async def wait() -> str:
        began.set()
        await go.wait()
        return "b"

    async with working(queue, concurrency=1), asyncio.timeout(30):
        await queue.options(tenant="b").enqueue(wait)
        await began.wait()
        await queue.weigh("acme", 4)
        await enqueue(queue, "b", 20)
        await enqueue(queue, "acme", 20)
        go.set()
        while (await queue.counts()).unfinished:
            await asyncio.sleep(0.02)
    outcomes = [outcome for outcome in await ended(queue) if outcome.state == "completed"]
    found = [str(one.value()).split(".")[0] for one in sorted(outcomes, key=lambda outcome: outcome.started_at)]
    # What it had taken ahead is left out.
    assert abs(Counter(found[5:25])["acme"] - 16) <= 2, "".join(x[0] for x in found)


@ON_BOTH
@BOTH_KINDS
async def test_they_take_turns_within_their_priority(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    for tenant, priority in (("a", 0), ("b", 0), ("a", 2), ("c", 2), ("", 2)):
        await enqueue(queue, tenant, 3, priority=priority)
    await drain(queue, concurrency=1)
    outcomes = sorted(await ended(queue), key=lambda outcome: outcome.started_at)
    found = [str(outcome.value()).split(".")[0] for outcome in outcomes]
    assert sorted(found[:3]) == sorted(found[3:6]) == ["", "a", "c"]
    assert Counter(found) == {"a": 6, "b": 3, "c": 3, "": 3}


@ON_BOTH
@BOTH_KINDS
async def test_a_waiting_worker_takes_them_at_once(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    async with working(queue, concurrency=2), asyncio.timeout(30):
        for n in range(12):
            tenant, priority = ("", "a", "b")[n % 3], n % 2
            handle = await queue.options(tenant=tenant, priority=priority).enqueue(wash, f"{n}")
            assert await handle.value(timeout=60) == f"{n}"
        calls = [wash.bind(str(n)).with_options(priority=n % 4, tenant=f"t{n % 5}") for n in range(60)]
        for n, one in enumerate(await queue.enqueue_many(calls)):
            assert await one.value(timeout=60) == f"{n}"
    assert await queue.counts() == JobCounts(completed=72)


@ON_BOTH
async def test_a_waiting_worker_finds_one_that_nobody_announced(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    async with working(queue), asyncio.timeout(30):
        await (await queue.enqueue(wash, "1")).value(timeout=60)
        monkeypatch.setattr("pelton.queue.enqueuer.ring", lambda *_: asyncio.sleep(0))
        handle = await queue.options(tenant="a").enqueue(wash, "2")
        assert await handle.value(timeout=60) == "2"


@ON_BOTH
@BOTH_KINDS
async def test_claims_take_them_in_turns(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    await enqueue(queue, "a", 20)
    await enqueue(queue, "b", 4)
    async with queue.claims() as claims:
        taken = await claims.take(8)
        assert [car_of(job).split(".")[0] for job in taken] == ["a", "b"] * 4
        for job in taken:
            job.complete()
        assert await claims.settle(taken) == []
        while taken := await claims.take(7):
            for job in taken:
                job.complete()
            assert await claims.settle(taken) == []
        taking = asyncio.create_task(claims.take(5, timeout=20))
        await asyncio.sleep(0)
        await enqueue(queue, "c", 1)
        [job] = await taking
        assert car_of(job) == "c.0"
        job.complete()
        await claims.settle([job])
        assert await claims.is_empty()
    assert await queue.counts() == JobCounts(completed=25)


def car_of(job: ClaimedJob) -> str:
    return str(json.loads(job.args)["car"])


@ON_BOTH
@BOTH_KINDS
async def test_with_delays_ids_and_unique_jobs(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    acme = {"tenant": "a.c me"}
    later = await queue.options(delay=1, priority=3, **acme).enqueue(wash, "3")
    named = await queue.options(id="one", **acme).enqueue(wash, "2")
    unique = await queue.options(unique="text", **acme).enqueue(wash, "1")
    again = [
        await queue.options(id="one", **acme).enqueue(wash, "0"),
        await queue.options(unique="text", priority=3, delay=5, **acme).enqueue(wash, "0"),
    ]
    assert [(handle.id, handle.duplicate) for handle in again] == [(named.id, True), (unique.id, True)]
    # What is unique is so for its tenant.
    others = [await queue.options(unique="text", tenant=name).enqueue(wash, "1") for name in ("", "b")]
    assert not any(handle.duplicate for handle in others)
    debounced = [
        await queue.options(unique="d", delay=3600, replace=True, priority=n, **acme).enqueue(wash, str(n))
        for n in (1, 3)
    ]
    assert debounced[0].id == debounced[1].id
    found = [await handle.info() for handle in (later, named, unique, debounced[0])]
    assert {info.tenant for info in found} == {"a.c me"}
    assert [info.state for info in found[1:]] == ["pending", "pending", "scheduled"]
    assert (await queue.counts()).unfinished == 6
    assert await debounced[0].cancel()
    late = await queue.options(ttl=0.001, **acme).enqueue(wash, "late")
    await asyncio.sleep(0.01)
    async with working(queue):
        for handle, value in ((later, "3"), (named, "2"), (unique, "1")):
            assert await handle.value(timeout=60) == value
        assert (await late.outcome(timeout=60)).state == "expired"
    assert (await queue.options(id="one", **acme).enqueue(wash, "0")).duplicate is False


@ON_BOTH
@BOTH_KINDS
async def test_they_can_be_cancelled_moved_purged_and_redriven(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    other = await jet.queue("other", jobs=jobs, exclusive=not exclusive)
    first = await queue.options(tenant="a").enqueue(wash, "3")
    second = await queue.options(tenant="b", delay=3600).enqueue(wash, "2")
    third = await queue.options(tenant="c", id="third").enqueue(wash, "1")
    assert await first.cancel()
    moved = [await queue.move(handle.id, other) for handle in (second, third)]
    assert [(await handle.info()).tenant for handle in moved] == ["b", "c"]
    await drain(other)
    assert await moved[1].value(timeout=60) == "1"
    await enqueue(queue, "a", 2)
    await enqueue(queue, "b", 3)
    assert await queue.purge(tenant="b") == 3
    assert [info.tenant async for info in queue.jobs(tenant="a")] == ["a", "a"]

    @queue.job(max_attempts=1)
    async def broken(car: str) -> None:
        raise ValueError(car)

    failed = await queue.options(tenant="d").enqueue(broken, "2")
    await drain(queue)
    again = await queue.redrive(failed.id)
    info = await again.info()
    assert (info.tenant, info.state) == ("d", "pending")
    assert await queue.purge() == 1


@ON_BOTH
@BOTH_KINDS
async def test_the_tenants_with_the_most_jobs(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    assert await queue.tenants() == []
    await queue.weigh("b c.", 3)
    for tenant, count, options in (("", 9, {}), ("a", 4, {}), ("b c.", 4, {}), ("b c.", 2, {"priority": 1})):
        await enqueue(queue, tenant, count, **options)
    await enqueue(queue, "later", 3, delay=3600)
    assert await queue.tenants() == [
        TenantCounts(tenant="b c.", pending=6, weight=3),
        TenantCounts(tenant="a", pending=4),
    ]
    summary = await observe.queue_summary(jet, "garage")
    assert (summary.pending, summary.scheduled) == (19, 3)
    async with queue.claims() as claims:
        taken = await claims.take(2)
        assert {car_of(job) for job in taken} == {"b c..0", "b c..1"}
        assert await queue.tenants(limit=1) == [TenantCounts(tenant="b c.", pending=4, taken=2, weight=3)]
        assert (await observe.queue_summary(jet, "garage")).pending == 17
        for job in taken:
            job.complete()
        await claims.settle(taken)
    await queue.purge()
    assert await queue.tenants() == []
    with pytest.raises(ConfigError, match="limit is 0"):
        await queue.tenants(limit=0)


async def test_tenants_beyond_the_first_page_of_subjects_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unique job has a subject, and a store lists 100,000 at a time; here three."""
    monkeypatch.setattr("pelton.engine.verbs.streams._SUBJECTS_PAGE", 3)
    async with pelton.open("memory:") as jet:
        queue = await jet.queue("garage", jobs=jobs)
        for tenant, count in (("a", 5), ("z", 3)):
            cars = [f"{tenant}.{number}" for number in range(count)]
            await queue.enqueue_many([wash.bind(car).with_options(tenant=tenant, unique=car) for car in cars])
        assert {each.tenant: each.pending for each in await queue.tenants()} == {"a": 5, "z": 3}
        for name in "bcdef":
            await queue.schedule(name, wash, args=(name,), every=3600)
        assert len(await queue.schedules()) == 5
        await queue.work(max_jobs=2, concurrency=1)
        assert sorted(await order(queue)) == ["a", "z"]


@ON_BOTH
async def test_a_purge_spares_only_what_may_run(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await enqueue(queue, "a", 2)
    await enqueue(queue, "b", 2)
    async with queue.claims() as claims:
        assert len(await claims.take(2)) == 2
        assert (await queue.counts()).running == 2
        assert await queue.purge() == 2


@ON_BOTH
async def test_retries_wait_and_keep_their_tenant(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    async with working(queue):
        handles = [await queue.options(tenant=f"t{n}", priority=n).enqueue(fail, str(n)) for n in range(3)]
        for n, handle in enumerate(handles):
            assert await handle.value(timeout=60) == str(n)
            assert (await handle.outcome()).attempt == 2


@ON_BOTH
async def test_pausing_holds_them_up(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await enqueue(queue, "a", 1)
    async with queue.claims() as claims:
        [job] = await claims.take(1)
        job.complete()
        await claims.settle([job])
        await queue.pause()
        # One consumer is there, the other is made while the queue is paused.
        await enqueue(queue, "a", 1)
        await enqueue(queue, "b", 1)
        assert await claims.take(5) == []
        await queue.resume()
        found: list[ClaimedJob] = []
        while len(found) < 2:
            found += await claims.take(5, timeout=1)
    assert (await queue.counts()).unfinished == 2


@ON_BOTH
async def test_in_a_queue_with_limits(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await queue.limit(concurrency=2)
    for tenant in "abc":
        await enqueue(queue, tenant, 8)
    await drain(queue, concurrency=4)
    assert await queue.counts() == JobCounts(completed=24)


@ON_BOTH
async def test_a_killed_worker_costs_its_job_one_attempt(jet: Jet, path: str) -> None:
    queue = await jet.queue("shop", exclusive=True, lease=1)
    handle = await queue.options(tenant="a").enqueue("endless")
    with Child("work", path, "1") as first:
        await first.says("started 1")
        first.process.kill()
        with Child("work", path, "1") as second:
            await second.says("started 2")
            assert (await handle.info()).tenant == "a"


@ON_BOTH
async def test_the_jobs_of_lost_leases_come_again(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs, lease=1)
    await enqueue(queue, "a", 2)
    await enqueue(queue, "b", 2)
    async with queue.claims() as claims:
        assert len(await claims.take(4)) == 4
        claims._held.stop()
        async with working(queue), asyncio.timeout(60):
            while (await queue.counts()).completed < 4:
                await asyncio.sleep(0.05)
    assert {outcome.attempt for outcome in await ended(queue)} == {2}


@ON_BOTH
async def test_workers_share_them(jet: Jet, another: OpenQueue) -> None:
    queue, other = await jet.queue("garage", jobs=jobs), await another("garage", jobs=jobs)
    async with working(queue, other, concurrency=3):
        calls = [wash.bind(str(n)).with_options(tenant=f"t{n % 7}") for n in range(200)]
        for n, handle in enumerate(await queue.enqueue_many(calls)):
            assert await handle.value(timeout=30) == str(n)
            assert (await handle.outcome()).attempt == 1
    assert await queue.counts() == JobCounts(completed=200)


async def test_hundreds_of_tenants_and_a_greedy_one(queue: Queue) -> None:
    queue.job(name="wash")(wash.function)
    await enqueue(queue, "greedy", 2_000)
    calls = [wash.bind(f"t{n}").with_options(tenant=f"t{n}") for n in range(300)]
    await queue.enqueue_many(calls)
    async with queue.claims(pelton.JobRules()) as claims:
        found: list[str] = []
        while len(found) < 602:
            taken = await claims.take(50)
            found += map(car_of, taken)
            for job in taken:
                job.complete()
            await claims.settle(taken)
    assert {f"t{n}" for n in range(300)} < set(found[:302])


async def test_in_a_transaction_and_by_name(jet: Jet) -> None:
    queue = await jet.queue("garage")
    async with jet.transaction() as tx:
        handle = await tx.queue(queue).options(tenant="a").enqueue("wash", car="1")
    other = await queue.options(tenant="b", priority=2).enqueue("wash", car="2")
    assert [(await one.info()).tenant for one in (handle, other)] == ["a", "b"]


@pytest.mark.parametrize("tenant", [7, "x" * 600, None])
async def test_what_is_no_tenant(queue: Queue, tenant: object) -> None:
    with pytest.raises(ConfigError, match="a tenant must"):
        queue.options(tenant=tenant)  # type: ignore[typeddict-item]
    with pytest.raises(ConfigError, match="a tenant must"):
        await queue.weigh(tenant, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0, -1, 1.5, True, 1001, "2"])
async def test_what_is_no_weight(queue: Queue, weight: object) -> None:
    with pytest.raises(ConfigError, match="a whole number from 1 to 1000"):
        await queue.weigh("acme", weight)  # type: ignore[arg-type]


async def test_keys_of_exclusive_queues_have_none(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=True)
    with pytest.raises(ConfigError, match="leave tenant or key out"):
        await queue.options(tenant="a", key="car1").enqueue(wash, "1")
    label = await (await jet.queue("plain", jobs=jobs)).options(tenant="a", key="car1").enqueue(wash, "1")
    moved = await (await jet.queue("plain")).move(label.id, queue)
    assert ((await moved.info()).tenant, (await moved.info()).key) == ("", "car1")


@ON_BOTH
async def test_a_queue_of_an_older_version_gets_them(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    await queue.enqueue(wash, "0")
    stream = await jet.stream("JOBS_garage")
    before = [subject for subject in stream.config.subjects if ".tenant." not in subject]
    await jet.update_stream("JOBS_garage", subjects=before)
    again = await jet.queue("garage", jobs=jobs)
    await enqueue(again, "a", 1)
    await drain(again)
    assert await again.counts() == JobCounts(completed=2)


@ON_BOTH
async def test_a_consumer_that_nobody_used_is_made_again(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    stream = await jet.stream("JOBS_garage")
    await enqueue(queue, "a", 2)
    async with queue.claims() as claims:
        for _ in range(2):
            [job] = await claims.take(1, timeout=10)
            job.complete()
            await claims.settle([job])
            [name] = [name for name in await stream.consumer_names() if name.startswith("tenant")]
            await stream.delete_consumer(name)
    assert await queue.counts() == JobCounts(completed=2)


async def test_the_manual_clock() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", jobs=jobs)
        await enqueue(queue, "a", 2)
        await enqueue(queue, "b", 1, delay=60)
        await queue.work(until_idle=True, handle_signals=False)
        assert await queue.counts() == JobCounts(completed=2, scheduled=1)
        runtime.clock.advance(61)
        await queue.work(until_idle=True, handle_signals=False)
        assert await queue.counts() == JobCounts(completed=3)


async def test_a_worker_without_work_hardly_writes_though_a_tenant_has_a_job() -> None:
    runtime = manual_runtime()

    async def pass_seconds(count: int) -> None:
        for _ in range(count * 50):
            runtime.clock.advance(0.02)
            for _ in range(12):
                await asyncio.sleep(0)

    async with pelton.open("memory:", runtime=runtime) as jet:
        one, another = [await jet.queue("garage", jobs=jobs, lease=3600) for _ in range(2)]
        await enqueue(one, "a", 1)
        committer: Any = jet.backend._committer  # type: ignore[attr-defined]  # of an embedded store
        async with one.claims() as claims:
            [held] = await claims.take(1)
            async with working(another):
                await pass_seconds(3)
                before = committer.rounds
                await pass_seconds(10)
                # Its report, and when it has used consumers: it asked them fifty times a second.
                assert committer.rounds - before < 10
                held.complete()
                await claims.settle([held])


@ON_BOTH
@pytest.mark.parametrize("of", ["tenants", "priorities"])
async def test_workers_that_end_after_one_job_serve_everybody(jet: Jet, of: str) -> None:
    queue = await jet.queue("garage", lease=5)
    started = Counter[str]()

    @queue.job
    async def job(of: str) -> None:
        started[of] += 1

    first, second = job.options(tenant="a"), job.options(tenant="b")
    if of == "priorities":
        first, second = job.options(priority=1), job.options(priority=0)
    await queue.enqueue_many([call for _ in range(200) for call in (first.bind("a"), second.bind("b"))])
    while len(started) < 2 and started.total() < 200:
        await drain(queue, max_jobs=1, concurrency=1)
    # The first 24 come in order. After that, each takes its turn with a chance of an eighth at least.
    assert len(started) == 2


@BOTH_KINDS
async def test_who_has_no_tenants_takes_none_of_their_turns(
    jet: Jet, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    queue = await jet.queue("garage", jobs=jobs, exclusive=exclusive)
    await enqueue(queue, "", 3)

    def take(*_: object) -> None:
        raise AssertionError("no tenant has jobs")

    monkeypatch.setattr(job_source.TenantLines, "take", take)
    monkeypatch.setattr(job_source, "tenants_with_jobs", take)
    await drain(queue)
    assert await queue.counts() == JobCounts(completed=3)
