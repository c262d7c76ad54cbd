"""nats-py: how soon a waiting fetch has a message, in the same process and in another."""

from __future__ import annotations

import asyncio
from time import perf_counter

import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.load import PAYLOAD, SUBJECT
from benchmarks.peers.nats_server import running
from benchmarks.peers.nats_streams import DURABLE, STREAM, config, stream
from benchmarks.stats import percentile


async def pick_up(run: Run, always: bool) -> Sample:
    """Milliseconds from publish to the return of a fetch that waits in the same process."""
    async with stream(run, always) as context:
        subscription = await _subscribe(context)
        samples = []
        for _ in range(run.samples):
            waiting = asyncio.create_task(subscription.fetch(1, timeout=30))
            await asyncio.sleep(0.005)
            start = perf_counter()
            publishing = asyncio.create_task(context.publish(SUBJECT, PAYLOAD))
            [message] = await waiting
            samples.append((perf_counter() - start) * 1e3)
            await publishing
            await message.ack_sync(timeout=10)
        return {"p50": percentile(samples, 0.5), "p99": percentile(samples, 0.99)}


async def publish_to_receive(run: Run, always: bool) -> Sample:
    """Milliseconds from publish here to a waiting fetch in another process."""
    async with running(run.workdir, always) as url:
        client = await nats.connect(url)
        try:
            context = client.jetstream()
            await context.add_stream(config())
            return await crossing(
                run.samples,
                "peers.nats_latency:receive",
                url,
                lambda data: context.publish(SUBJECT, data),
            )
        finally:
            await client.close()


async def receive(url: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: fetch one at a time."""
    client = await nats.connect(url)
    subscription = await _subscribe(client.jetstream())
    ready()
    for _ in range(total):
        [message] = await subscription.fetch(1, timeout=30)
        got(message.data)
        await message.ack()
    await client.close()


async def _subscribe(context: JetStreamContext) -> JetStreamContext.PullSubscription:
    return await context.pull_subscribe(SUBJECT, durable=DURABLE, stream=STREAM, config=ConsumerConfig())
