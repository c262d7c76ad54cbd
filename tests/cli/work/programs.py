"""Programs with jobs, and the command that runs them, as processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import pelton
from pelton.queue import Queue

SHOP = '''
import asyncio, os
import pelton

jobs = pelton.Jobs()

def note(*words):
    with open("notes", "a") as notes:
        print(*words, file=notes)

@jobs.job(max_attempts={attempts})
async def sell(number: int, context: pelton.JobContext) -> str:
    note("sell", number, context.attempt, os.getpid())
    return "{version}"

@jobs.job(max_attempts=1)
async def wait(context: pelton.JobContext) -> str:
    """Until the worker stops; the last attempt, so none may be lost."""
    note("wait", context.attempt, os.getpid())
    while not context.stopping or "{version}" == "endless":
        await asyncio.sleep(0.005)
    return "{version}"

@jobs.job
def die() -> None:
    note("die", os.getpid())
    os._exit(7)

@jobs.job
async def grow(megabytes: int) -> None:
    hoard.append(bytearray(b"x") * (megabytes << 20))
    note("grow", os.getpid())

hoard = []
something = 7
'''


class Working:
    """A running ``pelton work``; what it writes to standard error is read line by line."""

    def __init__(self, folder: Path, *arguments: str, queue: str = "shop") -> None:
        words = ["shop:jobs", "--store", "shop.pelton", "--queue", queue, *arguments]
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pelton.cli.main", "work", *words],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait for a line in which a pattern is found; earlier lines are skipped."""
        assert self.process.stderr is not None
        while line := await asyncio.wait_for(asyncio.to_thread(self.process.stderr.readline), 60):
            self.said.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended before it said {pattern!r}: {self.said}")

    async def begun(self, number: int) -> int:
        """Wait until a worker has begun; return its process id."""
        return int((await self.says(rf"worker {number} \(pid (\d+)\) has begun"))[1])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self) -> int:
        def read() -> int:
            assert self.process.stderr is not None
            self.said += self.process.stderr.readlines()
            return self.process.wait()

        return await asyncio.wait_for(asyncio.to_thread(read), 60)

    def notes(self, word: str) -> list[list[str]]:
        """Return what the jobs noted, by the first word."""
        with suppress(FileNotFoundError):
            lines = (self.folder / "notes").read_text().splitlines()
            return [line.split()[1:] for line in lines if line.split()[0] == word]
        return []

    async def noted(self, word: str, number: int) -> list[list[str]]:
        """Wait until jobs have noted a word so often."""
        async with asyncio.timeout(60):
            while len(found := self.notes(word)) < number:
                await asyncio.sleep(0.02)
        return found


@contextmanager
def working(folder: Path, *arguments: str, queue: str = "shop") -> Iterator[Working]:
    """Run the command; at the end it is killed, and its children, which lose their supervisor, end too."""
    running = Working(folder, *arguments, queue=queue)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def write_shop(folder: Path, version: str = "one", attempts: int = 1) -> None:
    (folder / "shop.py").write_text(SHOP.format(version=version, attempts=attempts))


async def shop_queue(jet: pelton.Jet, lease: float = 30.0) -> Queue:
    return await jet.queue("shop", lease=lease)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shop(tmp_path)
    return tmp_path
