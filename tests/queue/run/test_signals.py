"""Signals to jobs: received once, in order, by a job that holds nothing while it waits."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest

from pelton import Jet, JobEndedError, JobNotFoundError, SignalTimeoutError
from pelton.observe.finding import job_with_details
from pelton.queue import JobContext, JobHandle, Queue
from pelton.queue.model.naming import QueueNames
from pelton.streams.reader import _is_range
from tests.kit.served import served_store
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, open_store, working
from tests.queue.run.test_steps import BOTH_KINDS, traces


@dataclass
class Decision:
    by: str
    is_yes: bool = True


async def until_waiting(queue: Queue, *job_ids: str) -> None:
    """Return when jobs are given back."""
    async with asyncio.timeout(60):
        while True:
            infos = [await queue.get(job_id) for job_id in job_ids]
            if all(info.state == "waiting" for info in infos):
                return
            await asyncio.sleep(0.01)


@ON_BOTH
@BOTH_KINDS
async def test_a_job_waits_without_a_worker_and_goes_on_with_its_signal(
    jet: Jet, another: OpenQueue, exclusive: bool
) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    starts, done = list[int](), list[str]()

    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> list[str]:
        starts.append(context.attempt)
        await context.step("before", done.append, "before")
        first = await context.wait_for("approved", Decision)
        second = await context.wait_for("approved", Decision)
        await context.step("after", done.append, "after")
        other = await context.wait_for("a name. of *any* kind", str)
        return [first.by, second.by, other]

    handle = await queue.options(key="k").enqueue(job)

    @queue.job
    async def beside() -> None: ...

    async with working(queue, concurrency=1):
        await until_waiting(queue, handle.id)
        outcome = await (await queue.enqueue(beside)).outcome(timeout=60)
        assert outcome.state == "completed", "no slot is held"
        behind = await queue.options(key="k").enqueue(beside)
        if exclusive:
            assert (await behind.info()).state == "pending", "it keeps its key"
        assert "signal 'approved'" in (await handle.info()).last_error
        details = await job_with_details(jet, "garage", handle.id)
        assert details.waits_for.startswith("signal 'approved', since 20")
        wait = details.job.waits_for
        assert wait is not None
        assert (wait.signal, wait.until, details.job.due) == ("approved", 0, 0)
        assert (await queue.counts()).waiting == 1
        assert [one.id async for one in queue.jobs(state="waiting")] == [handle.id]
        elsewhere = await another("garage")
        assert await elsewhere.send(handle.id, "a name. of *any* kind", "early")
        assert await elsewhere.send(handle.id, "approved", Decision("ann"), msg_id="1")
        assert not await elsewhere.send(handle.id, "approved", Decision("nobody"), msg_id="1")
        await handle.send("approved", Decision("bob"))
        assert await handle.value(timeout=60) == ["ann", "bob", "early"]
        assert (await behind.outcome(timeout=60)).state == "completed"
    assert done == ["before", "after"]
    assert set(starts) == {1}
    assert await traces(queue) == 0
    with pytest.raises(JobEndedError, match="completed"):
        await handle.send("approved")
    with pytest.raises(JobNotFoundError):
        await queue.send("4711", "approved")


@ON_BOTH
@BOTH_KINDS
async def test_a_wait_is_over_after_its_timeout_also_for_later_attempts(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)

    @queue.job(backoff=FAST)
    async def job(context: JobContext) -> list[str]:
        with pytest.raises(SignalTimeoutError, match=r"'paid' within 0\.2 s"):
            await context.wait_for("paid", timeout=0.2)
        if context.attempt == 1:
            await context.jet.publish(queue.names.signal_subject(context.id, "paid", "late"), b'"late"')
            raise ValueError("the next attempt must come here, too")
        late = await context.wait_for("paid", str, timeout=0.2, default=None)
        never = await context.wait_for("paid", str, timeout=0, default="never")
        return [str(late), never]

    handle = await queue.options(key="k").enqueue(job)
    await drain(queue)
    assert await handle.value() == ["late", "never"]


async def test_any_nats_client_sends_a_signal(tmp_path: Path) -> None:
    with served_store(tmp_path / "store.pelton") as served:
        async with open_store(str(tmp_path / "store.pelton")) as jet:
            queue = await jet.queue("garage")

            @queue.job
            async def job(context: JobContext) -> Decision:
                return await context.wait_for("is it ok?", Decision)

            handle = await job.enqueue()
            async with working(queue):
                await until_waiting(queue, handle.id)
                client = await nats.connect(served.url)
                subject = f"$JOBS.garage.running.job.{handle.id}.signal.is%20it%20ok%3F.any-token"
                await client.publish(subject, b'{"by": "bob", "is_yes": false}')
                assert await handle.value(timeout=60) == Decision("bob", is_yes=False)
                await client.close()


async def test_a_signal_is_sent_with_a_transaction_or_not_at_all(queue: Queue, jet: Jet) -> None:
    @queue.job
    async def job(context: JobContext) -> list[str]:
        return [await context.wait_for("paid", str) for _ in range(2)]

    handle = await job.enqueue()
    with suppress(ZeroDivisionError):
        async with jet.transaction() as tx:
            await tx.queue(queue).send(handle.id, "paid", "never")
            raise ZeroDivisionError
    async with jet.transaction() as tx:
        assert await tx.queue(queue).send(handle.id, "paid", "once", msg_id="1")
        assert not await tx.queue(queue).send(handle.id, "paid", "again", msg_id="1")
        await tx.queue(queue).send(handle.id, "paid", "twice")
    await drain(queue)
    assert await handle.value() == ["once", "twice"]


@ON_BOTH
async def test_a_job_that_waits_is_cancelled_and_a_signal_of_another_type_waits(jet: Jet) -> None:
    queue = await jet.queue("garage")

    @queue.job
    async def job(context: JobContext) -> int:
        return await context.wait_for("n", int)

    first, second = await job.enqueue(), await job.enqueue()
    async with working(queue):
        await until_waiting(queue, first.id, second.id)
        await first.send("other", "is never received")
        assert await first.cancel()
        assert (await first.outcome(timeout=60)).state == "cancelled"
        await second.send("n", "five")
        while "signal 'n' is not" not in (await second.info()).last_error:
            await asyncio.sleep(0.01)
        assert (await second.info()).attempt == 0, "given back, not failed"
        running = await jet.stream(queue.names.running)
        await running.purge(filter=queue.names.signals_of(second.id, "n"))
        await second.send("n", 5)
        assert await second.value(timeout=60) == 5
    assert await traces(queue) == 0


@ON_BOTH
async def test_many_signals_are_received_in_order_each_once_while_attempts_fail(jet: Jet) -> None:
    queue = await jet.queue("garage")
    seen = list[Any]()

    @queue.job(backoff=FAST, max_attempts=50)
    async def job(context: JobContext) -> list[int]:
        found = [await context.wait_for("n", int) for _ in range(20)]
        if len(found) % 7 == 0:
            raise ValueError("once more")
        seen.append(found)
        return found

    handle = await job.enqueue()
    async with working(queue):
        for number in range(20):
            await handle.send("n", number)
        assert await handle.value(timeout=60) == list(range(20))
    assert seen == [list(range(20))]


@ON_BOTH
async def test_what_a_job_publishes_is_awaited_from_anywhere_also_after_its_end(jet: Jet, another: OpenQueue) -> None:
    queue, elsewhere = await jet.queue("garage"), await another("garage")

    @queue.job
    async def offer(context: JobContext) -> str:
        await context.publish("quote", {"price": 1})
        await context.publish("quote", {"price": 2})
        await context.wait_for("approved")
        await context.publish("place", "york")
        return "sold"

    handle = await queue.enqueue(offer)
    with pytest.raises(TimeoutError, match="event 'quote'"):
        await elsewhere.handle(handle.id).event("quote", timeout=0.01)
    quote = asyncio.ensure_future(elsewhere.handle(handle.id).event("quote", dict[str, int]))
    told = asyncio.ensure_future(all_events(elsewhere.handle(handle.id)))
    async with working(queue):
        assert (await asyncio.wait_for(quote, 60))["price"] in (1, 2)
        await until_waiting(queue, handle.id)
        assert await handle.event("quote") == {"price": 2}
        history = (await job_with_details(jet, "garage", handle.id)).history
        assert [(one.kind, one.name) for one in history] == [
            ("event", "quote"), ("event", "quote"), ("wait", "approved")
        ]  # fmt: skip
        async with aclosing(handle.events()) as events:
            assert await anext(events) == ("quote", {"price": 1})
        missing = asyncio.ensure_future(handle.event("nothing"))
        await handle.send("approved")
        assert await handle.value(timeout=60) == "sold"
        with pytest.raises(JobEndedError):
            await missing
    assert [await elsewhere.handle(handle.id).event(name) for name in ("quote", "place")] == [{"price": 2}, "york"]
    assert await asyncio.wait_for(told, 60) == [("quote", {"price": 1}), ("quote", {"price": 2}), ("place", "york")]
    assert await all_events(handle) == [("quote", {"price": 2}), ("place", "york")]
    with pytest.raises(JobNotFoundError):
        await elsewhere.handle("999").event("quote")
    with pytest.raises(JobNotFoundError):
        await all_events(elsewhere.handle("999"))


async def all_events(handle: JobHandle[Any]) -> list[tuple[str, Any]]:
    return [one async for one in handle.events()]


def test_what_a_job_left_is_found_by_its_subjects_among_that_of_however_many_others() -> None:
    """A filter that is no beginning of subjects is searched for in the messages of all jobs that wait."""
    names = QueueNames("garage")
    assert all(
        map(_is_range, (names.signals_of("7", "n"), names.traces_of("7"), names.memory_subject("7", "call", ">")))
    )
