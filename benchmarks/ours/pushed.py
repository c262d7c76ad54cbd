"""Pelton's push consumers: a callback for every message, acknowledged durably, in groups."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import perf_counter
from typing import Any

from benchmarks.case import Run, Sample
from benchmarks.ours import Sync
from benchmarks.ours.streams import DURABLE, STREAM, fill, store


async def callbacks(run: Run, sync: Sync) -> Sample:
    """`consume(callback)` on a push consumer: until all stored messages are acknowledged, durably."""
    async with store(run, sync) as jet:
        await fill(jet, run.drain)
        stream = await jet.stream(STREAM)
        consumer = await stream.create_consumer(durable_name=DURABLE, deliver_subject="deliver.bench")
        seen, start = 0, perf_counter()
        all_seen = asyncio.Event()

        def count(message: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == run.drain:
                all_seen.set()

        consuming = asyncio.ensure_future(consumer.consume(count))
        await all_seen.wait()
        while (await consumer.info()).num_ack_pending:
            await asyncio.sleep(0)
        elapsed = perf_counter() - start
        consuming.cancel()
        with suppress(asyncio.CancelledError):
            await consuming
        return {"rate": run.drain / elapsed}
