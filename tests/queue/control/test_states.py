"""Every line of the picture of a job's states, played on a store with a clock that stands still."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import pelton
from pelton.api import Backoff, JobCancelledError, PermanentJobError, PullRequest, Snooze, UnknownJobError
from pelton.queue import JobContext, JobHandle, JobRules, JobState, Queue
from pelton.queue.model.states import ENDINGS
from pelton.testing import ManualRuntime, manual_runtime

LEASE_S = 30
DELAY_S = 60
TTL_S = 86_400
HELD_S = 1
RULES = JobRules(max_attempts=3, backoff=Backoff(base=600, jitter=0))

LINES: tuple[tuple[JobState | None, str, JobState], ...] = (
    (None, "enqueue", "pending"),
    (None, "enqueue with a delay", "scheduled"),
    ("scheduled", "falls due", "pending"),
    ("scheduled", "cancel", "cancelled"),
    ("pending", "begins in a worker", "running"),
    ("pending", "a limit holds it back", "held"),
    ("held", "the limit lets it start", "running"),
    ("held", "its ttl is over", "expired"),
    ("held", "cancel", "cancelled"),
    ("pending", "taken after its ttl", "expired"),
    ("pending", "cancel", "cancelled"),
    ("running", "returns", "completed"),
    ("running", "raises", "retrying"),
    ("running", "snoozes, or sleeps", "scheduled"),
    ("running", "waits for a signal, or for jobs that it called", "waiting"),
    ("waiting", "the signal comes, or its time is over", "pending"),
    ("running", "its worker's code has not what it needs", "stuck"),
    ("stuck", "begins in another worker", "running"),
    ("retrying", "backoff passes", "pending"),
    ("retrying", "cancel", "cancelled"),
    ("running", "permanent error, or the last attempt", "failed"),
    ("running", "raises JobCancelledError", "cancelled"),
    ("running", "worker dies, lease runs out", "pending"),
    ("running", "worker stops, job is handed back", "pending"),
)


class Stage:
    """A queue with one job."""

    def __init__(self, queue: Queue, runtime: ManualRuntime) -> None:
        self.queue = queue
        self.runtime = runtime
        self.handle: JobHandle[Any] | None = None

    async def enqueue(self) -> None:
        @self.queue.job
        async def paint(context: JobContext) -> None:
            await context.wait_for("approved", timeout=500)

        self.handle = await self.queue.options(ttl=TTL_S).enqueue(paint)

    async def enqueue_later(self) -> None:
        @self.queue.job
        def paint() -> None: ...

        self.handle = await self.queue.options(delay=DELAY_S).enqueue(paint)

    async def state(self) -> JobState | None:
        return (await self.handle.info()).state if self.handle is not None else None

    async def begin(self) -> None:
        """Begin it as a worker that dies at once: nobody keeps its lease."""
        job_source = self.queue._context.source_for("gone")
        self.runtime.clock.advance(HELD_S)
        [taken] = await job_source.take(job_source.channels[0], PullRequest(expires_ns=60 * 10**9))
        assert await self.state() in ("pending", "held", "stuck")
        marks = job_source.beginnings.marks
        assert marks is not None
        marks.mark(taken.delivered.seq, taken.delivered.num_delivered)

    async def hold(self) -> None:
        """Have a limit hold it back."""
        await self.queue.limit(job="paint", concurrency=1)
        await self.queue.options(priority=3).enqueue("paint")
        async with self.queue.claims(RULES) as first, self.queue.claims(RULES) as claims:
            [other] = await first.take(1)
            assert await claims.take(1, timeout=0) == []
            assert await self.state() == "held"
            other.complete()
            await first.settle([other])

    async def end(self, error: BaseException | None = None) -> None:
        """Have it end with the next worker."""
        async with self.queue.claims(RULES) as claims:
            [job] = await claims.take(1)
            if error is None:
                job.complete()
            else:
                job.fail(error)
            assert await self.state() == "running"
            assert await claims.settle([job]) == []

    async def come_to(self, state: JobState | None) -> None:
        if state == "scheduled":
            await self.enqueue_later()
        elif state is not None:
            await self.enqueue()
        if state == "retrying":
            await self.end(ValueError())
        if state == "held":
            await self.hold()
        if state == "waiting":
            await _waits_for_signal(self)
        if state == "stuck":
            await _has_no_code(self)


async def _returns(stage: Stage) -> None:
    await stage.end()


async def _raises(stage: Stage) -> None:
    await stage.end(ValueError())


async def _snoozes(stage: Stage) -> None:
    await stage.end(Snooze(500))


async def _waits_for_signal(stage: Stage) -> None:
    await stage.queue.work(until_idle=True)


async def _has_no_code(stage: Stage) -> None:
    await stage.end(UnknownJobError("paint"))


async def _waits(stage: Stage) -> None:
    stage.runtime.clock.advance(600)


async def _ends_for_good(stage: Stage) -> None:
    await stage.end(PermanentJobError("x"))


async def _is_cancelled(stage: Stage) -> None:
    await stage.end(JobCancelledError("x"))


async def _dies(stage: Stage) -> None:
    await stage.begin()
    stage.runtime.clock.advance(LEASE_S + 1)
    async with stage.queue.claims(RULES) as claims:
        [job] = await claims._held.take(claims._job_source.channels[0], PullRequest(expires_ns=60 * 10**9))
        known = await claims._job_source.earlier_attempt(job.records.delivered)
        assert known is not None
        assert (known.attempt, await stage.state()) == (1, "pending")


async def _stops(stage: Stage) -> None:
    async with stage.queue.claims(RULES) as claims:
        [_] = await claims.take(1)
        assert await stage.state() == "running"


async def _falls_due(stage: Stage) -> None:
    stage.runtime.clock.advance(DELAY_S)


async def _is_taken_late(stage: Stage) -> None:
    stage.runtime.clock.advance(TTL_S)
    async with stage.queue.claims(RULES) as claims:
        assert await claims.take(1, timeout=0) == []


async def _cancels(stage: Stage) -> None:
    assert stage.handle is not None
    assert await stage.handle.cancel()


MOVES: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "enqueue": Stage.enqueue,
    "begins in a worker": Stage.begin,
    "a limit holds it back": Stage.hold,
    "the limit lets it start": Stage.begin,
    "its ttl is over": _is_taken_late,
    "returns": _returns,
    "raises": _raises,
    "snoozes, or sleeps": _snoozes,
    "waits for a signal, or for jobs that it called": _waits_for_signal,
    "the signal comes, or its time is over": _waits,
    "its worker's code has not what it needs": _has_no_code,
    "begins in another worker": Stage.begin,
    "backoff passes": _waits,
    "permanent error, or the last attempt": _ends_for_good,
    "raises JobCancelledError": _is_cancelled,
    "worker dies, lease runs out": _dies,
    "worker stops, job is handed back": _stops,
    "enqueue with a delay": Stage.enqueue_later,
    "falls due": _falls_due,
    "taken after its ttl": _is_taken_late,
    "cancel": _cancels,
}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        yield Stage(await jet.queue("garage", lease=LEASE_S), runtime)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[1].replace(" ", "_"))
async def test_a_job_goes_as_the_picture_says(stage: Stage, line: Any) -> None:
    before, event, after = line
    await stage.come_to("pending" if before == "running" else before)
    assert await stage.state() == ("pending" if before == "running" else before)
    await MOVES[event](stage)
    assert await stage.state() == after


async def test_the_last_attempt_ends_it(stage: Stage) -> None:
    await stage.enqueue()
    for state in ("retrying", "retrying", "failed"):
        await stage.end(ValueError())
        assert await stage.state() == state
        stage.runtime.clock.advance(3600)


def test_ended_is_for_good() -> None:
    assert not {before for before, _, _ in LINES} & {*ENDINGS}
