"""nats-py's push subscriptions: a callback for every message. Counts are checked with the server afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from benchmarks.case import Run, Sample
from benchmarks.load import SUBJECT
from benchmarks.peers.nats_streams import DURABLE, STREAM, all_acked, fill, share, stream


async def callbacks(run: Run, always: bool) -> Sample:
    """A callback that acks each message; nats-py sends an ack and does not wait for the server."""
    return await _all_called(run, always, Msg.ack)


async def confirmed(run: Run, always: bool) -> Sample:
    """The same, each ack confirmed by the server: the one way in which a client of it knows that its ack will last."""
    return await _all_called(run, always, Msg.ack_sync)


async def _all_called(run: Run, always: bool, ack: Callable[[Msg], Awaitable[object]]) -> Sample:
    total, seen = share(run.drain, always), 0
    all_seen = asyncio.Event()

    async def count(message: Msg) -> None:
        nonlocal seen
        await ack(message)
        seen += 1
        if seen == total:
            all_seen.set()

    async with stream(run, always) as context:
        await fill(context, total)
        start = perf_counter()
        config = ConsumerConfig(ack_wait=60)
        await context.subscribe(SUBJECT, durable=DURABLE, stream=STREAM, cb=count, manual_ack=True, config=config)
        await all_seen.wait()
        await all_acked(context)
        return {"rate": total / (perf_counter() - start)}
