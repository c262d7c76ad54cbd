"""RQ, dramatiq and SAQ on a Redis that syncs each write: no-op jobs in one process."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Any

import dramatiq
import redis
import rq
import saq
from dramatiq.brokers.redis import RedisBroker
from saq.queue.redis import RedisQueue

from benchmarks.case import Run, Sample
from benchmarks.load import JobTimes
from benchmarks.peers import job_servers

_CONCURRENCY = 64


def noop() -> None:
    """A job of RQ, which finds it by its name."""


def on_rq(run: Run) -> Sample:
    """Enqueue all, then work them off in this process: RQ's usual worker forks for each job."""
    logging.disable(logging.WARNING)
    total = run.drain // 20
    with job_servers.redis() as url:
        connection = redis.Redis.from_url(url)
        queue = rq.Queue("bench", connection=connection)
        begun = perf_counter()
        for _ in range(total):
            queue.enqueue(noop)
        enqueued = perf_counter()
        rq.SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")
        assert queue.count == 0
        return JobTimes(begun, enqueued, perf_counter()).rates(total)


def on_dramatiq(run: Run) -> Sample:
    """Send all, then let a worker of eight threads, its usual number, work them off."""
    total = run.drain // 20
    with job_servers.redis() as url:
        broker = RedisBroker(url=url)
        actor: Any = dramatiq.actor(noop, broker=broker, queue_name="bench")
        begun = perf_counter()
        for _ in range(total):
            actor.send()
        enqueued = perf_counter()
        worker = dramatiq.Worker(broker, worker_threads=8)
        worker.start()
        broker.join("bench")
        finished = perf_counter()
        worker.stop()
        return JobTimes(begun, enqueued, finished).rates(total)


async def on_saq(run: Run) -> Sample:
    """Enqueue all, then work them off, many at once."""
    logging.disable(logging.WARNING)
    total = run.drain // 20
    left, done = total, asyncio.Event()

    async def job(context: saq.types.Context) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    with job_servers.redis() as url:
        queue = RedisQueue(redis.asyncio.Redis.from_url(url))
        begun = perf_counter()
        for _ in range(total):
            await queue.enqueue("job")
        enqueued = perf_counter()
        worker: Any = saq.Worker(queue, functions=[("job", job)], concurrency=_CONCURRENCY)
        working = asyncio.create_task(worker.start())
        await done.wait()
        finished = perf_counter()
        await worker.stop()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return JobTimes(begun, enqueued, finished).rates(total)
