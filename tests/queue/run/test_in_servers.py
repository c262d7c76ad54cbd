"""A worker in the lifespan of a real web server: its signals stay the server's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pelton

pytest.importorskip("uvicorn")

APP = """
import asyncio, os, signal
from contextlib import asynccontextmanager
import pelton

def note(*words):
    with open("notes", "a") as notes:
        print(*words, os.getpid(), file=notes)

jobs = pelton.Jobs()

@jobs.job(max_attempts=1)
async def hold(context: pelton.JobContext) -> str:
    note("hold")
    while not context.stopping:
        await asyncio.sleep(0.005)
    return "finished"

@asynccontextmanager
async def lifespan():
    async with pelton.open("shop.pelton", sync="off") as jet:
        queue = await jet.queue("shop", jobs=jobs)
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        worker = asyncio.create_task(queue.work())
        await asyncio.sleep(0)
        same = before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        note("untouched" if same else "taken")
        yield
        note("shutdown")
        assert not worker.done()
        queue.stop()
        await worker
        note("stopped")

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    async with lifespan():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
"""


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "app.py").write_text(APP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), *arguments]
    process = subprocess.Popen(command, cwd=folder, text=True, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def noted(folder: Path, word: str, number: int) -> list[int]:
    async with asyncio.timeout(60):
        while True:
            lines = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
            found = [int(line.split()[1]) for line in lines if line.split()[0] == word]
            if len(found) >= number:
                return found
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
async def test_uvicorn_gets_its_signal_and_stops_the_worker_in_its_lifespan(
    tmp_path: Path, workers: int, number: signal.Signals
) -> None:
    async with pelton.open(tmp_path / "shop.pelton", sync="off") as jet:
        queue = await jet.queue("shop")
        with serving(tmp_path, "--workers", str(workers)) as server:
            await noted(tmp_path, "untouched", workers)
            handle = await queue.enqueue("hold")
            await noted(tmp_path, "hold", 1)
            os.kill(server.pid, number)
            assert len(await noted(tmp_path, "shutdown", workers)) == workers
            assert len(await noted(tmp_path, "stopped", workers)) == workers
            await asyncio.wait_for(asyncio.to_thread(server.wait), 30)
        assert await handle.value(timeout=60) == "finished"
