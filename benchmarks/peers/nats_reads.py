"""nats-py's direct gets of stored messages. Every answer is verified."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, PAYLOAD, WINDOW, one_by_one
from benchmarks.peers.nats_server import running
from benchmarks.peers.nats_streams import config
from benchmarks.reading import STORED, STREAM, SUBJECTS, Places, checked, subject

_END = "204"


@asynccontextmanager
async def stored(run: Run) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    """A client of a server that holds the messages in a file-backed stream."""
    async with running(run.workdir) as url:
        client = await nats.connect(url)
        try:
            context = client.jetstream(timeout=30, publish_async_max_pending=WINDOW)
            await context.add_stream(replace(config(), allow_direct=True))
            for place in range(STORED):
                await context.publish_async(subject(place), PAYLOAD)
            await context.publish_async_completed()
            yield client, context
        finally:
            await client.close()


async def by_sequence(run: Run) -> Sample:
    """`get_msg(direct=True)`, each awaited."""
    async with stored(run) as (_, context):
        places = Places(STORED)

        async def get() -> None:
            seq = places.next() + 1
            message = await context.get_msg(STREAM, seq, direct=True)
            checked(message.seq == seq and message.data == PAYLOAD)

        return {"rate": await one_by_one(run.seconds, get)}


async def last_of_subject(run: Run) -> Sample:
    """`get_msg(subject=, direct=True)`, each awaited."""
    async with stored(run) as (_, context):
        places = Places(SUBJECTS)

        async def get() -> None:
            place = places.next()
            message = await context.get_msg(STREAM, subject=subject(place), direct=True)
            checked(message.seq == STORED - SUBJECTS + place + 1)

        return {"rate": await one_by_one(run.seconds, get)}


async def batches(run: Run) -> Sample:
    """Batches of 1,000 (ADR-31), which nats-py has no helper for: one request, answers gathered by hand."""
    async with stored(run) as (client, _):
        places = Places(STORED - BATCH)
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)

        async def get() -> None:
            body = json.dumps({"seq": places.next() + 1, "batch": BATCH}).encode()
            await client.publish(f"$JS.API.DIRECT.GET.{STREAM}", body, reply=inbox)
            count = 0
            while ((message := await answers.next_msg(timeout=30)).headers or {}).get("Status") != _END:
                checked(message.data == PAYLOAD)
                count += 1
            checked(count == BATCH)

        return {"rate": await one_by_one(run.seconds, get, each=BATCH)}
