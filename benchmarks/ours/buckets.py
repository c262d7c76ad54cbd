"""Pelton's key-value buckets: get, put, watch, list. What was written is counted afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import pelton
from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.load import BATCH, PAYLOAD, in_flight, one_by_one
from benchmarks.ours import Sync
from benchmarks.reading import SUBJECTS, Places, checked

BUCKET = "bench"
_LISTED = 1_000_000


@asynccontextmanager
async def bucket(run: Run, sync: Sync) -> AsyncIterator[pelton.Bucket[bytes]]:
    """A fresh store with one bucket."""
    async with pelton.open(run.workdir / "bench.pelton", sync=sync) as jet:
        yield await jet.create_bucket(BUCKET)


async def get(run: Run, sync: Sync) -> Sample:
    """Get one of 1,000 keys after the other."""
    async with bucket(run, sync) as kept:
        for place in range(SUBJECTS):
            await kept.put(f"key.{place}", PAYLOAD)
        places = Places(SUBJECTS)

        async def one() -> None:
            place = places.next()
            entry = await kept.get(f"key.{place}")
            checked(entry.revision == place + 1 and entry.value == PAYLOAD)

        return {"rate": await one_by_one(run.seconds, one)}


async def put_each(run: Run, sync: Sync) -> Sample:
    """Puts to 1,000 keys, awaiting each."""
    async with bucket(run, sync) as kept:
        places = Places(SUBJECTS)
        return {"rate": await one_by_one(run.seconds, lambda: kept.put(f"key.{places.next()}", PAYLOAD))}


async def put_in_flight(run: Run, sync: Sync) -> Sample:
    """1,000 puts in flight at all times."""
    async with bucket(run, sync) as kept:
        places = Places(SUBJECTS)
        return {"rate": await in_flight(run.seconds, lambda: kept.put(f"key.{places.next()}", PAYLOAD))}


async def watch(run: Run, sync: Sync) -> Sample:
    """Milliseconds from put here to a watcher in another process."""
    async with bucket(run, sync) as kept:
        path = str(run.workdir / "bench.pelton")
        return await crossing(run.samples, "ours.buckets:receive", path, lambda data: kept.put("key", data))


async def receive(path: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: watch."""
    async with pelton.open(path) as jet:
        kept = await jet.bucket(BUCKET)
        entries = kept.watch(updates_only=True)
        checked(await anext(entries) is None)
        ready()
        for _ in range(total):
            entry = await anext(entries)
            assert entry is not None
            assert entry.value is not None
            got(entry.value)
        await entries.aclose()


async def keys(run: Run, sync: Sync) -> Sample:
    """List a million keys."""
    async with bucket(run, sync):
        pass
    path = run.workdir / "bench.pelton"
    async with pelton.open(path, sync="off") as jet:
        for start in range(0, _LISTED, BATCH):
            await jet.publish_batch([(f"$KV.{BUCKET}.key.{start + place}", PAYLOAD) for place in range(BATCH)])
    async with pelton.open(path, sync=sync) as jet:
        kept = await jet.bucket(BUCKET)
        begun, count = perf_counter(), 0
        async for _ in kept.keys():
            count += 1
        checked(count == _LISTED)
        return {"rate": count / (perf_counter() - begun)}
