"""Pelton: from publish in one process to a waiting fetch in another, over one file."""

from __future__ import annotations

import pelton
from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.load import SUBJECT
from benchmarks.ours import Sync
from benchmarks.ours.streams import DURABLE, STREAM, store


async def publish_to_receive(run: Run, sync: Sync) -> Sample:
    """Milliseconds from publish here to a waiting fetch in another process."""
    async with store(run, sync) as jet:
        return await crossing(
            run.samples,
            "ours.latency:receive",
            str(run.workdir / "bench.pelton"),
            lambda data: jet.publish(SUBJECT, data),
        )


async def receive(path: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: fetch one at a time."""
    async with pelton.open(path) as jet:
        stream = await jet.stream(STREAM)
        consumer = await stream.create_consumer(durable_name=DURABLE, ack_policy="explicit")
        ready()
        for _ in range(total):
            [message] = await consumer.fetch(1, timeout=30)
            got(bytes(message.data))
            await message.ack()
