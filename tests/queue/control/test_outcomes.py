"""How attempts end, and how the job continues."""

import asyncio
import os
import threading
from dataclasses import dataclass
from datetime import date
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from pelton import Jet
from pelton.api import Backoff, JobCancelledError, PermanentJobError, RetryJob
from pelton.queue import JobContext, Queue
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, ended, working


async def test_a_result_is_kept_in_the_history(queue: Queue) -> None:
    @queue.job
    async def add(a: int, b: int = 2) -> int:
        return a + b

    handle = await add.enqueue(1)
    await drain(queue)
    outcome = await handle.outcome(timeout=60)
    assert (outcome.state, outcome.value(), outcome.attempt, outcome.job) == ("completed", 3, 1, "add")
    assert outcome.enqueued_at <= outcome.started_at <= outcome.finished_at
    assert await add(1, 1) == 2  # still a function


async def test_errors_are_retried_until_the_limit_and_then_dead(queue: Queue) -> None:
    attempts = list[tuple[int, str]]()

    @queue.job(max_attempts=3, backoff=FAST)
    async def fails(context: JobContext) -> None:
        attempts.append((context.attempt, context.last_error))
        raise ValueError(f"no {context.attempt}")

    handle = await fails.enqueue()
    await drain(queue)
    outcome = (await handle.info()).outcome
    assert outcome is not None
    assert (outcome.state, outcome.attempt, outcome.error) == ("failed", 3, "ValueError: no 3 (attempt 3 of 3)")
    assert attempts == [(1, ""), (2, "ValueError: no 1"), (3, "ValueError: no 2")]
    assert [letter.outcome.id async for letter in queue.dead_letters()] == [handle.id]


async def test_a_job_recovers(queue: Queue) -> None:
    @queue.job(backoff=FAST)
    def flaky(context: JobContext) -> int:
        if context.attempt < 3:
            raise OSError("not yet")
        return context.attempt

    handle = await flaky.enqueue()
    await drain(queue)
    assert (await handle.outcome()).value() == 3
    assert (await queue.counts()).completed == 1


@pytest.mark.parametrize("error", [PermanentJobError("never"), LookupError("listed"), KeyError("a subclass")])
async def test_permanent_errors_are_not_retried(queue: Queue, error: Exception) -> None:
    @queue.job(permanent=LookupError)
    async def fails() -> None:
        raise error

    handle = await fails.enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 1)


async def test_a_job_asks_for_its_own_delay(queue: Queue) -> None:
    @queue.job(backoff=Backoff(base=600))
    async def later(context: JobContext) -> int:
        if context.attempt == 1:
            raise RetryJob(0.01, "the door is closed")
        return len(context.last_error)

    handle = await later.enqueue()
    await drain(queue)
    assert (await handle.outcome()).value() == len("RetryJob: the job asks to run again in 0.01 s: the door is closed")


async def test_retry_requests_count_as_attempts(queue: Queue) -> None:
    @queue.job(max_attempts=2, backoff=FAST)
    async def later() -> None:
        raise RetryJob(0)

    handle = await later.enqueue()
    await drain(queue)
    assert (await handle.outcome()).state == "failed"


async def test_a_job_cancels_itself(queue: Queue) -> None:
    @queue.job
    async def stop(context: JobContext) -> None:
        raise JobCancelledError(context.id, reason="nobody wants it")

    handle = await stop.enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    assert outcome.state == "cancelled"
    assert "nobody wants it" in outcome.error
    assert [letter async for letter in queue.dead_letters()] == []


@pytest.mark.parametrize("permanent", [(), (TimeoutError,)])
async def test_a_timeout_is_an_error_of_the_attempt(queue: Queue, permanent: tuple[type[Exception], ...]) -> None:
    @queue.job(timeout=0.01, max_attempts=2, backoff=FAST, permanent=permanent)
    async def slow() -> None:
        await asyncio.Event().wait()

    handle = await slow.enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 1 if permanent else 2)
    assert outcome.error.startswith(
        f"JobTimeoutError: job '{handle.id}' ('slow') took longer than its timeout of 0.01 s and was stopped"
    )
    assert "in slow" in outcome.traceback


async def test_a_timeout_of_the_jobs_own_is_its_own(queue: Queue) -> None:
    @queue.job(timeout=60, max_attempts=1)
    async def slow() -> None:
        raise TimeoutError("the press did not answer")

    handle = await slow.enqueue()
    await drain(queue)
    assert (await handle.outcome()).error == "TimeoutError: the press did not answer (attempt 1 of 1)"


async def test_a_message_that_is_no_job_is_dead_at_once_and_nothing_of_it_is_lost(queue: Queue, jet: Jet) -> None:
    ack = await jet.publish("$JOBS.garage.free", b"\xffjunk")
    assert (await queue.get(str(ack.seq))).state == "pending"
    await drain(queue)
    letters = [letter async for letter in queue.dead_letters()]
    assert [(letter.outcome.id, letter.data, letter.subject) for letter in letters] == [
        (str(ack.seq), b"\xffjunk", "$JOBS.garage.free")
    ]
    again = await queue.redrive(str(ack.seq))
    stored = await (await jet.stream("JOBS_garage")).get_message(int(again.id))
    assert (stored.data, stored.subject) == (b"\xffjunk", "$JOBS.garage.free")


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_arguments_that_do_not_fit_here_wait_for_a_worker_that_takes_them(
    jet: Jet, another: OpenQueue, caplog: pytest.LogCaptureFixture, exclusive: bool
) -> None:
    """As while a new version of a program replaces an old one, whichever of the two has enqueued the job."""
    queue = await jet.queue("garage", exclusive=exclusive)
    newer = await another("garage")

    async def old(a: int) -> int:
        return a

    async def new(a: int, b: str = "") -> str:
        return f"{a}{b}"

    queue.job(name="f", max_attempts=1)(old)
    handle = await newer.job(name="f", max_attempts=1)(new).enqueue(1, "b")
    async with working(queue):
        async with asyncio.timeout(20):
            while not caplog.records:
                await asyncio.sleep(0.01)
        async with working(newer):
            outcome = await handle.outcome(timeout=20)
    assert (outcome.state, outcome.attempt, outcome.value()) == ("completed", 1, "1b")
    [warning] = caplog.records
    assert "'f' whose arguments this worker cannot take" in warning.getMessage()


async def test_arguments_that_a_job_itself_gets_wrong_fail_it(queue: Queue) -> None:
    @queue.job
    async def job(a: int) -> None:
        await job.enqueue("x")  # type: ignore[arg-type]  # on purpose

    handle = await job.enqueue(1)
    await drain(queue)
    assert (await handle.outcome()).state == "failed"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


@pytest.mark.parametrize(
    "error",
    [
        StopIteration("x"),
        SystemExit(3),
        asyncio.CancelledError("not ours"),
        FileNotFoundError("\udcff"),
        UnprintableError(),
        ValueError("long" * 100_000),
        BaseExceptionGroup("many", [ValueError("one"), SystemExit(1)]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_whatever_a_job_raises_is_its_outcome(queue: Queue, error: BaseException, threaded: bool) -> None:
    def raises() -> None:
        raise error

    async def raises_async() -> None:
        raise error

    job = queue.job(name="bad", max_attempts=1)(raises if threaded else raises_async)
    good = queue.job(name="good")(lambda: 1)
    bad_handle, good_handle = await job.enqueue(), await good.enqueue()
    await drain(queue, concurrency=1)
    assert (await bad_handle.outcome()).state == "failed"
    assert (await good_handle.outcome()).state == "completed"


async def test_a_job_that_awaits_something_cancelled_does_not_end_the_worker(queue: Queue) -> None:
    @queue.job(max_attempts=2, backoff=FAST)
    async def awaits() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    handle = await awaits.enqueue()
    await drain(queue, concurrency=1)
    assert (await handle.outcome()).error.startswith("CancelledError")


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_job_that_cancels_its_own_task_fails_alone(queue: Queue, awaits: bool) -> None:
    @queue.job(max_attempts=1)
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if awaits:
            await asyncio.Event().wait()

    @queue.job(max_attempts=1)
    async def good() -> None:
        await asyncio.sleep(0)

    handles = [await job.enqueue() for job in (cancels, good)]
    await drain(queue, concurrency=1)
    first, second = [await handle.outcome() for handle in handles]
    assert (first.state, second.state) == ("failed" if awaits else "completed", "completed")
    assert first.error.startswith("CancelledError" if awaits else "")


async def test_a_worker_that_is_cancelled_ends_though_its_slots_are_cancelled_too(queue: Queue) -> None:
    """As at the end of asyncio.run(): the attempt is not settled, and is no failure of the job."""
    begun = asyncio.Event()

    @queue.job(max_attempts=1)
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    handle = await long.enqueue()
    before = asyncio.all_tasks()
    worker = asyncio.create_task(queue.work(handle_signals=False))
    await asyncio.wait_for(begun.wait(), 20)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.wait([worker], timeout=20)
    assert worker.cancelled()
    assert (await handle.info()).state in ("running", "pending", "retrying")


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_job_that_raises_an_interrupt_fails_alone(queue: Queue, threaded: bool) -> None:
    def raises() -> None:
        raise KeyboardInterrupt

    async def raises_async() -> None:
        raise KeyboardInterrupt

    bad = await queue.job(max_attempts=1)(raises if threaded else raises_async).enqueue()
    good = await queue.job(name="good")(lambda: 1).enqueue()
    await asyncio.wait_for(queue.work(until_empty=True, concurrency=1), 20)
    assert (await bad.outcome()).error.startswith("KeyboardInterrupt")
    assert (await good.outcome()).state == "completed"


@pytest.mark.parametrize("result", [SystemExit(3), KeyboardInterrupt(), StopIteration("x")], ids=repr)
async def test_what_a_batch_raises_or_returns_is_the_outcome_of_its_jobs(queue: Queue, result: BaseException) -> None:
    @queue.job(batch=2, max_attempts=1)
    async def job(items: list[int]) -> list[Any]:
        if items == [0, 0]:
            raise result
        return [result, 1]

    handles = [await job.enqueue(n) for n in (0, 0, 1, 1)]
    await asyncio.wait_for(queue.work(until_empty=True, concurrency=2), 20)
    outcomes = [await handle.outcome() for handle in handles]
    assert [outcome.state for outcome in outcomes] == ["failed", "failed", "failed", "completed"]


async def test_a_copy_that_a_job_forks_on_a_thread_does_nothing_for_the_worker(queue: Queue, tmp_path: Path) -> None:
    @queue.job(max_attempts=1)
    def forks() -> int:
        if copy := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        raise SystemExit(3)

    @queue.job(max_attempts=1)
    def notes() -> None:
        with open(tmp_path / "pids", "a") as file:
            file.write(f"{os.getpid()}\n")

    handle = await forks.enqueue()
    for _ in range(3):
        await notes.enqueue()
    await drain(queue, concurrency=1)
    assert await handle.value() == 3
    assert (tmp_path / "pids").read_text().split() == [str(os.getpid())] * 3


@pytest.mark.parametrize("result", [object(), {1: {2: object()}}, "\udcff", threading.Lock(), nan, {"a": (1, -inf)}])
async def test_a_result_that_cannot_be_stored_fails_for_good(queue: Queue, result: object) -> None:
    @queue.job
    async def returns() -> object:
        return result

    handle = await returns.enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 1)
    assert outcome.error.startswith("JobResultError: job 'returns': its result can't be stored")


@dataclass
class Car:
    plate: str


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (str, b"x"),
        (str, date(2026, 1, 2)),
        (list[str], [b"x"]),
        (dict[str, int], {1: 2}),
        (Car, Car(b"x")),  # type: ignore[arg-type]  # what a program without a type checker does
        (bytes, "abcd"),
    ],
    ids=repr,
)
async def test_a_result_that_would_be_kept_as_another_one_fails_for_good(
    queue: Queue, kind: Any, result: object
) -> None:
    async def returns() -> object:
        return result

    returns.__annotations__["return"] = kind
    handle = await queue.job(returns).enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 1)
    assert outcome.error.startswith("JobResultError: job 'returns': its result can't be stored as JSON: Expected")


@pytest.mark.parametrize(
    ("kind", "result", "value"),
    [
        (str, "x", "x"),
        (date, date(2026, 1, 2), "2026-01-02"),
        (Any, date(2026, 1, 2), "2026-01-02"),
        (dict[str, Any], {"when": date(2026, 1, 2)}, {"when": "2026-01-02"}),
        (Car, Car("x"), {"plate": "x"}),
        (None, {"what": "ever"}, {"what": "ever"}),  # whose annotations are wrong, and who means what is returned
        (str, None, None),
        (int, "5", "5"),
        (asyncio.Event, "x", "x"),
    ],
    ids=repr,
)
async def test_other_results_are_kept_as_json(queue: Queue, kind: Any, result: object, value: object) -> None:
    async def returns() -> object:
        return result

    returns.__annotations__["return"] = kind
    handle = await queue.job(returns).enqueue()
    await drain(queue)
    assert (await handle.outcome()).value() == value


async def test_a_recursive_result_fails_for_good(queue: Queue) -> None:
    @queue.job
    async def returns() -> object:
        result = list[object]()
        result.append(result)
        return result

    handle = await returns.enqueue()
    await drain(queue)
    assert (await handle.outcome()).state == "failed"


async def test_every_ending_is_in_the_history_once(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def job(kind: str) -> None:
        if kind == "cancelled":
            raise JobCancelledError("x")
        if kind == "failed":
            raise ValueError

    await job.enqueue_many([(kind,) for kind in ["completed", "failed", "cancelled", "completed"]])
    await drain(queue, concurrency=1)
    assert [outcome.state for outcome in await ended(queue)] == ["completed", "failed", "cancelled", "completed"]


async def _history_takes(jet: Jet, size: int) -> None:
    """Limit the size: a stream's own limit refuses what a server's max_payload refuses, and works on either side."""
    for name in ("JOBS_garage_history", "JOBS_garage_keys"):
        if name in await jet.stream_names():
            await jet.update_stream(name, max_msg_size=size)


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_result_that_is_too_large_fails_the_job_once(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    await _history_takes(jet, 4096)
    runs = list[str]()

    @queue.job(max_attempts=3, backoff=FAST)
    async def paint(car: str) -> str:
        runs.append(car)
        return "x" * 5000 if car == "car1" else "done"

    large = await paint.enqueue("car1", key="car1")
    small = await paint.enqueue("car1b", key="car1")
    await drain(queue)
    outcome = await large.outcome(timeout=60)
    assert (outcome.state, outcome.attempt) == ("failed", 1)
    assert outcome.error.startswith(
        "the job ran to its end, but its result, or a message that it emitted, is too large"
    )
    assert "message size exceeds maximum allowed" in outcome.error
    assert (await small.outcome(timeout=60)).value() == "done"
    assert runs == ["car1", "car1b"]
    assert [letter.outcome.id async for letter in queue.dead_letters()] == [large.id]


@ON_BOTH
async def test_a_claimed_job_whose_result_is_too_large_fails_once(jet: Jet) -> None:
    queue = await jet.queue("garage")
    await _history_takes(jet, 4096)

    @queue.job(max_attempts=3)
    async def paint() -> None: ...

    handle = await paint.enqueue()
    async with queue.claims() as claims:
        (job,) = await claims.take(timeout=5)
        job.complete("x" * 5000)
        assert await claims.settle([job]) == []
        assert await claims.take() == []
    outcome = await handle.outcome(timeout=60)
    assert (outcome.state, outcome.attempt) == ("failed", 1)
    assert "is too large" in outcome.error
