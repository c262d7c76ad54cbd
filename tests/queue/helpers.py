"""Small tools of the queue's tests."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import pelton
from pelton.api import Backoff
from pelton.connect import Opening
from pelton.queue import JobInfo, Outcome, Queue

FAST = Backoff(base=0.01, factor=1, cap=0.01, jitter=0)
ROOT = Path(__file__).parents[2]


def open_store(address: str) -> Opening:
    """Open a store file without syncs, or a cluster."""
    return pelton.open(address) if "://" in address else pelton.open(address, sync="off")


def pretend_cluster(jet: pelton.Jet) -> None:
    """Make a store file pretend to have no exclusive subjects, so that the keys of new queues are records."""
    backend: Any = jet.backend
    backend.planning = msgspec.structs.replace(backend.planning, has_exclusive_subjects=False)


@asynccontextmanager
async def working(*queues: Queue, **options: Any) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run workers in the background; they are stopped at the end, and their errors raised."""
    options = {"handle_signals": False, "grace": 5.0, **options}
    tasks = [asyncio.create_task(queue.work(**options)) for queue in queues]
    try:
        yield tasks
    finally:
        for queue in queues:
            queue.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def drain(queue: Queue, *, within: float = 60, **options: Any) -> None:
    """Run all jobs of a queue, retries included."""
    await asyncio.wait_for(queue.work(until_empty=True, handle_signals=False, **options), within)


async def ended(queue: Queue) -> list[Outcome]:
    return [outcome async for outcome in queue.history()]


async def waiting(queue: Queue) -> list[JobInfo]:
    return [info async for info in queue.jobs()]


class Child:
    """A worker process: a role of ``roles.py``, which reports its events on its output."""

    def __init__(self, role: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.queue.roles", role, *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    async def says(self, word: str) -> str:
        """Wait for a line that begins with a word, and return it; earlier lines are skipped."""
        assert self.process.stdout is not None
        while line := await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), 60):
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"the child ended before it said {word!r}")

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    async def ends(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 60)
