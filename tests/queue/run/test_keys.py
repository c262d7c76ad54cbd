"""Exclusive keys: one at a time, in order, without blocking other keys."""

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton import Jet
from pelton.api import Backoff, ConfigError, RetryJob
from pelton.queue import JobContext, Queue
from pelton.queue.model.naming import QueueNames, encode_key
from pelton.subjects import is_subject
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, ended, working

UNUSUAL = [
    "ü",
    "a b",
    "a.b",
    "a..b",
    ".",
    "*",
    ">",
    "a.*.>",
    "%41",
    "A",
    "%",
    "\t\n",
    "key",
    "🚗",
    "x" * 512,
    "a/b=c:d",
]


@ON_BOTH
async def test_one_job_of_a_key_runs_at_a_time_and_in_order(keyed: Queue, another: OpenQueue) -> None:
    holders, order, peak = defaultdict[str, int](int), defaultdict[str, list[int]](list), 0
    other = await another("keyed")

    async def job(n: int, context: JobContext) -> None:
        nonlocal peak
        holders[context.key] += 1
        peak = max(peak, holders[context.key])
        await asyncio.sleep(0)
        order[context.key].append(n)
        holders[context.key] -= 1

    queued = keyed.job(job)
    other.job(job)
    handles = await queued.enqueue_many([(n,) for n in range(200)], keys=[f"k{n % 7}" for n in range(200)])
    async with working(keyed, other, concurrency=4):
        await asyncio.gather(*(handle.outcome(timeout=60) for handle in handles[-7:]))
    assert peak == 1
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert sum(map(len, order.values())) == 200


@ON_BOTH
async def test_order_is_kept_through_retries_with_backoff(keyed: Queue) -> None:
    seen = list[tuple[int, int]]()

    @keyed.job(backoff=Backoff(base=0.02, factor=1.5, jitter=1), max_attempts=4)
    async def job(n: int, context: JobContext) -> None:
        seen.append((n, context.attempt))
        if n % 2 and context.attempt <= 2:
            raise RetryJob(0 if n == 1 else None)

    await job.enqueue_many([(n,) for n in range(4)], keys=["k"] * 4)
    await drain(keyed, concurrency=4)
    assert seen == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2), (3, 3)]


@ON_BOTH
async def test_a_stuck_key_delays_nobody_else(jet: Jet) -> None:
    # No lease may end on a busy machine: the job would be run again.
    keyed = await jet.queue("steady", exclusive=True, lease=30)
    started, finish = asyncio.Event(), asyncio.Event()
    done = list[str]()

    @keyed.job
    async def job(context: JobContext) -> None:
        if context.key == "stuck" and not started.is_set():
            started.set()
            await finish.wait()
        done.append(context.key)

    handles = await job.enqueue_many([()] * 60, keys=["stuck"] * 30 + ["a", "b", ""] * 10)
    async with working(keyed, concurrency=2):
        await started.wait()
        await asyncio.gather(*(handle.outcome(timeout=60) for handle in handles[30:]))
        assert len(done) == 30
        assert "stuck" not in done
        finish.set()
        await handles[29].outcome(timeout=60)
    assert done[30:] == ["stuck"] * 30


@ON_BOTH
async def test_a_key_that_waits_for_its_retry_delays_nobody_else(keyed: Queue) -> None:
    @keyed.job(backoff=Backoff(base=600))
    async def job(n: int, context: JobContext) -> None:
        if context.key == "broken":
            raise ValueError

    handles = await job.enqueue_many([(0,), (1,), (2,)], keys=["broken", "broken", "fine"])
    async with working(keyed):
        await handles[2].outcome(timeout=60)
        while (await handles[0].info()).state != "retrying":
            await asyncio.sleep(0)
    assert (await handles[1].info()).attempt == 0


@ON_BOTH
async def test_the_next_of_a_key_is_deliverable_in_the_transaction_that_ends_the_one_before(keyed: Queue) -> None:
    waits = list[float]()
    clock = keyed.jet.runtime.clock
    ended_at = 0.0

    @keyed.job
    async def job() -> None:
        nonlocal ended_at
        if ended_at:
            waits.append(clock.monotonic() - ended_at)
        ended_at = clock.monotonic()

    handles = await job.enqueue_many([()] * 50, keys=["k"] * 50)
    async with working(keyed, concurrency=3):
        await handles[-1].outcome(timeout=60)
    assert sorted(waits)[len(waits) // 2] < 0.05  # nothing polls: it is commonly under a millisecond


@ON_BOTH
async def test_a_dead_job_frees_its_key(keyed: Queue) -> None:
    @keyed.job(max_attempts=2, backoff=FAST)
    async def job(n: int) -> None:
        if n == 0:
            raise ValueError

    await job.enqueue_many([(0,), (1,)], keys=["k", "k"])
    await drain(keyed)
    assert [(outcome.id, outcome.state) for outcome in await ended(keyed)] == [("1", "failed"), ("2", "completed")]


@ON_BOTH
async def test_jobs_without_a_key_are_not_exclusive(keyed: Queue) -> None:
    together = asyncio.Barrier(3)

    @keyed.job
    async def job() -> None:
        await together.wait()

    await job.enqueue_many([()] * 3)
    await drain(keyed, concurrency=3)
    assert (await keyed.counts()).completed == 3


async def test_a_queue_that_is_not_exclusive_carries_keys_without_heeding_them(queue: Queue) -> None:
    together = asyncio.Barrier(2)

    @queue.job
    async def job(context: JobContext) -> str:
        await together.wait()
        return context.key

    handles = await job.enqueue_many([(), ()], keys=["k", "k"])
    await drain(queue)
    assert [(await handle.outcome()).value() for handle in handles] == ["k", "k"]


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_unusual_keys_arrive_as_they_were(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("unusual", exclusive=exclusive)

    @queue.job
    async def job(context: JobContext) -> str:
        return context.key

    handles = await job.enqueue_many([()] * len(UNUSUAL), keys=UNUSUAL)
    await drain(queue)
    assert [(await handle.outcome()).value() for handle in handles] == UNUSUAL


@pytest.mark.parametrize("key", ["x" * 513, "ü" * 257, "\udcff", 5, None, b"k"])
@pytest.mark.parametrize("exclusive", [False, True])
async def test_keys_that_are_none_are_refused(jet: Jet, key: str, exclusive: bool) -> None:
    queue = await jet.queue("q", exclusive=exclusive)

    @queue.job
    async def job() -> None: ...

    with pytest.raises(ConfigError, match="key must"):
        await job.enqueue(key=key)
    assert (await queue.counts()).pending == 0


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), unique=True, max_size=10))
def test_keys_become_distinct_subjects_of_the_queue(keys: list[str]) -> None:
    names = QueueNames("q")
    subjects = [names.job_subject(key) for key in keys]
    assert all(is_subject(subject) and subject.startswith("$JOBS.q.key.") for subject in subjects)
    assert len(set(subjects)) == len(keys)


def test_plain_keys_stay_readable() -> None:
    assert encode_key("flights.N1-x_y/z=1:2") == "flights.N1-x_y/z=1:2"
    assert encode_key("a b.ü") == "a%20b%2E%C3%BC"


def test_an_empty_key_is_none() -> None:
    with pytest.raises(ConfigError):
        encode_key("")
    assert QueueNames("q").job_subject("") == "$JOBS.q.free"


@pytest.mark.parametrize("key", ["a", "a.b", "a.b c", ".", "a..b", "%2E", "ä.ö", "~a"])
async def test_a_scheduled_job_is_found_by_its_id_whatever_its_key(keyed: Queue, key: str) -> None:
    handle = await keyed.options(key=key, delay=60).enqueue("job")
    assert (await handle.info()).key == key
    tenant = await keyed.options(tenant=key, delay=60).enqueue("job")
    assert (await tenant.info()).tenant == key
    for one in (handle, tenant):
        assert await one.cancel()
