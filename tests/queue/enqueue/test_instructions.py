"""What a job can say about its own end, jobs that nobody knows, and how long retries wait."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts, JobFailedError, JobRules
from pelton.queue import JobContext, Queue
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, ended, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


@ON_BOTH
@BOTH_KINDS
async def test_a_job_nobody_knows_waits_for_a_worker_that_does(
    jet: Jet, another: OpenQueue, exclusive: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    handles = [await queue.options(key=key).enqueue("paint", car="car1") for key in ("a", "b", "")]
    elsewhere = await another("garage")
    async with working(queue):
        attempts = await jet.stream(queue.names.attempts)
        async with asyncio.timeout(60):
            while exclusive is False and not (await attempts.info()).state.messages:
                await asyncio.sleep(0.01)
            while "'paint'" not in caplog.text:
                await asyncio.sleep(0.01)
    assert (await queue.counts()).finished == 0
    told = [record for record in caplog.records if "'paint'" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING], "once a name"

    @elsewhere.job(max_attempts=1)
    async def paint(car: str, context: JobContext) -> str:
        return f"{car} {context.attempt} {context.last_error}"

    async with working(elsewhere):
        assert [await handle.value(timeout=60) for handle in handles] == ["car1 1 "] * 3


@ON_BOTH
async def test_claims_give_back_what_they_do_not_know(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("garage")
    handle = await queue.enqueue("paint", car="car1")
    async with queue.claims() as claims:
        for _ in range(8):
            # By another's hand it would have died of five attempts.
            assert await claims.take(timeout=0.3) == []
    assert (await handle.info()).attempt == 0
    async with (await another("garage")).claims(JobRules(max_attempts=1)) as claims:
        while not (found := await claims.take(timeout=20)):
            pass
        assert found[0].attempt == 1
        found[0].complete()
        assert await claims.settle(found) == []


@ON_BOTH
@BOTH_KINDS
async def test_a_snooze_is_no_attempt_and_keeps_the_order(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    ran = list[Any]()

    @queue.job(max_attempts=2, backoff=FAST)
    async def job(context: JobContext, name: str) -> None:
        ran.append((name, context.attempt))
        if name == "a" and len(ran) < 4:
            raise pelton.Snooze(0.05, "the shop is closed")
        if name == "a" and len(ran) == 4:
            raise ValueError("broken")

    await queue.options(key="k").enqueue(job, "a")
    if exclusive:
        await queue.options(key="k").enqueue(job, "b")
    await drain(queue)
    assert ran[:5] == [("a", 1)] * 4 + [("a", 2)]
    assert ran[5:] == ([("b", 1)] if exclusive else [])
    first = (await ended(queue))[0]
    assert (first.state, [(one.attempt, one.error) for one in first.errors]) == (
        "completed",
        [(1, "ValueError: broken")],
    )


async def test_what_has_snoozed_does_not_expire(queue: Queue) -> None:
    @queue.job
    async def job(context: JobContext) -> int:
        if not again:
            again.append(1)
            raise pelton.Snooze(2.2)
        return context.attempt

    again = list[int]()
    handle = await queue.options(ttl=2).enqueue(job)
    await drain(queue)
    assert await handle.value() == 1


@ON_BOTH
async def test_jobs_cancel_and_discard_themselves(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.job
    async def sold() -> None:
        raise pelton.Cancel("the car was sold")

    @queue.job
    def hopeless() -> None:
        try:
            raise OSError("no paint")
        except OSError as error:
            raise pelton.Discard("not worth it") from error

    handles = [await queue.enqueue(sold), await queue.enqueue(hopeless)]
    await drain(queue)
    first, second = [await handle.outcome(timeout=60) for handle in handles]
    assert (first.state, first.attempt, first.traceback) == ("cancelled", 1, "")
    assert "the car was sold" in first.error
    assert (second.state, second.attempt) == ("cancelled", 1)
    assert "no paint" in second.traceback
    assert "not worth it" in second.traceback
    assert [letter async for letter in queue.dead_letters()] == []
    assert await queue.counts() == JobCounts(cancelled=2)
    with pytest.raises(JobFailedError, match="not worth it"):
        second.value()
    assert [r.levelno for r in caplog.records if "cancelled" in r.getMessage()] == [logging.WARNING]


@ON_BOTH
@BOTH_KINDS
async def test_an_outcome_has_the_errors_of_all_attempts(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)

    @queue.job(max_attempts=25, backoff=[0])
    async def job(context: JobContext) -> None:
        raise ValueError(f"no {context.attempt}")

    handle = await queue.options(key="k").enqueue(job)
    await drain(queue)
    outcome = await handle.outcome()
    assert [one.attempt for one in outcome.errors] == [1, *range(7, 26)], "of many, the first and the last"
    assert outcome.errors[0].error == "ValueError: no 1"
    assert outcome.errors[0].at <= outcome.errors[-1].at <= outcome.finished_at
    assert [letter.outcome.errors async for letter in queue.dead_letters()] == [outcome.errors]


async def test_backoff_is_a_list_or_a_function(queue: Queue) -> None:
    asked = list[tuple[int, str]]()

    def wait(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error)))
        return 0.0

    @queue.job(max_attempts=3, backoff=wait)
    async def job() -> None:
        raise ValueError("broken")

    @queue.job(max_attempts=2, backoff=lambda attempt, error: -1.0)
    async def wrong() -> None:
        raise ValueError("broken")

    await job.enqueue()
    await drain(queue)
    assert asked == [(1, "broken"), (2, "broken")]
    handle = await wrong.enqueue()
    async with working(queue):
        while (await handle.info()).state != "retrying":
            await asyncio.sleep(0.01)
    assert "its backoff failed" in (await handle.info()).last_error


@pytest.mark.parametrize("backoff", [[], [1, -1], "12", 5, [None]])
async def test_a_backoff_that_cannot_be_is_refused(queue: Queue, backoff: Any) -> None:
    with pytest.raises(ConfigError, match="backoff"):
        queue.job(backoff=backoff)(lambda: None)
