"""On a cluster too, messages of a cancelled pull are given back at once, not after their ack wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pelton
from tests.cluster.conftest import NatsServer
from tests.conformance.cases.eventually import eventually

_STEPS = range(0, 200, 5)


async def _iterate(consumer: pelton.Consumer, handed: list[pelton.Message]) -> None:
    messages = consumer.messages(prefetch=4)
    try:
        async for message in messages:
            handed.append(message)
            await asyncio.sleep(0)
    finally:
        await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator


async def _cancelled_after(steps: int, task: asyncio.Task[Any]) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("way", ["fetch", "messages"])
async def test_nothing_is_held_back(jet: pelton.Jet, way: str) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer(durable_name="c", ack_wait=600)
    for steps in _STEPS:
        await jet.publish("s")
        handed: list[pelton.Message] = []
        task: asyncio.Task[Any] = asyncio.ensure_future(
            consumer.fetch(3, timeout=30) if way == "fetch" else _iterate(consumer, handed)
        )
        await _cancelled_after(steps, task)
        if way == "fetch" and not task.cancelled():
            handed += task.result()
        if not handed:
            handed += await consumer.fetch(1, timeout=30)
        assert len(handed) == 1, f"cancelled after {steps} steps"
        await consumer.ack(handed)
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_closing_the_store_waits_until_it_is_given_back(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer(durable_name="c", ack_wait=600)
    for steps in range(0, 100, 20):
        await jet.publish("s")
        async with pelton.open(server.url) as other:
            theirs = await (await other.stream("S")).consumer("c")
            task: asyncio.Task[list[pelton.Message]] = asyncio.ensure_future(theirs.fetch(1, timeout=30))
            await _cancelled_after(steps, task)
        if task.cancelled():
            assert len(found := await consumer.fetch(1, timeout=30)) == 1
        else:
            found = task.result()
        await consumer.ack(found)
    assert (await consumer.info()).num_ack_pending == 0


async def test_an_opening_that_is_given_up_leaves_no_connection(server: NatsServer) -> None:
    async def opened() -> pelton.Jet:
        return await pelton.open(server.url)

    before = asyncio.all_tasks()
    for steps in range(40):
        task = asyncio.ensure_future(opened())
        await _cancelled_after(steps, task)
        if not task.cancelled():
            await (await task).close()

    async def left() -> set[str]:
        return {str(task) for task in asyncio.all_tasks() - before}

    await eventually(left, set[str]())
