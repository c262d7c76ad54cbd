"""Pelton's reads of stored messages, awaited one by one and in batches. Every answer is verified."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FILTER, PAYLOAD, one_by_one
from benchmarks.ours import Sync
from benchmarks.reading import STORED, STREAM, SUBJECTS, Places, checked, subject


@asynccontextmanager
async def stream(run: Run, sync: Sync) -> AsyncIterator[pelton.Stream]:
    """A stored stream, reopened for reading."""
    path = run.workdir / "bench.pelton"
    async with pelton.open(path, sync=sync) as jet:
        await jet.create_stream(STREAM, subjects=[FILTER], allow_direct=True)
        for start in range(0, STORED, BATCH):
            await jet.publish_batch([(subject(start + place), PAYLOAD) for place in range(BATCH)])
    async with pelton.open(path, sync=sync) as jet:
        yield await jet.stream(STREAM)


async def by_sequence(run: Run, sync: Sync) -> Sample:
    """Messages here and there, each awaited."""
    async with stream(run, sync) as stored:
        places = Places(STORED)

        async def get() -> None:
            seq = places.next() + 1
            message = await stored.get_message(seq)
            checked(message.seq == seq and message.data == PAYLOAD)

        return {"rate": await one_by_one(run.seconds, get)}


async def last_of_subject(run: Run, sync: Sync) -> Sample:
    """The last message of one of many subjects, each awaited."""
    async with stream(run, sync) as stored:
        places = Places(SUBJECTS)

        async def get() -> None:
            place = places.next()
            message = await stored.get_last_message(subject(place))
            checked(message.seq == STORED - SUBJECTS + place + 1)

        return {"rate": await one_by_one(run.seconds, get)}


async def batches(run: Run, sync: Sync) -> Sample:
    """1,000 messages a call, from here and there."""
    async with stream(run, sync) as stored:
        places = Places(STORED - BATCH)

        async def get() -> None:
            seq = places.next() + 1
            messages = await stored.get_messages(BATCH, seq=seq)
            checked(len(messages) == BATCH and messages[-1].seq == seq + BATCH - 1)

        return {"rate": await one_by_one(run.seconds, get, each=BATCH)}
