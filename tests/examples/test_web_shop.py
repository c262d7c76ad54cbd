"""A web application as people deploy it: three processes serve it, two run its jobs, and one of these is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pelton

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

APP = """
import asyncio, os
from contextlib import asynccontextmanager
from fastapi import FastAPI, Request
import pelton

jobs = pelton.Jobs()

@jobs.job(max_attempts=3)
async def invoice(context: pelton.JobContext, order: int) -> dict[str, int]:
    with open("started", "a") as notes:
        print(order, context.attempt, os.getpid(), file=notes)
    await asyncio.sleep(0.05)
    return {"order": order, "pid": os.getpid()}

@asynccontextmanager
async def lifespan(app):
    async with pelton.open("shop.pelton", sync="off") as jet:
        yield {"shop": await jet.queue("shop", jobs=jobs, lease=1.5)}

app = FastAPI(lifespan=lifespan)

@app.post("/orders/{order}", status_code=202)
async def place(order: int, request: Request) -> dict[str, object]:
    handle = await request.state.shop.options(unique="arguments", unique_for=3600).enqueue(invoice, order)
    return {"id": handle.id, "served": os.getpid(), "duplicate": handle.duplicate}

@app.get("/orders/{job_id}")
async def wait_for(job_id: str, request: Request) -> dict[str, object]:
    return (await request.state.shop.get(job_id)).outcome.value()
"""
ORDERS = 60


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def asked(method: str, url: str) -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


async def serves(url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await asyncio.to_thread(asked, "GET", f"{url}/openapi.json")
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_three_serve_two_work_one_of_them_is_killed_and_every_order_has_its_invoice(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    work = ("pelton.cli.main", "work", "app:jobs", "--store", "shop.pelton", "--queue", "shop", "--concurrency", "2")
    with running(tmp_path, "uvicorn", "app:app", "--port", str(port), "--workers", "3"):
        await serves(url)
        with running(tmp_path, *work) as first, running(tmp_path, *work):
            async with pelton.open(tmp_path / "shop.pelton", sync="off") as jet, asyncio.timeout(90):
                shop = await jet.queue("shop", create=False)
                while len(await shop.workers()) < 2:
                    await asyncio.sleep(0.05)
                placed = [await asyncio.to_thread(asked, "POST", f"{url}/orders/{n}") for n in range(ORDERS // 2)]
                while str(first.pid) not in (tmp_path / "started").read_text().split():
                    await asyncio.sleep(0.01)
                os.kill(first.pid, signal.SIGKILL)
                rest = range(ORDERS // 2, ORDERS)
                placed += await asyncio.gather(*(asyncio.to_thread(asked, "POST", f"{url}/orders/{n}") for n in rest))
                again = await asyncio.to_thread(asked, "POST", f"{url}/orders/0")
                assert (again["id"], again["duplicate"]) == (placed[0]["id"], True)
                while (counts := await shop.counts()).unfinished:
                    await asyncio.sleep(0.05)
                assert (counts.completed, counts.failed) == (ORDERS, 0)
        results = [await asyncio.to_thread(asked, "GET", f"{url}/orders/{one['id']}") for one in placed]
    assert [result["order"] for result in results] == list(range(ORDERS))
    started = [line.split() for line in (tmp_path / "started").read_text().splitlines()]
    assert len({pid for _, _, pid in started}) == 2
    repeated = {order for order, attempt, _ in started if attempt != "1"}
    begun = {order for order, attempt, pid in started if attempt == "1" and pid == str(first.pid)}
    assert repeated <= begun, "only what the killed worker had begun ran again"
