"""Steps that are done once, sleeps that no process has to wait for, and progress that any process can read."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

import pelton
from pelton import ConfigError, Jet, JobCounts, JobProgress, PermanentJobError, StepTimeoutError
from pelton.api import AckRejectedError, Outgoing, PullRequest, WrongLastSequenceError
from pelton.queue import JobContext, Queue, Transaction
from pelton.queue.job_source import JobSource
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


@dataclass
class Receipt:
    order: int
    amount: float


async def traces(queue: Queue) -> int:
    stream = await queue.jet.stream(queue.names.running)
    return (await stream.info(subjects_filter=queue.names.traces_of("*"))).total


@ON_BOTH
@BOTH_KINDS
async def test_a_step_is_done_once_and_its_result_remembered(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    calls = list[Any]()

    async def charge(order: int, *, amount: float) -> Receipt:
        calls.append(order)
        return Receipt(order, amount)

    def ship(to: str) -> str:
        calls.append(to)
        return f"shipped to {to}"

    async def fails(attempt: int) -> None:
        calls.append(f"fails {attempt}")
        if attempt == 2:
            raise ValueError("no stamps")

    @queue.job(backoff=FAST)
    async def job(context: JobContext, order: int) -> str:
        receipt = await context.step("charge", charge, order, amount=2.5)
        assert isinstance(receipt, Receipt)
        if context.attempt == 1:
            raise ValueError("the process might have died here")
        shipped = await context.step("ship it. now", ship, "Bern")
        await context.step("stamp", fails, context.attempt)
        return f"{receipt.order} {receipt.amount} {shipped} {context.attempt}"

    handle = await queue.options(key="k").enqueue(job, 7)
    other = await queue.options(key="k").enqueue(job, 8)
    await drain(queue, concurrency=1)
    assert await handle.value() == "7 2.5 shipped to Bern 3"
    assert await other.value() == "8 2.5 shipped to Bern 3"
    assert calls.count(7) == calls.count(8) == 1
    assert calls.count("Bern") == calls.count("fails 3") == 2
    assert await traces(queue) == 0, "a job that has ended leaves none"


@ON_BOTH
@BOTH_KINDS
async def test_an_attempt_that_was_replaced_records_no_step(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=0.3)
    await queue.options(key="k").enqueue("job")
    message = Outgoing(queue.names.memory_subject("1", "step", "charge"), b"{}")

    async def take(source: JobSource) -> Any:
        async with asyncio.timeout(60):
            while True:
                for channel in source.channels:
                    if found := await source.take(channel, PullRequest(batch=1, expires_ns=50_000_000)):
                        return found[0].delivered

    first, second = queue._context.source_for("first"), queue._context.source_for("second")
    try:
        early = await take(first)
        late = await take(second)
        await second.keep(late, message)
        with pytest.raises((AckRejectedError, WrongLastSequenceError)):
            await first.keep(early, Outgoing(message.subject, b'{"by":"another"}'))
    finally:
        await first.close()
        await second.close()
    assert (await (await jet.stream(queue.names.running)).get_last_message(message.subject)).data == b"{}"


async def test_a_step_in_a_transaction_is_done_with_the_sql_of_its_function(queue: Queue, jet: Jet) -> None:
    async with jet.transaction() as tx:
        await tx.sql("CREATE TABLE charged (n INTEGER)")

    async def charge(tx: Transaction, n: int) -> int:
        await tx.sql("INSERT INTO charged VALUES (?)", (n,))
        if n == 2:
            raise ValueError("undone")
        return n

    @queue.job(backoff=FAST, max_attempts=2)
    async def job(context: JobContext) -> list[int]:
        one = await context.transaction_step("one", charge, 1)
        try:
            await context.transaction_step("two", charge, 2)
        except ValueError:
            if context.attempt == 1:
                raise
        return [one]

    handle = await job.enqueue()
    await drain(queue)
    assert await handle.value() == [1]
    async with jet.transaction() as tx:
        assert await tx.sql("SELECT n FROM charged") == [(1,)]


@ON_BOTH
@BOTH_KINDS
async def test_a_job_sleeps_without_a_worker_and_continues(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    starts = list[int]()
    done = list[str]()

    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> int:
        starts.append(context.attempt)
        await context.step("before", done.append, "before")
        await context.sleep(1.2)
        await context.sleep(0.01)
        await context.step("after", done.append, "after")
        await context.sleep(1.1, name="second")
        return context.attempt

    handle = await queue.options(key="k", ttl=1).enqueue(job)

    @queue.job
    async def beside() -> None: ...

    async with working(queue, concurrency=1):
        while not await traces(queue):
            await asyncio.sleep(0.01)
        other = await queue.enqueue(beside)
        assert (await other.outcome(timeout=60)).state == "completed"
        assert await handle.value(timeout=60) == 1
    assert (starts, done) == ([1, 1, 1], ["before", "after"])


async def test_names_are_used_once_and_results_are_checked(queue: Queue) -> None:
    async def nothing() -> None: ...

    async def wrong() -> set[Any]:
        return {object()}

    @queue.job(max_attempts=1)
    async def twice(context: JobContext) -> None:
        await context.step("one", nothing)
        await context.step("one", nothing)

    @queue.job(max_attempts=5)
    async def unstorable(context: JobContext) -> None:
        await context.step("one", wrong)

    @queue.job(max_attempts=1)
    async def unnamed(context: JobContext) -> None:
        await context.step("", nothing)

    handles = [await job.enqueue() for job in (twice, unstorable, unnamed)]
    await drain(queue)
    first, second, third = [await handle.outcome() for handle in handles]
    assert "step 'one' twice" in first.error
    assert "'unstorable, step 'one''" in second.error or "step 'one'" in second.error
    assert second.attempt == 1, "told at once"
    assert "name of a step" in third.error


async def test_transactions_are_for_async_jobs(queue: Queue) -> None:
    async def nothing(tx: Transaction) -> None: ...

    @queue.job(max_attempts=1)
    def job(context: JobContext) -> None:
        context.transaction_step("one", nothing).close()

    handle = await job.enqueue()
    await drain(queue)
    assert "needs an async function" in (await handle.outcome()).error


@ON_BOTH
@pytest.mark.parametrize("threaded", [False, True])
async def test_progress_is_seen_everywhere_and_the_last_one_counts(jet: Jet, threaded: bool) -> None:
    queue = await jet.queue("garage")
    begun, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(context: JobContext) -> None:
        for n in range(100):
            context.progress(n / 200, "sanding")
        context.progress(0.75, "painting")
        loop.call_soon_threadsafe(begun.set)

    async def on_loop(context: JobContext) -> None:
        await context.progress(0.1)
        tell(context)
        await go.wait()

    def on_thread(context: JobContext) -> None:
        tell(context)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    handle = await queue.job(on_thread if threaded else on_loop).enqueue()
    started = loop.time()
    async with working(queue):
        await asyncio.wait_for(begun.wait(), 60)
        async with asyncio.timeout(60):
            while (told := (await handle.info()).progress) is None or told.fraction != 0.75:
                await asyncio.sleep(0.01)
        assert isinstance(told, JobProgress)
        assert told.note == "painting"
        stream = await jet.stream(queue.names.running)
        stored = (await stream.info()).state.last_seq
        assert stored <= 3 + 2 * (loop.time() - started), "at most two a second are stored"
        go.set()
        await handle.outcome(timeout=60)
    assert (await handle.info()).progress is None
    assert await traces(queue) == 0
    assert await queue.counts() == JobCounts(completed=1)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, "half", True])
async def test_progress_that_cannot_be_is_refused(queue: Queue, fraction: Any) -> None:
    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> None:
        await context.progress(fraction)

    handle = await job.enqueue()
    await drain(queue)
    assert "progress is" in (await handle.outcome()).error
    assert pelton.ConfigError is ConfigError


class Blocking:
    """The function of a step, on a thread: it is called, and returns when the test lets it."""

    def __init__(self) -> None:
        self.calls = 0
        self.events = list[str]()
        self.is_called = threading.Event()
        # Set by what must not happen before the thread has ended; until then, the thread has time to see it.
        self.too_early = threading.Event()

    def call(self) -> int:
        self.calls += 1
        if self.calls > 1:
            self.too_early.set()
            return self.calls
        self.is_called.set()
        self.too_early.wait(0.4)
        self.events.append("returned")
        return self.calls


@ON_BOTH
async def test_a_cancelled_job_ends_when_the_thread_of_its_step_has(jet: Jet) -> None:
    queue, blocking = await jet.queue("keyed", exclusive=True, lease=5), Blocking()

    @queue.job
    async def job(context: JobContext) -> None:
        await context.step("block", blocking.call)

    @queue.job
    async def next_job() -> None:
        blocking.events.append("next job")
        blocking.too_early.set()

    first = await queue.options(key="k").enqueue(job)
    second = await queue.options(key="k").enqueue(next_job)
    async with working(queue):
        await asyncio.to_thread(blocking.is_called.wait, 20)
        assert await first.cancel()
        assert (await second.outcome(timeout=60)).state == "completed"
    assert (await first.outcome()).state == "cancelled"
    assert blocking.events == ["returned", "next job"]


@ON_BOTH
async def test_a_step_whose_job_takes_too_long_is_not_called_again(jet: Jet) -> None:
    queue, blocking = await jet.queue("garage"), Blocking()

    @queue.job(timeout=0.3, backoff=FAST, max_attempts=2)
    async def job(context: JobContext) -> int:
        return await context.step("block", blocking.call) + context.attempt

    handle = await queue.enqueue(job)
    await drain(queue)
    assert (await handle.value(), blocking.calls) == (3, 1)


async def test_a_stopping_worker_waits_for_the_threads_of_steps(queue: Queue) -> None:
    blocking = Blocking()

    @queue.job
    async def job(context: JobContext) -> int:
        return await context.step("block", blocking.call)

    handle = await queue.enqueue(job)
    async with working(queue, grace=0.0):
        await asyncio.to_thread(blocking.is_called.wait, 20)
    assert (await handle.info()).state == "pending"
    assert blocking.events == ["returned"]
    await drain(queue)
    assert (await handle.value(), blocking.calls) == (1, 1)


async def test_a_job_ends_when_the_steps_it_does_not_wait_for_have(queue: Queue) -> None:
    blocking, tasks = Blocking(), list[asyncio.Task[Any]]()

    async def strays(context: JobContext) -> None:
        await context.step("block", blocking.call)
        await context.step("another", blocking.call)

    @queue.job
    async def job(context: JobContext) -> None:
        tasks.append(asyncio.create_task(strays(context)))
        await asyncio.to_thread(blocking.is_called.wait, 20)

    handle = await queue.enqueue(job)
    async with working(queue):
        assert (await handle.outcome(timeout=60)).state == "completed"
        blocking.events.append("completed")
        with pytest.raises(ConfigError, match="await its steps"):
            await tasks[0]
    assert (blocking.events, blocking.calls) == (["returned", "completed"], 1)


@ON_BOTH
@BOTH_KINDS
async def test_a_later_attempt_sees_the_same_time_number_and_uuid(jet: Jet, exclusive: bool) -> None:
    queue, seen = await jet.queue("garage", exclusive=exclusive), list[object]()

    @queue.job(backoff=FAST)
    async def job(context: JobContext) -> None:
        for _ in range(2):
            seen.append((await context.now(), await context.random(), await context.uuid()))
        if context.attempt == 1:
            raise ValueError("again")

    await queue.options(key="k").enqueue(job)
    await drain(queue)
    assert seen[:2] == seen[2:]
    assert len(set(seen)) == 2
    assert await traces(queue) == 0


@ON_BOTH
@BOTH_KINDS
async def test_a_step_is_tried_again(jet: Jet, exclusive: bool) -> None:
    queue, calls = await jet.queue("garage", exclusive=exclusive), Counter[str]()

    async def price(what: str, right: int, error: type[Exception] = ConnectionError) -> int:
        calls[what] += 1
        if calls[what] == 1 and what == "hangs":
            await asyncio.Event().wait()
        if calls[what] < right:
            raise error(what)
        return calls[what]

    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> list[object]:
        calls["job"] += 1
        patient = context.options(max_attempts=3, backoff=[1.01, 0.01], timeout=30)
        found: list[object] = [await patient.step("fails", price, "fails", 3)]
        twice = context.options(max_attempts=2, backoff=FAST, permanent=KeyError)
        found.append(await twice.step("thread", len, [1]))
        for what, error in (("never", ConnectionError), ("key", KeyError), ("permanent", PermanentJobError)):
            try:
                await twice.step(what, price, what, 9, error)
            except Exception as raised:
                found.append(type(raised).__name__)
        with pytest.raises(StepTimeoutError, match="step 'hangs'"):
            await context.options(timeout=0.01).step("hangs", price, "hangs", 1)
        found += await asyncio.gather(*(twice.step(what, price, what, 2) for what in ("a", "b")))
        return found

    handle = await queue.options(key="k").enqueue(job)
    async with working(queue):
        found = await handle.value(timeout=30)
    assert found == [3, 1, "ConnectionError", "KeyError", "PermanentJobError", 2, 2]
    assert calls.pop("job") == 2, "given back for more than a second"
    assert calls == {"fails": 3, "never": 2, "key": 1, "permanent": 1, "hangs": 1, "a": 2, "b": 2}
    assert (await handle.outcome()).attempt == 1
    assert await traces(queue) == 0


async def test_a_step_on_a_thread_has_no_timeout(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> None:
        await context.options(timeout=1).step("len", len, [1])

    handle = await queue.enqueue(job)
    await queue.work(until_empty=True)
    assert "a thread can't be stopped" in (await handle.outcome()).error
