"""nats-py at both ends of a leaf node, which is `pelton serve` or a nats-server, and of its hub, a nats-server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, PAYLOAD, one_by_one
from benchmarks.ours.served import serving
from benchmarks.peers.nats_server import running

_BREATH = 512
_LIMIT = 120.0
_STREAM = "origin"


@asynccontextmanager
async def _both(run: Run, served: bool) -> AsyncIterator[tuple[Client, Client]]:
    """Clients at the edge and at the hub, which know each other's interest."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listen = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
    async with running(run.workdir, domain="hub", extra=listen) as hub:
        leaf = (
            serving(run.workdir, "--leaf", f"nats://127.0.0.1:{port}", "--domain", "edge")
            if served
            else running(
                run.workdir,
                domain="edge",
                extra=f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}" }}] }}',
            )
        )
        async with leaf as edge, await nats.connect(edge) as here, await nats.connect(hub) as there:
            await _meet(here, there)
            await _meet(there, here)
            yield here, there


async def _meet(asked: Client, asks: Client) -> None:
    """Wait until what one side subscribes to is answered for the other."""

    async def answer(message: Msg) -> None:
        await message.respond(b"")

    heard = await asked.subscribe("met", cb=answer)
    while True:
        with suppress(NoRespondersError):
            await asks.request("met", b"", timeout=5)
            break
        await asyncio.sleep(0.01)
    await heard.unsubscribe()


async def one_way(run: Run, served: bool, up: bool) -> Sample:
    """Messages per second from one side to the other."""
    async with _both(run, served) as (here, there):
        source, target = (here, there) if up else (there, here)
        left, done = run.drain, asyncio.Event()

        async def count(message: Msg) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        await target.subscribe("bench.0", cb=count)
        await _meet(target, source)
        start = perf_counter()
        for number in range(run.drain):
            await source.publish("bench.0", PAYLOAD)
            if number % _BREATH == 0:
                await source.flush()
        await asyncio.wait_for(done.wait(), _LIMIT)
        return {"rate": run.drain / (perf_counter() - start)}


async def request(run: Run, served: bool) -> Sample:
    """Requests per second of a client of the hub, each answered at the edge before the next."""
    async with _both(run, served) as (here, there):

        async def answer(message: Msg) -> None:
            await message.respond(message.data)

        await here.subscribe("service", cb=answer)
        await _meet(here, there)
        return {"rate": await one_by_one(run.seconds, lambda: there.request("service", PAYLOAD, timeout=10))}


async def catch_up(run: Run, served: bool, up: bool) -> Sample:
    """Messages per second that a new stream takes of a full one at the other side."""
    async with _both(run, served) as (here, there):
        source, target = (here, there) if up else (there, here)
        domain = "edge" if up else "hub"
        await _fill(source, run.drain)
        origin = {"name": _STREAM, "external": {"api": f"$JS.{domain}.API"}}
        start = perf_counter()
        await _ask(target, "STREAM.CREATE.copy", {"name": "copy", "sources": [origin]})
        while (await _ask(target, "STREAM.INFO.copy"))["state"]["messages"] < run.drain:
            await asyncio.sleep(0.002)
        return {"rate": run.drain / (perf_counter() - start)}


async def feed(run: Run) -> Sample:
    """Messages per second of `jet.feed` from a nats-server to a file."""
    async with (
        running(run.workdir) as url,
        await nats.connect(url) as client,
        pelton.open(url) as hub,
        pelton.open(run.workdir / "edge.pelton") as edge,
    ):
        await _fill(client, run.drain)
        await edge.create_stream("copy", subjects=["bench.*"])
        start = perf_counter()
        await hub.feed(_STREAM, edge, until_empty=True)
        return {"rate": run.drain / (perf_counter() - start)}


async def _fill(client: Client, total: int) -> None:
    await _ask(client, f"STREAM.CREATE.{_STREAM}", {"name": _STREAM, "subjects": ["bench.*"]})
    js = client.jetstream(timeout=_LIMIT)
    for first in range(0, total, BATCH):
        await asyncio.gather(*(js.publish("bench.0", PAYLOAD) for _ in range(min(BATCH, total - first))))


async def _ask(client: Client, verb: str, fields: dict[str, Any] | None = None) -> Any:
    reply = json.loads(
        (await client.request(f"$JS.API.{verb}", json.dumps(fields or {}).encode(), timeout=_LIMIT)).data
    )
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return reply
