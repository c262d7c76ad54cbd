"""Pelton on a NATS server: publishes in flight, then batches fetched and acked, each ack confirmed."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import FETCH, FILTER, PAYLOAD, SUBJECT, WINDOW, drained
from benchmarks.peers.nats_server import running


async def publish_and_ack(run: Run, message_ids: bool) -> Sample:
    """1,000 publishes in flight at all times, then fetch(256) and one `consumer.ack(messages)`."""
    async with running(run.workdir) as url, pelton.open(url, message_ids=message_ids) as jet:
        stream = await jet.create_stream("bench", subjects=[FILTER])
        published = await _published(jet, run.drain)
        consumer = await stream.create_consumer(durable_name="worker")

        async def step() -> int:
            messages = await consumer.fetch(FETCH, timeout=10)
            await consumer.ack(messages)
            return len(messages)

        acked = await drained(run.drain, step)
        if (left := (await consumer.info()).num_ack_pending) or (await stream.info()).state.messages != run.drain:
            raise RuntimeError(f"stored another number than {run.drain}, or {left} without ack")
        return {"rate": published, "acked": acked}


async def _published(jet: Any, total: int) -> float:
    """Publish `total` messages, and return how many per second."""
    numbers = iter(range(total))

    async def publish() -> None:
        for _ in numbers:
            await jet.publish(SUBJECT, PAYLOAD)

    start = perf_counter()
    await asyncio.gather(*(publish() for _ in range(WINDOW)))
    return total / (perf_counter() - start)
