"""What counts as an attempt is a beginning: a job whose function was called, and not one that a worker has taken."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextvars import Context
from pathlib import Path

import pytest
from msgspec.structs import replace

import pelton
from pelton import Jet
from pelton.api import PullRequest
from pelton.queue import JobContext, JobRules, Queue
from pelton.queue.model.records import with_losses
from pelton.queue.model.states import Attempt
from pelton.queue.run import steps as steps_module
from pelton.queue.run.attempt import JobAttempt
from pelton.queue.run.leased_jobs import LeasedJobs
from pelton.runtime import SystemClock, system_runtime
from pelton.testing import manual_runtime
from tests.conformance.cases.eventually import eventually
from tests.queue import process_jobs
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, ROOT, drain, working
from tests.queue.hoarder import JOBS, LEASE, hoard

KNOWN = Attempt(id="7", attempt=1, error="first", returned=2)


@pytest.mark.parametrize(
    ("known", "number", "begun", "attempt", "returned", "error"),
    [
        (None, 2, [], 0, 1, ""),
        (None, 2, [1], 1, 0, "the worker died, or lost its lease, during attempt 1"),
        (None, 4, [1, 3], 2, 1, "the worker died, or lost its lease, during attempt 2"),
        (KNOWN, 4, [1, 2, 3], 1, 2, "first"),
        (KNOWN, 6, [3, 4], 2, 3, "the worker died, or lost its lease, during attempt 2"),
        # One that is yet to come is of an earlier queue of the same name.
        (KNOWN, 5, [5, 9], 1, 3, "first"),
    ],
)
def test_a_delivery_counts_if_it_was_begun(
    known: Attempt | None, number: int, begun: list[int], attempt: int, returned: int, error: str
) -> None:
    after = with_losses(known, "7", number, begun, now=5)
    assert after is not None
    assert (after.attempt, after.returned, after.error) == (attempt, returned, error)
    assert after.attempt + after.returned == number - 1
    assert len(after.errors) == attempt - (known.attempt if known else 0)


async def kill_a_hoarder(jet: Jet, queue: Queue, path: str, kind: str, *, starts: bool) -> None:
    """Kill a worker that has taken all jobs, and has begun one of them, or none."""
    command = [sys.executable, "-m", "tests.queue.hoarder", kind, path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            if starts:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == b"started\n"

            async def taken() -> int:
                stream = await jet.stream(queue._context.names.jobs)
                infos = [await (await stream.consumer(name)).info() for name in await stream.consumer_names()]
                return sum(info.num_ack_pending for info in infos)

            await eventually(taken, JOBS)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("file", "limited"),
        ("file", "blocked"),
        ("file", "batch"),
        ("file", "process"),
        ("nats", "limited"),
        ("nats", "batch"),
        ("nats", "process"),
    ],
    indirect=["path"],
)
async def test_the_death_of_a_worker_costs_what_it_has_begun(path: str, kind: str, jet: Jet) -> None:
    queue, started = await jet.queue("hoard", lease=LEASE), list[str]()
    await hoard(queue, kind, started)
    handles = await queue.jobs_by_name["work"].enqueue_many([(n,) for n in range(JOBS)])
    begun = kind not in ("batch", "process")
    await kill_a_hoarder(jet, queue, path, kind, starts=begun)
    await drain(queue)
    outcomes = [await handle.outcome(timeout=5) for handle in handles]
    assert sorted(started) == [str(n) for n in range(begun, JOBS)]
    for outcome in outcomes[begun:]:
        assert (outcome.state, outcome.attempt, outcome.errors) == ("completed", 1, ())
    if begun:
        first = outcomes[0]
        text = "the worker died, or lost its lease, during attempt 1"
        assert (first.state, first.attempt, first.error) == ("failed", 1, f"{text} of 1")
        assert [(one.attempt, one.error) for one in first.errors] == [(1, text)]


async def lose_a_taken_job(queue: Queue, *, begun: bool) -> None:
    """Take a job as a worker that dies would, before or after it has begun it."""
    async with queue.claims(JobRules(max_attempts=9)) as dead:
        source = dead._job_source
        [taken] = await (dead.take(timeout=10) if begun else dead._held.take(source.channels[-1], PullRequest()))
        dead._held.release([taken])


@ON_BOTH
async def test_an_attempt_that_a_death_has_ended_leaves_its_error(jet: Jet, another: OpenQueue) -> None:
    queue, seen = await jet.queue("g", lease=0.2), list[tuple[int, str]]()

    @queue.job(max_attempts=3)
    async def job(context: JobContext) -> None:
        seen.append((context.attempt, context.last_error))

    handle = await job.enqueue()
    for begun in (False, True, False):
        await lose_a_taken_job(await another("g"), begun=begun)
    await drain(queue)
    error = "the worker died, or lost its lease, during attempt 1"
    assert seen == [(2, error)]
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt, [one.error for one in outcome.errors]) == ("completed", 2, [error])


class SleptClock(SystemClock):
    """The clock of a machine that can sleep."""

    slept = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.slept


@pytest.fixture
async def sleepy(tmp_path: Path) -> AsyncIterator[tuple[Queue, SleptClock]]:
    clock = SleptClock()
    runtime = replace(system_runtime(), clock=clock)
    async with pelton.open(tmp_path / "store.pelton", sync="off", runtime=runtime) as jet:
        yield await jet.queue("sleepy", lease=30, jobs=process_jobs.jobs), clock


@pytest.mark.parametrize("kind", ["loop", "thread", "batch", "process"])
async def test_no_job_begins_whose_lease_may_be_over(
    sleepy: tuple[Queue, SleptClock], kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine sleeps between the last await and the call."""
    queue, clock = sleepy
    seen = list[int]()
    real = JobAttempt.prepare

    async def prepare(self: JobAttempt) -> None:
        await real(self)
        clock.slept = 100.0

    def on_thread(context: JobContext) -> int:
        seen.append(context.attempt)
        return 4

    async def on_loop(context: JobContext) -> int:
        return on_thread(context)

    async def together(items: list[int]) -> list[int]:
        seen.append(1)
        return [4]

    monkeypatch.setattr(JobAttempt, "prepare", prepare)
    # With somebody who listens, a job that begins is announced, for which its start is awaited.
    async with queue.events("started"):
        if kind == "process":
            handle = await queue.enqueue(process_jobs.square, 2)
        elif kind == "batch":
            handle = await queue.enqueue(queue.job(batch=1, max_attempts=1)(together), 1)
        else:
            handle = await queue.enqueue(queue.job(max_attempts=1)(on_loop if kind == "loop" else on_thread))
        await drain(queue, concurrency=1)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt, outcome.errors) == ("completed", 1, ())
    assert seen == ([] if kind == "process" else [1])
    assert [record.getMessage() for record in caplog.records if "was not begun" in record.getMessage()]


async def test_a_child_that_is_late_asks_again(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may begin for as long as it is told, by the clock of the machine, which it looks at last."""
    lefts = [-1.0, -1.0]
    real = LeasedJobs.seconds_left
    monkeypatch.setattr(LeasedJobs, "seconds_left", lambda self, job: lefts.pop() if lefts else real(self, job))
    queue = await jet.queue("garage", jobs=process_jobs.jobs)
    handle = await queue.enqueue(process_jobs.square, 2)
    await drain(queue)
    assert ((await handle.outcome()).attempt, lefts) == (1, [])


async def test_no_step_begins_whose_lease_may_be_over(
    sleepy: tuple[Queue, SleptClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, clock = sleepy
    called = list[str]()
    real = steps_module.copy_context

    def copy_context() -> Context:
        clock.slept = 100.0
        return real()

    monkeypatch.setattr(steps_module, "copy_context", copy_context)

    @queue.job(max_attempts=2, backoff=FAST)
    async def job(context: JobContext) -> None:
        await context.step("wash", called.append, f"attempt {context.attempt}")

    handle = await queue.enqueue(job)
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, called) == ("completed", ["attempt 2"])
    # The keeper of its lease may be the first to see it.
    assert "lease" in outcome.errors[0].error.lower()


# --- what goes by beginnings


async def test_a_held_job_ends_with_its_time_to_live() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", lease=3600)
        running, go = asyncio.Event(), asyncio.Event()

        @queue.job
        async def job() -> None:
            running.set()
            await go.wait()

        await queue.limit(concurrency=1)
        first = await queue.enqueue(job)
        async with queue.events("held") as events, working(queue, concurrency=2):
            await running.wait()
            second = await queue.options(ttl=60).enqueue(job)
            held = await events.next()
            assert held is not None
            assert (held.id, held.limit, held.attempt) == (second.id, "all", 0)
            info = await second.info()
            assert (info.state, info.limit, info.attempt) == ("held", "all", 0)
            counts = await queue.counts()
            assert (counts.running, counts.held, counts.held_for, counts.pending) == (1, 1, {"all": 1}, 0)
            assert [one.id async for one in queue.jobs(state="held")] == [second.id]
            runtime.clock.advance(61)
            outcome = await second.outcome()
            assert (outcome.state, outcome.attempt, outcome.started_at) == ("expired", 0, 0)
            go.set()
            assert (await first.outcome()).state == "completed"


async def test_a_run_that_was_taken_and_not_begun_is_skipped_beside_an_earlier_one() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", lease=7200)

        @queue.job
        async def job() -> None: ...

        await queue.schedule("often", job, every=60)
        async with queue.claims(JobRules(max_attempts=9)) as dead:
            runtime.clock.advance(61)
            [first] = await dead.take()
            runtime.clock.advance(60)
            [second] = await dead._held.take(dead._job_source.channels[-1], PullRequest())
            dead._held.release([first, second])
        await queue.unschedule("often")
        runtime.clock.advance(7201)
        async with queue.claims(JobRules(max_attempts=9)) as claims:
            taken = await claims.take(2) + await claims.take(2)
            assert [(claimed.id, claimed.attempt) for claimed in taken] == [(first.id, 2)]
            [skipped] = [outcome async for outcome in queue.history("cancelled")]
            assert (skipped.id, skipped.error.split(":")[0]) == (second.records.id, "skipped")


@ON_BOTH
async def test_a_job_that_was_taken_and_not_begun_is_still_unique(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("g", lease=5)

    @queue.job
    async def job() -> None: ...

    unique = queue.options(unique="one", unique_until="started")
    first = await unique.enqueue(job)
    async with queue.claims() as claims:
        await claims._held.take(claims._job_source.channels[-1], PullRequest())
        assert (await unique.enqueue(job)).duplicate
        assert (await first.info()).state == "pending"
    async with queue.claims() as claims:
        [_] = await claims.take(timeout=10)
        assert (await first.info()).state == "running"
        assert not (await unique.enqueue(job)).duplicate
