"""A worker of the tests that is killed: ``python -m tests.queue.flow.worker_process <store> <journal>``."""

from __future__ import annotations

import asyncio
import os
import sys

from pelton import PermanentJobError
from pelton.queue import Queue
from tests.queue.helpers import FAST, open_store

QUEUE = "flows"


def register(queue: Queue, journal: str) -> None:
    """Register the job of all nodes, which writes down when it begins and ends."""
    written = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(*words: object) -> None:
        os.write(written, f"{' '.join(map(str, words))}\n".encode())

    @queue.job(max_attempts=100, backoff=FAST)
    async def node(flow: str, number: int, fails: bool, before: list[int | None]) -> int:
        note("begin", flow, number)
        await asyncio.sleep(0.01)
        note("end", flow, number)
        if fails:
            raise PermanentJobError("as it was told")
        return number


async def main(store: str, journal: str) -> None:
    """Work until killed."""
    async with open_store(store) as jet:
        queue = await jet.queue(QUEUE, lease=1)
        register(queue, journal)
        print("working", flush=True)
        await queue.work(concurrency=4)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
