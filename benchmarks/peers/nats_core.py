"""nats-py without streams: messages from one client to another, requests, and one message for many clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.case import Run, Sample
from benchmarks.load import FILTER, PAYLOAD, one_by_one
from benchmarks.peers.servers import started

_BREATH = 512
"""A publisher lets others run after so many messages: nats-py publishes without waiting."""
_CLIENTS = 500
_LIMIT = 60.0


@asynccontextmanager
async def _clients(run: Run, served: bool, number: int) -> AsyncIterator[list[Client]]:
    async with started(run.workdir, False, served) as url, AsyncExitStack() as stack:
        clients = []
        for _ in range(number):
            clients.append(await nats.connect(url))
            stack.push_async_callback(clients[-1].close)
        yield clients


async def one_to_one(run: Run, served: bool, subjects: int, headers: bool) -> Sample:
    """Messages per second from one client to another, by one of `subjects` after the other."""
    async with _clients(run, served, 2) as (here, there):
        left, done = run.drain, asyncio.Event()

        async def count(message: Msg) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        await there.subscribe(FILTER if subjects > 1 else "bench.0", cb=count)
        await there.flush()
        # The first flush may overtake the subscription.
        await there.flush()
        sent = {"name": "value"} if headers else None
        start = perf_counter()
        for number in range(run.drain):
            await here.publish(f"bench.{number % subjects}", PAYLOAD, headers=sent)
            if number % _BREATH == 0:
                await here.flush()
        await asyncio.wait_for(done.wait(), _LIMIT)
        return {"rate": run.drain / (perf_counter() - start)}


async def request(run: Run, served: bool) -> Sample:
    """Requests per second, each answered by another client before the next."""
    async with _clients(run, served, 2) as (here, there):

        async def answer(message: Msg) -> None:
            await message.respond(message.data)

        await there.subscribe("service", cb=answer)
        await there.flush()
        await there.flush()
        return {"rate": await one_by_one(run.seconds, lambda: here.request("service", PAYLOAD, timeout=10))}


class _Ear(asyncio.Protocol):
    """A subscriber that only counts bytes: 500 clients of nats-py would measure themselves."""

    def __init__(self, wanted: int) -> None:
        self.ready = asyncio.Event()
        self.done = asyncio.Event()
        self._left = wanted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB bench.0 1\r\nPING\r\n')

    def data_received(self, data: bytes) -> None:
        if not self.ready.is_set():
            if data.endswith(b"PONG\r\n"):
                self.ready.set()
            return
        self._left -= len(data)
        if self._left <= 0:
            self.done.set()


async def fan_out(run: Run, served: bool) -> Sample:
    """Deliveries per second of one client's messages to 500 others."""
    count = max(run.drain // _CLIENTS, 1) * 4
    size = len(b"MSG bench.0 1 %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD))
    async with _clients(run, served, 1) as (here,):
        where = here.connected_url
        assert where is not None
        loop, ears = asyncio.get_running_loop(), [_Ear(count * size) for _ in range(_CLIENTS)]
        for ear in ears:
            await loop.create_connection(lambda ear=ear: ear, where.hostname or "", where.port or 0)  # type: ignore[misc]
        for ear in ears:
            await asyncio.wait_for(ear.ready.wait(), _LIMIT)
        start = perf_counter()
        for _ in range(count):
            await here.publish("bench.0", PAYLOAD)
        await here.flush()
        for ear in ears:
            await asyncio.wait_for(ear.done.wait(), _LIMIT)
        return {"rate": count * _CLIENTS / (perf_counter() - start)}
