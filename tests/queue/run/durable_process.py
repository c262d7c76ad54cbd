"""A worker of the tests that is killed: ``python -m tests.queue.run.durable_process <store> <journal>``."""

from __future__ import annotations

import asyncio
import os
import sys
from uuid import uuid4

from pelton import PermanentJobError
from pelton.queue import JobContext, Queue
from tests.queue.helpers import FAST, open_store

QUEUE = "durable"
SIGNALS = 4


def register(queue: Queue, journal: str) -> None:
    """Register an order that waits, sleeps and calls others, and writes down each charge that it makes."""
    written = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def charge(order: str) -> str:
        receipt = f"{order} {uuid4()}"
        os.write(written, f"{receipt}\n".encode())
        return receipt

    @queue.job(max_attempts=100, backoff=FAST)
    async def pack(number: int) -> int:
        await asyncio.sleep(0.005)
        return number

    def undo(receipt: str) -> None:
        os.write(written, f"undo {receipt}\n".encode())

    @queue.job(max_attempts=100, backoff=FAST)
    async def trip(context: JobContext) -> None:
        for what in ("a", "b"):
            await context.on_failure(undo, await context.step(what, charge, f"{context.id}{what}"))
        if int(context.id) % 2:
            raise PermanentJobError("no weather")
        await context.sleep(600)

    @queue.job(max_attempts=100, backoff=FAST)
    async def order(context: JobContext) -> list[object]:
        receipt = await context.step("charge", charge, context.id)
        found = [await context.wait_for("n", int, timeout=3600) for _ in range(SIGNALS - 1)]
        packed = await context.gather(*(context.call(pack, number) for number in range(4)), at_once=3)
        await context.sleep(1.05)
        found.append(await context.wait_for("n", int))
        return [receipt, found, packed]


async def main(store: str, journal: str) -> None:
    """Work until killed."""
    async with open_store(store) as jet:
        queue = await jet.queue(QUEUE, lease=1)
        register(queue, journal)
        await queue.work(concurrency=4)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
