"""nats-py's key-value store: get, put, watch, list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import nats
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.load import PAYLOAD, WINDOW, one_by_one
from benchmarks.ours.buckets import BUCKET
from benchmarks.peers.servers import started
from benchmarks.reading import SUBJECTS, Places, checked

_LISTED = 100_000


@asynccontextmanager
async def bucket(run: Run, always: bool, served: bool = False) -> AsyncIterator[tuple[KeyValue, str]]:
    """A server's fresh bucket."""
    async with started(run.workdir, always, served) as url:
        client = await nats.connect(url)
        try:
            context = client.jetstream(timeout=30, publish_async_max_pending=WINDOW)
            yield await context.create_key_value(KeyValueConfig(bucket=BUCKET, direct=True)), url
        finally:
            await client.close()


async def get(run: Run, always: bool, served: bool = False) -> Sample:
    """One of 1,000 keys after the other."""
    async with bucket(run, always, served) as (kept, _):
        for place in range(SUBJECTS):
            await kept.put(f"key.{place}", PAYLOAD)
        places = Places(SUBJECTS)

        async def one() -> None:
            place = places.next()
            entry = await kept.get(f"key.{place}")
            checked(entry.revision == place + 1 and entry.value == PAYLOAD)

        return {"rate": await one_by_one(run.seconds, one)}


async def put_each(run: Run, always: bool, served: bool = False) -> Sample:
    """Puts to 1,000 keys, awaiting each."""
    async with bucket(run, always, served) as (kept, _):
        places = Places(SUBJECTS)
        return {"rate": await one_by_one(run.seconds, lambda: kept.put(f"key.{places.next()}", PAYLOAD))}


async def watch(run: Run, always: bool) -> Sample:
    """Milliseconds from put here to a watcher in another process."""
    async with bucket(run, always) as (kept, url):
        return await crossing(run.samples, "peers.nats_buckets:receive", url, lambda data: kept.put("key", data))


async def receive(url: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: watch."""
    client = await nats.connect(url)
    kept = await client.jetstream().key_value(BUCKET)
    watcher = await kept.watchall()
    checked(await watcher.updates(timeout=30) is None)
    ready()
    for _ in range(total):
        got((await watcher.updates(timeout=30)).value)
    await client.close()


async def keys(run: Run, always: bool) -> Sample:
    """List a hundred thousand keys."""
    async with bucket(run, always) as (kept, _):
        context = kept._js
        for place in range(_LISTED):
            await context.publish_async(f"$KV.{BUCKET}.key.{place}", PAYLOAD)
        await context.publish_async_completed()
        begun = perf_counter()
        checked(len(await kept.keys()) == _LISTED)
        return {"rate": _LISTED / (perf_counter() - begun)}
