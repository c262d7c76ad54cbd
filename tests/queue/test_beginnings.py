"""What counts as an attempt is a beginning: a job whose function was called, and not one that a worker has taken."""

import asyncio
import subprocess
import sys

import pytest

from pelton import Jet
from pelton.api import PullRequest
from pelton.queue import JobContext, JobRules, Queue
from pelton.queue.model.records import with_losses
from pelton.queue.model.states import Attempt
from tests.conformance.cases.eventually import eventually
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import ROOT, drain
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
    [("file", "limited"), ("file", "blocked"), ("file", "batch"), ("nats", "limited"), ("nats", "batch")],
    indirect=["path"],
)
async def test_the_death_of_a_worker_costs_what_it_has_begun(path: str, kind: str, jet: Jet) -> None:
    queue, started = await jet.queue("hoard", lease=LEASE), list[str]()
    await hoard(queue, kind, started)
    handles = await queue.jobs_by_name["work"].enqueue_many([(n,) for n in range(JOBS)])
    begun = kind != "batch"
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
