"""A worker that tests stop: its jobs note when they begin and end, and their steps.

``python -m tests.crash.queue.stopped_worker <store>``, with the file for the notes in ``STOPPED_NOTES``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Final

import msgspec

import pelton
from pelton.queue import JobContext
from tests.queue.helpers import FAST, open_store

LEASE_S: Final = 1.0
QUEUE: Final = "stopped"
jobs = pelton.Jobs()
_encode: Final = msgspec.json.Encoder().encode


class Note(msgspec.Struct, frozen=True):
    """Something that a job did, in seconds since boot."""

    what: str
    at: float
    worker: int
    job: str
    key: str
    token: int


def note(what: str, context: JobContext) -> None:
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    line = _encode(Note(what, at, int(context.worker.split("-")[0]), context.id, context.key, context.token))
    descriptor = os.open(os.environ["STOPPED_NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, line + b"\n")
    os.close(descriptor)


@jobs.job(max_attempts=1000, backoff=FAST)
async def on_loop(context: JobContext, pause: float) -> None:
    note("begin", context)
    try:
        for step in "abc":
            await context.step(step, note, f"step {step}", context)
            note(f"recorded {step}", context)
            await asyncio.sleep(pause)
    finally:
        note("end", context)


@jobs.job(max_attempts=1000, backoff=FAST)
def on_thread(context: JobContext, pause: float) -> None:
    note("begin", context)
    time.sleep(pause)
    note("end", context)


@jobs.job(process=True, max_attempts=1000, backoff=FAST)
def in_child(context: JobContext, pause: float) -> None:
    note("begin", context)
    time.sleep(pause)
    note("end", context)


async def main(path: str) -> None:
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=True, lease=LEASE_S, jobs=jobs)
        await queue.work(concurrency=4)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
