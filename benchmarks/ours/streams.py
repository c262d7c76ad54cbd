"""Pelton's streams: publish, fetch and ack. Every count is checked with the store afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FETCH, FILTER, PAYLOAD, SUBJECT, drained, in_flight, one_by_one
from benchmarks.ours import Sync

STREAM = "bench"
DURABLE = "worker"


@asynccontextmanager
async def store(run: Run, sync: Sync) -> AsyncIterator[Any]:
    """A fresh store with one stream."""
    async with pelton.open(run.workdir / "bench.pelton", sync=sync) as jet:
        await jet.create_stream(STREAM, subjects=[FILTER])
        yield jet


async def publish_each(run: Run, sync: Sync) -> Sample:
    """Publish, awaiting each."""
    async with store(run, sync) as jet:
        return {"rate": await one_by_one(run.seconds, lambda: jet.publish(SUBJECT, PAYLOAD))}


async def publish_in_flight(run: Run, sync: Sync) -> Sample:
    """1,000 publishes in flight at all times."""
    async with store(run, sync) as jet:
        return {"rate": await in_flight(run.seconds, lambda: jet.publish(SUBJECT, PAYLOAD))}


async def publish_batch(run: Run, sync: Sync) -> Sample:
    """Batches of 1,000, awaiting each batch."""
    batch = [(SUBJECT, PAYLOAD)] * BATCH
    async with store(run, sync) as jet:
        return {"rate": await one_by_one(run.seconds, lambda: jet.publish_batch(batch), each=BATCH)}


async def fetch_many(run: Run, sync: Sync) -> Sample:
    """fetch(256), then a durable `ack()` awaited for each message."""

    async def finish(consumer: Any, messages: list[Any]) -> None:
        await asyncio.gather(*(message.ack() for message in messages))

    return {"rate": await _drain(run, sync, run.drain, FETCH, finish)}


async def fetch_batch(run: Run, sync: Sync) -> Sample:
    """fetch(256), then one durable `consumer.ack(messages)`."""

    async def finish(consumer: Any, messages: list[Any]) -> None:
        await consumer.ack(messages)

    return {"rate": await _drain(run, sync, run.drain, FETCH, finish)}


async def fetch_one(run: Run, sync: Sync) -> Sample:
    """fetch(1), then a durable `ack()`."""

    async def finish(consumer: Any, messages: list[Any]) -> None:
        await messages[0].ack()

    return {"rate": await _drain(run, sync, run.drain // 4, 1, finish)}


Finish = Callable[[Any, list[Any]], Awaitable[None]]


async def _drain(run: Run, sync: Sync, total: int, batch: int, finish: Finish) -> float:
    """Fetch and finish `total` stored messages, then make sure that the store counts none as left."""
    async with store(run, sync) as jet:
        await fill(jet, total)
        stream = await jet.stream(STREAM)
        consumer = await stream.create_consumer(durable_name=DURABLE, ack_policy="explicit")

        async def step() -> int:
            messages = await consumer.fetch(batch, timeout=10)
            await finish(consumer, messages)
            return len(messages)

        rate = await drained(total, step)
        info = await consumer.info()
        if info.num_pending or info.num_ack_pending:
            raise RuntimeError(f"left behind: {info.num_pending} waiting, {info.num_ack_pending} without ack")
        return rate


async def fill(jet: Any, total: int) -> None:
    """Store `total` messages."""
    for start in range(0, total, BATCH):
        await jet.publish_batch([(SUBJECT, PAYLOAD)] * min(BATCH, total - start))
