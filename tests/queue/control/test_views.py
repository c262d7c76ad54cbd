"""The views of a queue: counts, jobs, history, dead letters; and an operator's actions on it."""

import asyncio
import re
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest

import pelton
from pelton import Jet
from pelton.api import Backoff, ConfigError, JobNotFoundError, RetryJob, StoredMessage
from pelton.queue import JobContext, JobCounts, Queue
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, ended, waiting, working


async def tallies(queue: Queue) -> JobCounts:
    """Count states from the lists, which must agree with the counts."""
    states = [info.state for info in await waiting(queue)] + [outcome.state for outcome in await ended(queue)]
    return JobCounts(**{name: states.count(name) for name in JobCounts.__struct_fields__ if name != "held_for"})


@pytest.mark.parametrize("exclusive", [False, True])
async def test_every_state_is_seen_alike_in_all_views(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("q", exclusive=exclusive)
    started, finish = asyncio.Event(), asyncio.Event()

    @queue.job(max_attempts=2, backoff=Backoff(base=600))
    async def job(kind: str) -> None:
        if kind == "hold":
            started.set()
            await finish.wait()
        elif kind == "retry":
            raise RetryJob(600)
        elif kind == "fail":
            raise queue_error

    queue_error = ConfigError("x")
    queue.jobs_by_name["job"].rules = type(job.rules)(permanent=(ConfigError,), max_attempts=2)
    kinds = ["retry", "fail", "done", "hold", "wait", "wait"]
    handles = await job.enqueue_many([(kind,) for kind in kinds], keys=list("abcdef"))
    assert await queue.counts() == JobCounts(pending=6)
    async with working(queue, concurrency=1):
        await started.wait()
        counts = await queue.counts()
        assert counts == await tallies(queue)
        assert (counts.running, counts.retrying, counts.failed, counts.completed) == (1, 1, 1, 1)
        assert (counts.unfinished, counts.finished) == (4, 2)
        states = [(await handle.info()).state for handle in handles]
        assert states == ["retrying", "failed", "completed", "running", "pending", "pending"]
        retrying = await handles[0].info()
        assert (retrying.attempt, retrying.last_error[:8]) == (1, "RetryJob")
        finish.set()
        await handles[5].outcome(timeout=60)
    assert await queue.counts() == await tallies(queue)


@ON_BOTH
async def test_the_counts_leave_no_job_out(another: OpenQueue) -> None:
    queue = await another("garage")
    started, finish = asyncio.Event(), asyncio.Event()

    @queue.job(backoff=Backoff(base=600))
    async def job(kind: str) -> None:
        if kind == "retry":
            raise RetryJob(600)
        started.set()
        await finish.wait()

    await job.enqueue_many([(kind,) for kind in ("retry", "hold", "wait", "wait")])
    async with working(queue, concurrency=1):
        await started.wait()
        counts = await queue.counts()
        assert (counts.unfinished, counts.running + counts.retrying) == (4, 2)
        finish.set()


@ON_BOTH
@pytest.mark.parametrize("key", ["", "car"])
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_job_that_waits_for_its_time_is_scheduled_and_one_that_nobody_knows_is_stuck(
    another: OpenQueue, exclusive: bool, key: str
) -> None:
    queue = await another("garage", exclusive=exclusive)

    @queue.job(backoff=Backoff(base=600))
    async def job(context: JobContext, kind: str) -> None:
        if kind == "snooze":
            raise pelton.Snooze(600, "the shop is closed")
        if kind == "sleep":
            await context.progress(0.5)
            await context.sleep(600)
        raise RetryJob(600)

    def options(n: int) -> Any:
        return {"key": f"{key}{n}"} if key else {}

    kinds = ["snooze", "sleep", "retry"]
    handles = [await queue.options(**options(n)).enqueue(job, kind) for n, kind in enumerate(kinds)]
    handles.append(await queue.options(**options(3)).enqueue("nobody"))
    now = queue.jet.runtime.clock.now()
    async with working(queue):
        while [info.attempt for info in await waiting(queue)] != [0, 0, 1, 0]:
            await asyncio.sleep(0.01)
        while not (await handles[3].info()).last_error or (await queue.counts()).scheduled < 2:
            await asyncio.sleep(0.01)
    infos = [await handle.info() for handle in handles]
    assert [info.state for info in infos] == ["scheduled", "scheduled", "retrying", "stuck"]
    assert infos == await waiting(queue)
    assert [info.due > now + 500 * 10**9 for info in infos] == [True, True, True, False]
    assert infos[0].last_error == "the shop is closed"
    assert infos[1].progress is not None
    assert await queue.counts() == await tallies(queue) == JobCounts(scheduled=2, retrying=1, stuck=1)
    for state, ids in {"scheduled": [0, 1], "retrying": [2], "stuck": [3], "running": []}.items():
        found = [info.id async for info in queue.jobs(state=cast(Any, state))]
        assert found == [handles[n].id for n in ids]
    assert await queue.oldest_at() == infos[3].enqueued_at


@ON_BOTH
async def test_the_oldest_job_is_one_that_is_due(another: OpenQueue) -> None:
    queue = await another("garage")

    @queue.job
    async def job(n: int) -> None: ...

    await queue.schedule("daily", job, args=(0,), cron="0 0 0 1 1 *")
    await queue.options(delay=600).enqueue(job, 1)
    assert await queue.oldest_at() == 0
    handles = await job.enqueue_many([(n,) for n in range(2, 5)])
    assert await queue.oldest_at() == (await handles[0].info()).enqueued_at
    await handles[0].cancel()
    assert await queue.oldest_at() == (await handles[1].info()).enqueued_at
    await queue.purge()
    assert await queue.oldest_at() == 0


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_jobs_of_many_subjects_are_listed_in_their_order(another: OpenQueue, exclusive: bool) -> None:
    queue = await another("garage", exclusive=exclusive)

    @queue.job
    async def job(n: int) -> None: ...

    keys = ["", "a", "b.c"]
    calls = [job.options(key=keys[n % 3], priority=n % 4).bind(n) for n in range(300)]
    handles = await queue.enqueue_many(calls)
    for n in range(0, 300, 7):
        await handles[n].cancel()
    left = [handle.id for n, handle in enumerate(handles) if n % 7]
    assert [info.id for info in await waiting(queue)] == left
    of_key = [handle.id for n, handle in enumerate(handles) if n % 7 and n % 3 == 2]
    assert [info.id async for info in queue.jobs(key="b.c")] == of_key
    assert await queue.purge(key="b.c") == len(of_key)
    assert await queue.purge() == len(left) - len(of_key)
    assert await queue.counts() == JobCounts(cancelled=300)


async def test_a_filter_asks_nothing_of_jobs_that_it_leaves_out(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    @queue.job(backoff=Backoff(base=600))
    async def job(n: int) -> None:
        raise RetryJob(600)

    await job.enqueue_many([(n,) for n in range(50)])
    async with working(queue):
        while (await queue.counts()).retrying < 50:
            await asyncio.sleep(0.01)
    await queue.options(delay=600).enqueue(job, 50)
    backend, asked = queue.jet.backend, Counter[str]()
    for verb in ("call", "direct_get"):
        real = getattr(backend, verb)
        monkeypatch.setattr(backend, verb, lambda *args, real=real: asked.update(["all"]) or real(*args))

    async def questions(**wanted: Any) -> tuple[int, int]:
        asked.clear()
        found = [info async for info in queue.jobs(**wanted)]
        return len(found), asked["all"]

    _, least = await questions(job="nobody")
    assert least < 30
    assert await questions(state="pending") == (0, least)
    assert await questions(state="scheduled") == (1, least)
    assert (await questions(key="nobody", state="retrying"))[1] <= least + 50
    # The record of the last attempt of each: none has told how far it is.
    assert await questions(job="job") == (51, least + 50)
    asked.clear()
    assert await queue.purge(job="nobody") == 0
    assert asked["all"] <= least + 1


async def test_a_job_handed_back_is_pending_and_has_no_attempt(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.job
    async def job() -> None:
        started.set()
        await asyncio.Event().wait()

    handle = await job.enqueue()
    async with working(queue, grace=0):
        await started.wait()
    info = await handle.info()
    assert (info.state, info.attempt) == ("pending", 0)
    assert await queue.counts() == JobCounts(pending=1) == await tallies(queue)


async def test_jobs_are_listed_oldest_first(queue: Queue) -> None:
    @queue.job
    async def job(n: int) -> None: ...

    await job.enqueue_many([(n,) for n in range(300)])
    listed = await waiting(queue)
    assert [info.id for info in listed] == [str(n) for n in range(1, 301)]
    assert {info.job for info in listed} == {"job"}


async def test_a_long_history_is_read_to_its_end_and_by_state(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def job(n: int) -> None:
        assert n % 3

    await job.enqueue_many([(n,) for n in range(600)])
    await drain(queue, concurrency=8)
    assert len(await ended(queue)) == 600
    assert len([outcome async for outcome in queue.history("failed")]) == 200
    assert len([letter async for letter in queue.dead_letters()]) == 200
    assert await queue.counts() == JobCounts(completed=400, failed=200)


async def test_clean_removes_what_is_old_and_nothing_else(queue: Queue) -> None:
    @queue.job
    async def job() -> None: ...

    assert await queue.clean(older_than=0) == 0
    await job.enqueue_many([()] * 3)
    await drain(queue, concurrency=1)
    assert await queue.clean(older_than=timedelta(hours=1)) == 0
    first = (await ended(queue))[0]
    age = (queue.jet.runtime.clock.now() - first.finished_at) / 1e9
    assert await queue.clean(older_than=age) in (1, 2, 3)
    left = await ended(queue)
    assert first.id not in [outcome.id for outcome in left]
    assert await queue.clean(older_than=0) == len(left)
    with pytest.raises(JobNotFoundError):
        await queue.get(first.id)


async def test_a_dead_letter_is_driven_again_once(queue: Queue) -> None:
    broken = True

    @queue.job(max_attempts=1)
    async def job(n: int) -> int:
        if broken:
            raise ValueError
        return n

    handle = await job.enqueue(7)
    await drain(queue)
    broken = False
    again = await queue.redrive(handle.id)
    assert again.id != handle.id
    with pytest.raises(JobNotFoundError):
        await queue.redrive(handle.id)
    await drain(queue)
    assert (await again.outcome()).value() == 7
    assert [letter async for letter in queue.dead_letters()] == []
    assert (await handle.info()).state == "failed"  # history is not rewritten


async def test_a_redriven_job_keeps_its_key(keyed: Queue) -> None:
    @keyed.job(max_attempts=1)
    async def job(context: JobContext) -> None:
        raise ValueError

    handle = await job.enqueue(key="a b")
    await drain(keyed)
    again = await keyed.redrive(handle.id)
    assert (await again.info()).key == "a b"


async def test_outcome_waits_and_can_be_bounded(queue: Queue, another: OpenQueue) -> None:
    @queue.job(backoff=FAST)
    async def job(n: int) -> int:
        return n

    handle = await job.enqueue(1)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
        await handle.outcome(timeout=0.01)
    waiter = asyncio.create_task(handle.outcome(timeout=60))
    await drain(queue)
    assert (await waiter).value() == 1
    assert (await handle.outcome(timeout=60)).value() == 1
    elsewhere = await another("garage")
    assert (await elsewhere.get(handle.id)).state == "completed"


@pytest.mark.parametrize("job_id", ["", "0", "-1", "x", "1.5", "²", "1 ", "007", "9" * 30, "*", ">", 5, None, b"5"])
async def test_what_is_no_id_is_refused(queue: Queue, job_id: Any) -> None:
    for ask in (queue.get, queue.redrive):
        with pytest.raises(ConfigError, match=f"queue 'garage': {re.escape(repr(job_id))} is not a job id"):
            await ask(job_id)


@ON_BOTH
async def test_what_is_not_known_is_not_found(queue: Queue) -> None:
    with pytest.raises(JobNotFoundError, match="queue 'garage' has no job '17'") as missing:
        await queue.get("17")
    assert (missing.value.queue, missing.value.job_id) == ("garage", "17")
    with pytest.raises(JobNotFoundError, match="queue 'garage' has no job '17': it left no dead letter"):
        await queue.redrive("17")


@pytest.mark.parametrize("timeout", ["x", -1, float("nan"), float("inf"), True, b"1"])
async def test_a_timeout_that_is_none_is_refused(queue: Queue, timeout: Any) -> None:
    @queue.job
    async def job() -> None: ...

    handle = await job.enqueue()
    with pytest.raises(ConfigError, match="job 1 of queue 'garage': timeout is"):
        await handle.outcome(timeout=timeout)


async def test_a_view_of_what_cannot_be_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="history of 'finished'; a job ends as completed, failed, cancelled"):
        [_ async for _ in queue.history("finished")]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queue 'garage': older_than is 'x'"):
        await queue.clean(older_than="x")  # type: ignore[arg-type]


async def test_idempotency_keys_make_repeating_harmless(queue: Queue) -> None:
    @queue.job
    async def first() -> None: ...

    @queue.job
    async def second() -> None: ...

    one = await first.enqueue(idempotency_key="order 17/ü")
    again = await first.enqueue(idempotency_key="order 17/ü")
    other = await second.enqueue(idempotency_key="order 17/ü")
    assert (one.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.id == one.id != other.id
    await drain(queue)
    assert (await first.enqueue(idempotency_key="order 17/ü")).duplicate  # also when it has ended
    assert (await queue.counts()).completed == 2


async def test_an_idempotency_key_with_a_line_break_is_refused(queue: Queue) -> None:
    @queue.job
    async def job() -> None: ...

    with pytest.raises(ConfigError):
        await job.enqueue(idempotency_key="a\r\nb")


async def test_a_job_that_is_stored_anew_meanwhile_is_found(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await jet.queue("q")

    @queue.job
    async def wash(car: str) -> None: ...

    late = queue.options(unique="car", replace=True, delay=600)
    handle = await late.enqueue(wash, "red")
    found = [await queue._steering.find_message(handle.id)]
    await late.enqueue(wash, "blue")
    find_message = queue._steering.find_message

    async def find_late(job_id: str) -> StoredMessage | None:
        return found.pop() if found else await find_message(job_id)

    monkeypatch.setattr(queue._steering, "find_message", find_late)
    assert (await handle.info()).state == "scheduled"
