"""A store with hostile contents, and clients of its dashboard that work on the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

import pelton
from pelton import dashboard
from tests.places import PLACES, address_of

HOSTILE = "<script>alert('x')</script>\"'&{{7*7}}"
TOKEN = "a-token-of-the-operators"
Client = Callable[..., httpx.AsyncClient]


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with address_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
async def jet(address: str) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address) as opened:
        yield opened


@pytest.fixture
async def ids(jet: pelton.Jet) -> list[str]:
    """A queue with a completed job, a dead letter and a job that waits, and a stream; the ids of the jobs."""
    await jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
    orders = await jet.stream("orders")
    await orders.create_consumer(durable_name="packer")
    await jet.publish("orders.<b>x</b>", HOSTILE.encode(), headers={"X-Evil": HOSTILE})
    await jet.publish("orders.json", b'{"what": "<img src=x onerror=alert(1)>"}')
    await jet.publish("orders.hex", bytes(range(256)))
    await (await jet.create_bucket("settings")).put("colour", b"red")
    await jet.create_objects("files")
    garage = await jet.queue("garage")

    @garage.job(max_attempts=1)
    async def repair(car: str) -> str:
        if car == HOSTILE:
            raise ValueError(HOSTILE)
        return car

    first, second = await repair.enqueue("a", key="k1"), await repair.enqueue(HOSTILE, key=HOSTILE)
    await garage.work(until_empty=True, handle_signals=False)
    return [first.id, second.id, (await repair.enqueue("c", key=HOSTILE)).id]


@pytest.fixture
async def flow(jet: pelton.Jet, ids: list[str]) -> str:
    """A flow that has failed, a schedule and limits in the same queue; the id of the flow."""
    garage = await jet.queue("garage")

    @garage.job(max_attempts=1)
    async def paint(car: str) -> str:
        raise ValueError(HOSTILE)

    made = await garage.new_flow(HOSTILE)
    made.add(paint, made.add(paint, HOSTILE).result)
    handle = await made.enqueue()
    await garage.pause(job="repair")
    working = asyncio.ensure_future(garage.work(handle_signals=False))
    await handle.outcome(timeout=30)
    garage.stop()
    await working
    await garage.resume(job="repair")
    await garage.schedule(HOSTILE, paint, args=(HOSTILE,), key=HOSTILE, cron="0 3 * * *")
    await garage.limit(job=HOSTILE, per_key=True, concurrency=2)
    await garage.limit(rate=pelton.Rate(10, per=60, burst=3))
    return handle.id


@pytest.fixture
async def client(jet: pelton.Jet) -> AsyncIterator[Client]:
    """Make a client of a dashboard with these settings."""
    made: list[httpx.AsyncClient] = []

    def make(opened: pelton.Jet | None = None, *, at: str = "", **settings: Any) -> httpx.AsyncClient:
        app = dashboard.app(opened or jet, **settings)
        transport = httpx.ASGITransport(app=app)
        made.append(httpx.AsyncClient(transport=transport, base_url=f"http://testserver{at}", timeout=30))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()
