"""What a failed attempt leaves: a log entry, a traceback in outcome and dead letter, an error of `value()`."""

import logging
import pickle
import traceback
from collections.abc import Iterator

import pytest

from pelton.api import JobCancelledError, JobFailedError, PermanentJobError, RetryJob
from pelton.queue import DeadLetter, JobContext, JobRules, Outcome, Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, ended


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "pelton"):
        yield caplog


def innermost(attempt: int) -> None:
    raise ValueError(f"no {attempt}")


async def letters(queue: Queue) -> list[DeadLetter]:
    return [letter async for letter in queue.dead_letters()]


@ON_BOTH
@pytest.mark.parametrize("threaded", [False, True])
async def test_every_failed_attempt_is_logged_and_the_last_traceback_kept(
    keyed: Queue, threaded: bool, logged: pytest.LogCaptureFixture
) -> None:
    def fails(context: JobContext) -> None:
        innermost(context.attempt)

    async def fails_async(context: JobContext) -> None:
        fails(context)

    job = keyed.job(name="paint", max_attempts=2, backoff=FAST)(fails if threaded else fails_async)
    handle = await job.enqueue(key="car1")
    await drain(keyed)
    outcome = await handle.outcome()
    attempts = [record for record in logged.records if "attempt" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in attempts] == [
        (
            "WARNING",
            "job 1 ('paint') of queue 'keyed', attempt 1: failed and is tried again in 0.01 s: ValueError: no 1",
        ),
        (
            "ERROR",
            f"job 1 ('paint') of queue 'keyed', attempt 2: failed for good and is a dead letter: {outcome.error}",
        ),
    ]
    for record in attempts:
        assert record.exc_info is not None
        names = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
        assert names == (["fails"] if threaded else ["fails_async", "fails"]) + ["innermost"]
    assert outcome.error == "ValueError: no 2 (attempt 2 of 2)"
    assert outcome.traceback.startswith("Traceback (most recent call last):\n")
    assert "in innermost" in outcome.traceback
    assert outcome.traceback.endswith("ValueError: no 2\n")
    assert "attempt.py" not in outcome.traceback
    assert [letter.outcome for letter in await letters(keyed)] == [outcome]


async def test_a_long_traceback_keeps_its_end(queue: Queue) -> None:
    def deep(depth: int) -> None:
        if depth:
            return deeper(depth - 1)
        raise ValueError("at the bottom")

    def deeper(depth: int) -> None:
        """Not the same name again: repeated lines would be collapsed."""
        return deep(depth)

    @queue.job(max_attempts=1)
    def digs() -> None:
        deep(300)

    handle = await digs.enqueue()
    await drain(queue)
    text = (await handle.outcome()).traceback
    assert len(text) <= 8192
    assert text.endswith("ValueError: at the bottom\n")


async def test_what_a_job_raises_from_something_is_kept_with_its_cause(queue: Queue) -> None:
    @queue.job(permanent=LookupError)
    async def wraps() -> None:
        try:
            innermost(7)
        except ValueError as error:
            raise LookupError("outside") from error

    handle = await wraps.enqueue()
    await drain(queue)
    text = (await handle.outcome()).traceback
    assert text.index("ValueError: no 7") < text.index("LookupError: outside")


async def test_a_job_that_asks_for_another_attempt_or_is_cancelled_has_not_gone_wrong(
    queue: Queue, logged: pytest.LogCaptureFixture
) -> None:
    @queue.job
    async def job(context: JobContext) -> None:
        raise RetryJob(0.01) if context.attempt == 1 else JobCancelledError(context.id)

    handle = await job.enqueue()
    await drain(queue)
    assert (await handle.outcome()).traceback == ""
    assert [(record.levelname, record.exc_info) for record in logged.records if "attempt" in record.getMessage()] == [
        ("INFO", None)
    ] * 2


async def test_claimed_jobs_that_fail_are_logged_alike(queue: Queue, logged: pytest.LogCaptureFixture) -> None:
    @queue.job
    async def job(n: int) -> None: ...

    await job.enqueue_many([(1,), (2,)])
    async with queue.claims(rules=JobRules(max_attempts=1)) as claims:
        raised, told = await claims.take()
        try:
            innermost(1)
        except ValueError as error:
            raised.fail(error)
        told.fail(PermanentJobError("never"))
        assert await claims.settle([raised, told]) == []
    outcomes = await ended(queue)
    assert "in innermost" in outcomes[0].traceback
    assert outcomes[1].traceback == ""
    assert [(record.levelname, bool(record.exc_info)) for record in logged.records] == [
        ("ERROR", True),
        ("ERROR", False),
    ]


async def test_jobs_that_never_begin_are_logged(queue: Queue, logged: pytest.LogCaptureFixture) -> None:
    await queue.jet.publish("$JOBS.garage.free", b"junk")
    await drain(queue)
    [record] = [record for record in logged.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("job 1 ('') of queue 'garage', attempt 1: failed for good")


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (ValueError("no paint"), "job '1' ('paint') failed and has no result: ValueError: no paint (attempt 1 of 1)"),
        (JobCancelledError("1", reason="sold"), "job '1' ('paint') ended as cancelled and has no result: JobCancelled"),
    ],
)
async def test_the_value_of_a_job_that_has_none_raises(queue: Queue, raised: Exception, sentence: str) -> None:
    @queue.job(max_attempts=1)
    async def paint() -> None:
        raise raised

    handle = await paint.enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    with pytest.raises(JobFailedError) as failed:
        outcome.value()
    error = failed.value
    assert str(error).startswith(sentence)
    assert (error.job_id, error.name, error.state, error.error) == ("1", "paint", outcome.state, outcome.error)
    assert error.traceback == outcome.traceback
    shown = "".join(traceback.format_exception(pickle.loads(pickle.dumps(error))))
    assert ("in paint" in shown) == bool(outcome.traceback)


def test_an_outcome_without_a_traceback_is_read() -> None:
    """Written by an older version, or for a worker that died."""
    outcome = Outcome(
        id="1", job="j", state="failed", attempt=1, worker="w", enqueued_at=1, started_at=1, finished_at=1, error="x"
    )
    with pytest.raises(JobFailedError, match="failed and has no result: x"):
        outcome.value()
