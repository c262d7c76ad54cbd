"""nats-py against JetStream: publish, fetch and ack. Every count is checked with the server afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter

import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FETCH, FILTER, PAYLOAD, SUBJECT, WINDOW, drained, one_by_one
from benchmarks.peers.servers import started

STREAM = "bench"
DURABLE = "worker"
_CROWD = 8
_ALWAYS_SHARE = 4
"""With an fsync for each message the server is several times slower: it drains that many times less."""


@asynccontextmanager
async def stream(run: Run, always: bool, served: bool = False) -> AsyncIterator[JetStreamContext]:
    """A JetStream context on a fresh server with one file-backed stream; `served`: on `pelton serve`."""
    async with started(run.workdir, always, served) as url:
        client = await nats.connect(url)
        try:
            context = client.jetstream(timeout=30, publish_async_max_pending=WINDOW)
            await context.add_stream(config())
            yield context
        finally:
            await client.close()


def config() -> StreamConfig:
    """The stream every NATS measurement uses."""
    return StreamConfig(name=STREAM, subjects=[FILTER], storage=StorageType.FILE, allow_atomic=True)


async def publish_each(run: Run, always: bool, served: bool = False) -> Sample:
    """Publish, awaiting the ack of each."""
    async with stream(run, always, served) as context:
        return {"rate": await one_by_one(run.seconds, lambda: context.publish(SUBJECT, PAYLOAD))}


async def publish_crowd(run: Run, always: bool, served: bool = False) -> Sample:
    """8 clients, each of which awaits its publishes one by one."""
    async with stream(run, always, served) as context, AsyncExitStack() as stack:
        others, url = [], context._nc.connected_url
        assert url is not None
        for _ in range(_CROWD):
            client = await nats.connect(url.geturl())
            stack.push_async_callback(client.close)
            others.append(client.jetstream(timeout=30))
        rates = (one_by_one(run.seconds, lambda one=one: one.publish(SUBJECT, PAYLOAD)) for one in others)  # type: ignore[misc]
        return {"rate": sum(await asyncio.gather(*rates))}


async def publish_in_flight(run: Run, always: bool, served: bool = False) -> Sample:
    """Publish with 1,000 acks outstanding, the client's own window."""
    async with stream(run, always, served) as context:
        await _publish_for(context, run.seconds * 0.15)
        start = perf_counter()
        done = await _publish_for(context, run.seconds)
        return {"rate": done / (perf_counter() - start)}


async def _publish_for(context: JetStreamContext, seconds: float) -> int:
    """Publish for a while, wait for the last ack, and make sure that none was an error."""
    futures, deadline = [], perf_counter() + seconds
    while perf_counter() < deadline:
        futures.append(await context.publish_async(SUBJECT, PAYLOAD))
    await context.publish_async_completed()
    for future in futures:
        future.result()
    return len(futures)


async def publish_atomic_batches(run: Run, always: bool) -> Sample:
    """Atomic batches of 1,000 (ADR-50), which nats-py has no helper for: headers by hand, one ack each."""
    async with stream(run, always) as context:
        batches = _Batches(context)
        return {"rate": await one_by_one(run.seconds, batches.publish, each=BATCH)}


class _Batches:
    """Publishes one atomic batch at a time."""

    def __init__(self, context: JetStreamContext) -> None:
        self._client = context._nc
        self._number = 0

    async def publish(self) -> None:
        self._number += 1
        name = f"batch-{self._number}"
        for place in range(1, BATCH):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(place)}
            if place == 1:
                await self._client.request(SUBJECT, PAYLOAD, headers=headers, timeout=30)
            else:
                await self._client.publish(SUBJECT, PAYLOAD, headers=headers)
        last = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(BATCH), "Nats-Batch-Commit": "1"}
        reply = await self._client.request(SUBJECT, PAYLOAD, headers=last, timeout=30)
        if json.loads(reply.data).get("count") != BATCH:
            raise RuntimeError(f"batch refused: {reply.data!r}")


async def fetch_many(run: Run, always: bool, served: bool = False) -> Sample:
    """fetch(256), then `ack()` each: nats-py sends an ack and does not wait for the server."""
    async with stream(run, always, served) as context:
        return {"rate": await _drain(context, share(run.drain, always), FETCH, durable=False)}


async def fetch_one(run: Run, always: bool, served: bool = False) -> Sample:
    """fetch(1), then `ack_sync()`: the server confirms."""
    async with stream(run, always, served) as context:
        return {"rate": await _drain(context, share(run.drain, always) // 4, 1, durable=True)}


def share(total: int, always: bool) -> int:
    """How many of the messages a server that fsyncs each is given."""
    return total // _ALWAYS_SHARE if always else total


async def _drain(context: JetStreamContext, total: int, batch: int, durable: bool) -> float:
    """Fetch and ack `total` stored messages, then make sure that the server counts none as left."""
    await fill(context, total)
    wanted = ConsumerConfig(ack_wait=60)
    subscription = await context.pull_subscribe(SUBJECT, durable=DURABLE, stream=STREAM, config=wanted)

    async def step() -> int:
        messages = await subscription.fetch(batch, timeout=10)
        for message in messages:
            await (message.ack_sync(timeout=10) if durable else message.ack())
        return len(messages)

    rate = await drained(total, step)
    await all_acked(context)
    return rate


async def fill(context: JetStreamContext, total: int) -> None:
    """Store `total` messages."""
    futures = [await context.publish_async(SUBJECT, PAYLOAD) for _ in range(total)]
    await asyncio.gather(*futures)


async def all_acked(context: JetStreamContext) -> None:
    """Acks may still be on their way: wait until the server counts no message as left."""
    deadline = perf_counter() + 10
    while (info := await context.consumer_info(STREAM, DURABLE)).num_ack_pending or info.num_pending:
        if perf_counter() > deadline:
            raise RuntimeError(f"left: {info.num_pending} waiting, {info.num_ack_pending} without ack")
        await asyncio.sleep(0.01)
