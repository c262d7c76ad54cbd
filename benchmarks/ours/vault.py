"""Pelton's encryption and backups. What was copied is counted afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FETCH, FILTER, PAYLOAD, SUBJECT, in_flight, one_by_one
from benchmarks.ours import Sync
from benchmarks.ours.streams import STREAM

_ROWS = 1_000_000
_KEY = "a key"
# More messages per second than any machine has fetched so far.
_FASTEST = 200_000


async def encrypted(run: Run, sync: Sync, key: bool) -> Sample:
    """Publish in three ways, and read it all back."""
    batch = [(SUBJECT, PAYLOAD)] * BATCH
    async with pelton.open(run.workdir / "bench.pelton", sync=sync, key=_KEY if key else None) as jet:
        stream = await jet.create_stream(STREAM, subjects=[FILTER])
        each = await one_by_one(run.seconds, lambda: jet.publish(SUBJECT, PAYLOAD))
        many = await in_flight(run.seconds, lambda: jet.publish(SUBJECT, PAYLOAD))
        batches = await one_by_one(run.seconds, lambda: jet.publish_batch(batch), each=BATCH)
        consumer = await stream.create_consumer(durable_name="reader", ack_policy="none")

        async def fetch() -> None:
            if len(await consumer.fetch(FETCH, timeout=1)) != FETCH:
                raise RuntimeError("there was nothing left to fetch")

        while (await stream.info()).state.messages < run.seconds * _FASTEST:
            await jet.publish_batch(batch)
        fetched = await one_by_one(run.seconds / 2, fetch, each=FETCH)
        return {"each": each, "in_flight": many, "batches": batches, "fetched": fetched}


async def backup(run: Run, sync: Sync, key: bool) -> Sample:
    """MiB a second of `jet.backup`, from an open store."""
    path, copy = run.workdir / "bench.pelton", run.workdir / "copy.pelton"
    async with pelton.open(path, sync=sync, key=_KEY if key else None) as jet:
        await jet.create_stream(STREAM, subjects=[FILTER])
        for _ in range(_ROWS // BATCH):
            await jet.publish_batch([(SUBJECT, PAYLOAD)] * BATCH)

        async def once() -> None:
            copy.unlink(missing_ok=True)
            await jet.backup(copy)

        rate = await one_by_one(run.seconds, once, each=1)
    async with pelton.open(copy, key=_KEY if key else None) as jet:
        if (await (await jet.stream(STREAM)).info()).state.messages != _ROWS:
            raise RuntimeError("the copy is not whole")
    return {"rate": rate * _mebibytes(copy)}


async def copy_and_sync(run: Run) -> Sample:
    """The same for `cp` and a sync of the copy, of a file of the same size."""
    path, copy = run.workdir / "bench.pelton", run.workdir / "copy.pelton"
    async with pelton.open(path, sync="off") as jet:
        await jet.create_stream(STREAM, subjects=[FILTER])
        for _ in range(_ROWS // BATCH):
            await jet.publish_batch([(SUBJECT, PAYLOAD)] * BATCH)

    async def once() -> None:
        copy.unlink(missing_ok=True)
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())

    return {"rate": await one_by_one(run.seconds, once, each=1) * _mebibytes(copy)}


def _mebibytes(path: Path) -> float:
    return path.stat().st_size / (1 << 20)
