"""A worker that takes more than it begins, for tests that kill it: ``python -m tests.queue.hoarder <kind> <store>``."""

import asyncio
import os
import sys
import time

from pelton.queue import Queue
from tests.queue import slow_import
from tests.queue.helpers import open_store

LEASE = 0.5
JOBS = 4


async def hoard(queue: Queue, kind: str, started: list[str] | None = None) -> None:
    """Register a job of which no attempt ends; or, to list what is ``started`` in the test, one that ends at once."""

    def begins(what: str) -> bool:
        if started is None:
            print("started", flush=True)
            return False
        started.append(what)
        return True

    if kind == "batch":

        async def work_together(items: list[int]) -> None:
            for item in items:
                begins(str(item))

        wait = 3600.0 if started is None else 0.001
        queue.job(name="work", batch=JOBS + 1, wait=wait, max_attempts=1)(work_together)
        return

    if kind == "process" and started is None:
        # A child imports its module before it begins.
        os.environ["SLOW_IMPORT"] = "3600"
        queue.job(name="work", process=True, max_attempts=1)(slow_import.work)
        return

    async def work_alone(number: int) -> None:
        if begins(str(number)):
            return
        if kind == "blocked":
            time.sleep(3600)
        await asyncio.sleep(3600)

    queue.job(name="work", max_attempts=1)(work_alone)
    if kind == "limited" and started is None:
        await queue.limit(concurrency=1)


async def main(kind: str, path: str) -> None:
    async with open_store(path) as jet:
        queue = await jet.queue("hoard", lease=LEASE)
        await hoard(queue, kind)
        await queue.work(concurrency=JOBS + 1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
