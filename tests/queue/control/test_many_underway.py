"""Views of a queue read what they show, not all that is under way; running jobs have their worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import Jet, observe
from pelton.api import ConsumerUnsettled, UnsettledGroups, rfc3339
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import working


@ON_BOTH
async def test_a_running_job_tells_its_worker_and_since_when(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.queue.run.worker._EVERY_S", 0.05)
    begun, go = asyncio.Event(), asyncio.Event()

    @queue.job
    async def long() -> None:
        begun.set()
        await go.wait()

    handle = await long.enqueue()
    async with working(queue), asyncio.timeout(60):
        await begun.wait()
        while not (info := await queue.get(handle.id)).worker:
            await asyncio.sleep(0.01)
        (worker,) = await queue.workers()
        assert (info.state, info.worker) == ("running", worker.name)
        assert 0 < info.started_at <= worker.seen_at
        assert [job.worker async for job in queue.jobs(state="running")] == [worker.name]
        go.set()
    ended = await queue.get(handle.id)
    assert ended.outcome is not None
    assert (ended.worker, ended.started_at) == (ended.outcome.worker, ended.outcome.started_at)


async def test_deliveries_are_selected_and_counted(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer(durable_name="c", ack_policy="explicit")
    for _ in range(6):
        await jet.publish("s")
    messages = await consumer.fetch(5, timeout=5)
    for message, delay in zip(messages[1:], (300, 100, 200, 0), strict=True):
        await message.nak(delay=delay)

    async def of(**given: Any) -> list[int]:
        reply = await jet.backend.call(ConsumerUnsettled(stream="S", name="c", **given))
        return [one.seq for one in reply.messages]

    now = jet.runtime.clock.now()
    assert await of() == [1, 2, 3, 4, 5]
    assert await of(descending=True, limit=2) == [5, 4]
    assert await of(after=(0, 3)) == [4, 5]
    assert await of(sequences=(2, 4, 9)) == [2, 4]
    assert await of(causes=(-1, -1)) == [1]
    assert await of(causes=(0, 0), due_after=now) == [2, 3, 4]
    assert await of(causes=(0, 0), due_after=now, by_due=True, limit=2) == [3, 4]
    page = (await jet.backend.call(ConsumerUnsettled(stream="S", name="c", causes=(0, 0), by_due=True))).messages
    assert await of(causes=(0, 0), by_due=True, after=(page[1].due, page[1].seq)) == [4, 2]
    assert await of(causes=(0, 0), by_due=True, descending=True, after=(page[2].due, page[2].seq)) == [3, 5]
    found = await jet.backend.call(UnsettledGroups(stream="S", name="c"))
    assert [one.seq for one in found.taken] == [1]
    assert [(one.cause, one.is_due, one.number, one.first_seq) for one in found.groups] == [
        (0, False, 3, 2), (0, True, 1, 5),
    ]  # fmt: skip
    assert found.passed == 5, "the sixth waits"
    await messages[4].ack()
    await consumer.fetch(1, timeout=5)
    found = await jet.backend.call(UnsettledGroups(stream="S", name="c"))
    assert [(one.cause, one.is_due, one.number, one.first_seq) for one in found.groups] == [(0, False, 3, 2)]
    assert [one.seq for one in found.taken] == [1, 6]
    await jet.publish("s")
    assert (await jet.backend.call(UnsettledGroups(stream="S", name="c"))).passed == 6


@pytest.fixture
def silent() -> Iterator[None]:
    log = logging.getLogger("pelton.queue")
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("silent")
async def test_looks_at_a_queue_in_trouble_do_not_read_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider is down: thousands of jobs are tried again. One job, and the counts, are asked for with few rows."""
    async with pelton.open(tmp_path / "a.pelton") as jet:
        queue = await jet.queue("shop")

        @queue.job(backoff=[3600])
        async def charge(order: int) -> None:
            raise OSError("down")

        await charge.enqueue_many([(number,) for number in range(1200)])
        async with working(queue), asyncio.timeout(120):
            while (await queue.counts()).retrying < 1200:
                await asyncio.sleep(0.1)
        # No worker has looked for the first of these, nor is there a consumer for it yet.
        of_tenant = await charge.options(tenant="acme").enqueue(-2)
        waiting = await charge.options(priority=3).enqueue(-1)
        oldest = (await of_tenant.info()).enqueued_at
        rows: list[int] = []
        real = jet.backend.call

        async def call(request: Any) -> Any:
            reply = await real(request)
            rows.append(len(getattr(reply, "messages", ())))
            return reply

        monkeypatch.setattr(jet.backend, "call", call)
        summary = await observe.queue_summary(jet, "shop")
        assert (summary.pending, summary.retrying, summary.running) == (2, 1200, 0)
        assert summary.oldest_at == rfc3339(oldest)
        assert sum(rows) < 20, "those that were taken are passed over by where their consumers are"
        await of_tenant.cancel()
        assert await queue.oldest_at() == (await waiting.info()).enqueued_at
        assert (await queue.get(waiting.id)).state == "pending"
        assert (await queue.get("7")).state == "retrying"
        assert sum(rows) < 300
