"""Sourcing and mirroring within a store, and forwarding from a store to a NATS server."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FILTER, PAYLOAD, SUBJECT
from benchmarks.peers.nats_server import running

_ORIGIN = "origin"
_FIELDS: dict[str, dict[str, Any]] = {
    "source": {"sources": [{"name": _ORIGIN}]},
    "mirror": {"mirror": {"name": _ORIGIN}},
}


async def within(run: Run, kind: str) -> Sample:
    """Fill an origin in batches of 1,000, then a stream that sources it."""
    async with pelton.open(run.workdir / "bench.pelton") as jet:
        published = await _filled(jet, run.drain)
        if kind == "publish":
            return {"rate": published}
        start = perf_counter()
        stream = await jet.create_stream("taking", **_FIELDS[kind])
        while (await stream.info()).state.messages < run.drain:
            await asyncio.sleep(0.001)
        return {"rate": run.drain / (perf_counter() - start)}


async def to_server(run: Run) -> Sample:
    """`jet.feed` until the store is empty."""
    async with (
        running(run.workdir) as url,
        pelton.open(run.workdir / "edge.pelton") as edge,
        pelton.open(url) as hub,
    ):
        await _filled(edge, run.drain)
        stream = await hub.create_stream("hub", subjects=[FILTER])
        start = perf_counter()
        await edge.feed(_ORIGIN, hub, until_empty=True)
        rate = run.drain / (perf_counter() - start)
        if (stored := (await stream.info()).state.messages) != run.drain:
            raise RuntimeError(f"{stored} messages arrived, not {run.drain}")
        return {"rate": rate}


async def _filled(jet: pelton.Jet, total: int) -> float:
    """Publish `total` messages in batches, and return how many a second."""
    await jet.create_stream(_ORIGIN, subjects=[FILTER])
    start = perf_counter()
    for first in range(0, total, BATCH):
        await jet.publish_batch([(SUBJECT, PAYLOAD)] * min(BATCH, total - first))
    return total / (perf_counter() - start)
