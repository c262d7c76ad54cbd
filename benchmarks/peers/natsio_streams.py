"""natsio, the fastest Python client of core NATS, speaking JetStream's subjects by hand.

It has no JetStream face: a publish is a request whose reply is counted, a fetch is a request to the
consumer's subject, an ack is a publish to the message's reply subject.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from urllib.parse import urlparse

import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from natsio.client.config import ClientConfig
from natsio.client.core import NATSCore
from natsio.messages.core import CoreMsg

from benchmarks.case import Run, Sample
from benchmarks.load import FETCH, PAYLOAD, SUBJECT, WINDOW, drained
from benchmarks.peers.nats_server import running
from benchmarks.peers.nats_streams import DURABLE, STREAM, all_acked, config, fill

_REPLIES = "bench-replies"
"""Not below natsio's inbox prefix: it treats that as replies to its own requests."""

_ASK = json.dumps({"batch": FETCH, "expires": 10_000_000_000}).encode()


@asynccontextmanager
async def clients(run: Run) -> AsyncIterator[tuple[NATSCore, JetStreamContext]]:
    """natsio for the work and nats-py for setting up and checking, on one fresh server."""
    logging.disable()  # it says "End of stream" without end while it closes
    async with running(run.workdir) as url:
        helper = await nats.connect(url)
        try:
            context = helper.jetstream(timeout=30)
            await context.add_stream(config())
            async with NATSCore(ClientConfig(servers=[f"nats://{urlparse(url).netloc}"])) as client:
                yield client, context
        finally:
            await helper.close()


class _Publisher:
    """Keeps 500 to 1,000 requests unanswered: filled up in bursts, which natsio sends in few writes."""

    def __init__(self, client: NATSCore) -> None:
        self._client = client
        self._unanswered = 0
        self._room = asyncio.Event()
        self._refused: bytes | None = None

    async def answered(self, reply: CoreMsg) -> None:
        if b'"error"' in reply.payload:
            self._refused = reply.payload
        self._unanswered -= 1
        if self._unanswered <= WINDOW // 2:
            self._room.set()

    async def publish_for(self, seconds: float) -> int:
        """Publish for a while; natsio can lose a reply, so that the wait for the last one has an end."""
        async with asyncio.timeout(seconds + 10):
            done, deadline = 0, perf_counter() + seconds
            while perf_counter() < deadline:
                done += await self._burst()
            while self._unanswered:
                await asyncio.sleep(0.001)
        if self._refused is not None:
            raise RuntimeError(f"publish refused: {self._refused!r}")
        return done

    async def _burst(self) -> int:
        room = WINDOW - self._unanswered
        self._unanswered += room
        for _ in range(room):
            await self._client.publish(SUBJECT, PAYLOAD, reply_to=f"{_REPLIES}.ack")
        self._room.clear()
        if self._unanswered > WINDOW // 2:
            await self._room.wait()
        return room


async def publish_in_flight(run: Run) -> Sample:
    """Publish with 1,000 acks outstanding."""
    async with clients(run) as (client, _):
        publisher = _Publisher(client)
        await client.subscribe(f"{_REPLIES}.*", callback=publisher.answered)
        await publisher.publish_for(run.seconds * 0.15)
        start = perf_counter()
        done = await publisher.publish_for(run.seconds)
        return {"rate": done / (perf_counter() - start)}


class _Puller:
    """Asks the consumer for 256 and collects them; ready for the next ask once they are taken."""

    def __init__(self, client: NATSCore) -> None:
        self._client = client
        self._messages: list[CoreMsg] = []
        self._full = asyncio.Event()

    async def arrived(self, message: CoreMsg) -> None:
        self._messages.append(message)
        if len(self._messages) == FETCH:
            self._full.set()

    async def fetch(self) -> list[CoreMsg]:
        await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{DURABLE}", _ASK, f"{_REPLIES}.pull")
        await asyncio.wait_for(self._full.wait(), 10)
        self._full.clear()
        taken, self._messages = self._messages, []
        return taken


async def fetch_many(run: Run) -> Sample:
    """Ask the consumer for 256, ack each without waiting for the server."""
    async with clients(run) as (client, context):
        await fill(context, run.drain)
        await context.add_consumer(STREAM, ConsumerConfig(durable_name=DURABLE, ack_wait=60))
        puller = _Puller(client)
        await client.subscribe(f"{_REPLIES}.*", callback=puller.arrived)

        async def step() -> int:
            messages = await puller.fetch()
            for message in messages:
                await message.reply(b"+ACK")
            return len(messages)

        rate = await drained(run.drain, step)
        await client.flush()
        await all_acked(context)
        return {"rate": rate}
