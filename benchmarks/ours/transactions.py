"""Pelton's transactions: what was fetched is turned into messages and a row, 10 at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, PAYLOAD, drained
from benchmarks.ours import Sync

_EACH = 10
_OUT = [("out", PAYLOAD)] * _EACH
_ROW = "INSERT INTO orders(what) VALUES(?)"
Transact = Callable[[Any, list[Any]], Awaitable[None]]


async def transact(run: Run, sync: Sync) -> Sample:
    """One call for the messages, one for the acks, one for the row."""

    async def body(tx: Any, messages: list[Any]) -> None:
        await tx.publish_batch(_OUT)
        await tx.ack(*messages)
        await tx.sql(_ROW, ("paint",))

    return {"rate": await _transactions(run, sync, body)}


async def transact_each(run: Run, sync: Sync) -> Sample:
    """A call for each."""

    async def body(tx: Any, messages: list[Any]) -> None:
        for message in messages:
            await tx.publish("out", PAYLOAD)
            await tx.ack(message)
        await tx.sql(_ROW, ("paint",))

    return {"rate": await _transactions(run, sync, body)}


async def _transactions(run: Run, sync: Sync, body: Transact) -> float:
    """Transactions a second until all is worked off; what is fetched is fetched before."""
    total = run.drain // _EACH * _EACH
    async with _store(run, sync, total) as (jet, messages):

        async def step() -> int:
            taken = [messages.popleft() for _ in range(_EACH)]
            async with jet.transaction(timeout=20) as tx:
                await body(tx, taken)
            return _EACH

        rate = await drained(total, step)
        async with jet.transaction() as tx:
            [(rows,)] = await tx.sql("SELECT count(*) FROM orders")
        state = (await (await jet.stream("out")).info()).state
        left = (await (await jet.stream("in")).info()).state.messages
        if (rows, state.messages, left) != (total // _EACH, total, 0):
            raise RuntimeError(f"{rows} rows, {state.messages} messages out, {left} left of {total}")
        return rate / _EACH


@asynccontextmanager
async def _store(run: Run, sync: Sync, total: int) -> AsyncIterator[tuple[Any, deque[Any]]]:
    async with pelton.open(run.workdir / "bench.pelton", sync=sync) as jet:
        stream = await jet.create_stream("in", retention="workqueue")
        await jet.create_stream("out")
        consumer = await stream.create_consumer(durable_name="worker", max_ack_pending=-1)
        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE orders(id INTEGER PRIMARY KEY, what TEXT NOT NULL)")
        for start in range(0, total, BATCH):
            await jet.publish_batch([("in", PAYLOAD)] * min(BATCH, total - start))
        messages: deque[Any] = deque()
        while len(messages) < total:
            messages += await consumer.fetch(BATCH)
        yield jet, messages
