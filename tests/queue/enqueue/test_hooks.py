"""What a program puts around its jobs: around each run, and before each is enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import pelton
from pelton import ConfigError, Jet, JobCall, JobContext, JobFailedError
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, working

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def shop() -> pelton.Jobs:
    jobs = pelton.Jobs()

    @jobs.job
    async def sell(number: int) -> int:
        seen.append(("sell", number))
        return number

    @jobs.job
    def pack(number: int, context: JobContext) -> int:
        seen.append(("pack", threading.current_thread() is threading.main_thread(), context.attempt))
        return number

    @jobs.job(max_attempts=2, backoff=FAST)
    async def fail() -> None:
        raise ValueError("no")

    return jobs


async def test_hooks_are_around_each_run_where_the_function_runs(jet: Jet) -> None:
    jobs = shop()

    @jobs.around_run
    def outer(context: JobContext) -> Iterator[None]:
        seen.append(("outer", context.job, context.attempt, threading.get_ident()))
        try:
            yield
        except ValueError as error:
            seen.append(("raised", str(error)))
            raise
        seen.append("after")

    @jobs.around_run
    def inner(context: JobContext) -> nullcontext[None]:
        seen.append("inner")
        return nullcontext()

    queue = await jet.queue("shop", jobs=jobs)
    assert await (await run(queue, "sell", number=1)).value() == 1
    assert seen == [("outer", "sell", 1, threading.get_ident()), "inner", ("sell", 1), "after"]
    seen.clear()
    assert await (await run(queue, "pack", number=2)).value() == 2
    assert seen[0][3] != threading.get_ident()
    assert seen[1:] == ["inner", ("pack", False, 1), "after"]
    seen.clear()
    failed = await run(queue, "fail")
    assert [words[:3] for words in seen if words != "inner"] == [
        ("outer", "fail", 1), ("raised", "no"), ("outer", "fail", 2), ("raised", "no"),
    ]  # fmt: skip
    with pytest.raises(JobFailedError, match="ValueError: no"):
        await failed.value()


async def run(queue: Queue, job: str, **arguments: Any) -> pelton.JobHandle[Any]:
    handle = await queue.enqueue(job, **arguments)
    await drain(queue)
    return handle


async def test_what_a_hook_raises_fails_the_attempt(jet: Jet) -> None:
    jobs = shop()
    entered = [0]

    @jobs.around_run
    def counted(context: JobContext) -> Iterator[None]:
        entered[0] += 1
        try:
            yield
        finally:
            entered[0] -= 1

    @jobs.around_run
    def broken(context: JobContext) -> Iterator[None]:
        raise pelton.PermanentJobError("not today")
        yield

    queue = await jet.queue("shop", jobs=jobs)
    outcome = await (await run(queue, "sell", number=1)).outcome()
    assert (outcome.state, outcome.error) == ("failed", "PermanentJobError: not today")
    assert (entered, seen) == ([0], [])


async def test_a_cancelled_run_leaves_its_hooks(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.around_run
    def around(context: JobContext) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append("left")

    @queue.job(timeout=0.05, max_attempts=1)
    async def long() -> None:
        started.set()
        await asyncio.Event().wait()

    handle = await long.enqueue()
    await drain(queue)
    assert (await handle.outcome()).state == "failed"
    assert seen == ["left"]


async def test_what_is_enqueued_is_seen_changed_and_refused_before(jet: Jet) -> None:
    jobs = shop()

    @jobs.on_enqueue
    def tag(call: JobCall) -> JobCall | None:
        if call.job == "fail":
            raise PermissionError("not this one")
        return call.with_meta(tenant="blue").with_options(key="k") if call.job == "pack" else None

    @jobs.on_enqueue
    def second(call: JobCall) -> JobCall:
        return call.with_meta(trace=f"t{len(call.meta)}")

    @jobs.around_run
    def around(context: JobContext) -> Iterator[None]:
        seen.append((context.key, context.meta))
        yield

    queue = await jet.queue("shop", jobs=jobs)
    sell, pack = jobs.get("sell"), jobs.get("pack")
    assert sell is not None
    assert pack is not None
    await queue.enqueue(pack, 1)
    await queue.options(key="mine").enqueue(sell, 2)
    await queue.enqueue_many([sell.bind(3)])
    async with jet.transaction() as tx:
        await tx.queue(queue).enqueue("pack", number=4)
    with pytest.raises(PermissionError):
        await queue.enqueue("fail")
    await drain(queue, concurrency=1)
    blue = {"tenant": "blue", "trace": "t1"}
    metas = [words for words in seen if isinstance(words[1], dict)]
    assert metas == [("k", blue), ("mine", {"trace": "t0"}), ("", {"trace": "t0"}), ("k", blue)]


async def test_jobs_of_a_queue_have_its_hooks(queue: Queue) -> None:
    @queue.job
    async def plain(context: JobContext) -> dict[str, str]:
        return context.meta

    @queue.on_enqueue
    def tag(call: JobCall) -> JobCall:
        return call.with_meta(by="me")

    [handle] = await plain.enqueue_many([()])
    await drain(queue)
    assert await handle.value() == {"by": "me"}


async def test_hooks_and_their_texts_are_checked(queue: Queue) -> None:
    async def awaits(call: Any) -> Any: ...

    with pytest.raises(ConfigError, match="can't await"):
        queue.around_run(awaits)
    with pytest.raises(ConfigError, match="can't be async"):
        queue.on_enqueue(awaits)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="give a text"):
        JobCall("job", b"{}").with_meta(number=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no option"):
        JobCall("job", b"{}").with_options(colour="red")  # type: ignore[call-arg]


in_process = pelton.Jobs()


@in_process.job(process=True)
def double(number: int) -> int:
    return 2 * number


async def test_a_run_in_a_child_process_is_within_the_hooks_of_its_worker(jet: Jet) -> None:
    @in_process.around_run
    def around(context: JobContext) -> Iterator[None]:
        seen.append("begin")
        yield
        seen.append("end")

    queue = await jet.queue("shop", jobs=in_process)
    assert await (await run(queue, "double", number=4)).value() == 8
    assert seen == ["begin", "end"]


# --- around the workers


async def test_a_lifespan_is_entered_once_for_all_workers_of_a_store(jet: Jet) -> None:
    jobs = pelton.Jobs()

    @jobs.lifespan
    async def client(opened: Jet) -> AsyncIterator[str]:
        assert opened is jet
        seen.append("begin")
        yield "a client"
        seen.append("end")

    @jobs.job
    async def fetch(context: JobContext) -> str:
        assert context.jet is jet
        seen.append("fetch")
        return str(context.state)

    @jobs.job
    def pack(context: JobContext) -> str:
        assert isinstance(context.jet, pelton.sync.Jet)
        return str(context.state)

    queues = [await jet.queue(name, jobs=jobs) for name in ("one", "two")]
    handles = [await queue.enqueue(job) for queue in queues for job in (fetch, pack)]
    await asyncio.gather(*map(drain, queues))
    assert [await handle.value() for handle in handles] == ["a client"] * 4
    assert seen == ["begin", "fetch", "fetch", "end"]
    with pytest.raises(ConfigError, match="one already"):
        jobs.lifespan(client)


@ON_BOTH
async def test_a_plain_function_gets_the_blocking_face_of_the_store(jet: Jet) -> None:
    jobs = pelton.Jobs()

    @jobs.lifespan
    def shelf(opened: pelton.sync.Jet) -> Iterator[pelton.sync.Bucket]:
        seen.append(threading.current_thread() is threading.main_thread())
        yield opened.create_bucket("shelf")
        seen.append("end")

    @jobs.around_run
    def noted(context: JobContext) -> Iterator[None]:
        if context.job == "pack":
            context.jet.publish("packed", b"soon")
        yield

    @jobs.job
    def pack(number: int, context: JobContext) -> int:
        context.state.put("last", str(number).encode())
        with pytest.raises(pelton.StreamNotFoundError):
            context.jet.stream("unknown")
        with context.jet.lock("press"):
            return int(context.jet.queue(context.queue).enqueue("sell", number=number).value())

    @jobs.job
    async def sell(number: int) -> int:
        return number

    notes = await jet.create_stream("notes", subjects=["packed"])
    queue = await jet.queue("shop", jobs=jobs)
    handle = await queue.enqueue(pack, 7)
    async with working(queue, concurrency=2):
        assert await handle.value(timeout=60) == 7
    assert (await (await jet.bucket("shelf")).get("last")).value == b"7"
    assert (await notes.get_last_message("packed")).data == b"soon"
    assert seen == [False, "end"]


async def test_a_plain_lifespan_is_left_also_if_its_worker_is_cancelled_as_it_begins(jet: Jet) -> None:
    jobs, begins, go = pelton.Jobs(), threading.Event(), threading.Event()

    @jobs.lifespan
    def pool(_: pelton.sync.Jet) -> Iterator[None]:
        begins.set()
        go.wait(60)
        yield
        seen.append("end")

    queue = await jet.queue("shop", jobs=jobs)
    work = asyncio.create_task(queue.work())
    await asyncio.to_thread(begins.wait, 60)
    work.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert seen == ["end"]


async def test_nothing_is_taken_if_a_lifespan_fails_at_its_start(jet: Jet) -> None:
    jobs = pelton.Jobs()

    @jobs.lifespan
    async def client(_: Jet) -> AsyncIterator[None]:
        raise OSError("no route")
        yield

    @jobs.job
    async def fetch() -> None:
        seen.append("fetch")

    queue = await jet.queue("one", jobs=jobs)
    handle = await queue.enqueue(fetch)
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            await drain(queue)
    assert (seen, (await handle.info()).state) == ([], "pending")
