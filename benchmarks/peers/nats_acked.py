"""nats-py by itself: publishes in flight, then batches fetched and acked, each ack confirmed."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.case import Run, Sample
from benchmarks.load import FETCH, SUBJECT, drained
from benchmarks.peers.nats_streams import DURABLE, STREAM, all_acked, fill, stream


async def publish_and_ack(run: Run) -> Sample:
    """`publish_async` with its own window of 1,000, then fetch(256) and `ack_sync()` of each, all in flight."""
    async with stream(run, always=False) as context:
        start = perf_counter()
        await fill(context, run.drain)
        published = run.drain / (perf_counter() - start)
        subscription = await context.pull_subscribe(SUBJECT, durable=DURABLE, stream=STREAM)

        async def step() -> int:
            messages = await subscription.fetch(FETCH, timeout=10)
            await asyncio.gather(*(message.ack_sync(timeout=10) for message in messages))
            return len(messages)

        acked = await drained(run.drain, step)
        await all_acked(context)
        return {"rate": published, "acked": acked}
