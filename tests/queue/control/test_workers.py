"""Which workers a queue has, in every process, and the log of their failed attempts."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from pelton import Jet, WorkerInfo
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import drain, working


@ON_BOTH
async def test_workers_are_seen_from_everywhere_until_they_end(queue: Queue, another: OpenQueue) -> None:
    elsewhere = await another("garage")
    assert await elsewhere.workers() == []
    async with working(queue, queue, concurrency=3), asyncio.timeout(60):
        while len(found := await elsewhere.workers()) < 2:
            await asyncio.sleep(0.01)
        assert {worker.pid for worker in found} == {os.getpid()}
        assert {worker.concurrency for worker in found} == {3}
        assert len({worker.name for worker in found}) == 2
        assert all(isinstance(worker, WorkerInfo) and worker.host and worker.seen_at for worker in found)
    assert await elsewhere.workers() == []


async def test_a_worker_counts_what_it_does(jet: Jet, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.queue.run.worker._EVERY_S", 0.05)
    begun, go = asyncio.Event(), asyncio.Event()

    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def long() -> None:
        begun.set()
        await go.wait()

    await quick.enqueue_many([()] * 5)
    await long.enqueue()
    async with working(queue), asyncio.timeout(60):
        await begun.wait()
        while (worker := (await queue.workers() or [None])[0]) is None or worker.oldest_running < 0.05:
            await asyncio.sleep(0.01)
        while worker.finished < 5:
            [worker] = await queue.workers()
        assert (worker.taken, worker.finished, worker.running, worker.stopping) == (6, 5, 1, False)
        go.set()


@pytest.mark.filterwarnings("ignore")
async def test_failed_attempts_are_logged_with_fields(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.job(max_attempts=2, backoff=[0])
    async def paint() -> None:
        raise OSError("no paint")

    handle = await queue.options(key="car1").enqueue(paint)
    with caplog.at_level(logging.INFO, "pelton.queue"):
        await drain(queue)
    found = [vars(record) for record in caplog.records if record.name == "pelton.queue"]
    assert [(one["job"], one["id"], one["key"], one["attempt"], one["queue"]) for one in found] == [
        ("paint", handle.id, "car1", n, "garage") for n in (1, 2)
    ]
    assert all("in paint" in one["traceback"] for one in found)
