"""How long a standby takes: copied, a turn, promoted. Run ``python -m benchmarks.studies.standby [MESSAGES]``."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import closing
from time import perf_counter

import pelton
from pelton.api import Outgoing
from pelton.moving import promote
from pelton.moving.promotion import open_writer

_BATCH = 10_000
_PENDING = 500


async def fill(jet: pelton.Jet, messages: int) -> None:
    """Store messages of 128 bytes under 100 subjects, and take some of another stream."""
    await jet.create_stream("orders", subjects=["orders.>"])
    work = await jet.create_stream("work", subjects=["work"])
    consumer = await work.create_consumer(durable_name="workers")
    for _ in range(2 * _PENDING):
        await jet.publish("work", b"")
    await consumer.fetch(_PENDING)
    batch = [Outgoing(f"orders.{number % 100}", b"x" * 128) for number in range(_BATCH)]
    for _ in range(messages // _BATCH):
        await jet.backend.publish_batch(batch)


async def measure(folder: str, messages: int, *, is_lost: bool) -> None:
    """Follow a store, promote its standby, and publish to it."""
    store, standby = os.path.join(folder, "shop.pelton"), os.path.join(folder, "standby.pelton")
    async with pelton.open(store) as jet:
        await fill(jet, messages)
        size = os.path.getsize(store) + os.path.getsize(store + "-wal")
        print(f"{messages:,} messages, {size >> 20} MiB")
        with closing(open_writer(store, standby, None)) as writer:
            begun = perf_counter()
            writer.turn()
            print(f"first copy, verified: {perf_counter() - begun:.2f} s")
            for _ in range(1000):
                await jet.publish("orders.1", b"x" * 128)
            begun = perf_counter()
            writer.turn()
            print(f"a turn after 1,000 messages: {1000 * (perf_counter() - begun):.1f} ms")
            if not is_lost:
                await take_over(standby)
    if is_lost:
        os.rename(store, store + "-lost")
        await take_over(standby)


async def take_over(standby: str) -> None:
    """Promote the standby, and publish."""
    begun = perf_counter()
    promotion = await promote(standby)
    async with pelton.open(standby) as jet:
        await jet.publish("orders.1", b"")
    which = "all of the old store" if promotion.is_complete else "the old store is lost"
    print(f"promoted, opened and published to ({which}): {perf_counter() - begun:.2f} s")


async def main() -> None:
    """Measure with the old store lost, and with it at work."""
    messages = int(sys.argv[1]) if sys.argv[1:] else 5_000_000
    for is_lost in (True, False):
        with tempfile.TemporaryDirectory(prefix="pelton-standby-") as folder:
            await measure(folder, messages, is_lost=is_lost)


if __name__ == "__main__":
    asyncio.run(main())
