"""A pull, or an iteration, that is cancelled at any moment loses no messages."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import StoreClosedError

_STEPS = 40
_GROUP = {"priority_policy": "pinned_client", "priority_groups": ["g"]}


async def _store(config: dict[str, Any], *, memory: bool, path: Path) -> tuple[pelton.Jet, pelton.Consumer]:
    jet = await pelton.open("memory:" if memory else path / "a.pelton")
    stream = await jet.create_stream("S", subjects=["s"])
    return jet, await stream.create_consumer(durable_name="c", ack_wait=600, **config)


async def _after(steps: int, task: asyncio.Task[Any]) -> bool:
    """Run this many turns of the loop, then cancel; return whether the task had ended by itself."""
    for _ in range(steps):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.wait([task])
    return ended


async def _iterate(consumer: pelton.Consumer, handed: list[pelton.Message], **pull: Any) -> None:
    messages = consumer.messages(prefetch=4, **pull)
    try:
        async for message in messages:
            handed.append(message)
            await asyncio.sleep(0)
    finally:
        await messages.aclose()


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("way", ["fetch", "messages"])
async def test_nothing_is_lost_at_any_step(tmp_path: Path, way: str, group: bool, memory: bool) -> None:
    jet, consumer = await _store(_GROUP if group else {}, memory=memory, path=tmp_path)
    pull: dict[str, Any] = {"group": "g"} if group else {}
    for steps in range(_STEPS):
        # Some start before there is anything to take, some after.
        if steps % 2:
            await jet.publish("s")
        handed: list[pelton.Message] = []
        work = consumer.fetch(3, timeout=30, **pull) if way == "fetch" else _iterate(consumer, handed, **pull)
        task = asyncio.ensure_future(work)
        if not steps % 2:
            await asyncio.sleep(0)
            await jet.publish("s")
        if await _after(steps // 2, task) and way == "fetch":
            handed += task.result()
        assert (await consumer.info()).num_ack_pending == len(handed) + await _returned(jet)
        await consumer.ack(handed)
        await consumer.ack(await consumer.fetch(9, timeout=5, **pull) if len(handed) < 1 else [])
        info = await consumer.info()
        assert (info.num_ack_pending, info.num_pending, info.num_waiting) == (0, 0, 0)
    await jet.close()


async def _returned(jet: pelton.Jet) -> int:
    """Return how many were given back, to be redelivered at once."""
    reply = await jet.backend.call(pelton.api.ConsumerUnsettled(stream="S", name="c"))
    return sum(one.waits for one in reply.messages)


def _open_descriptors(path: Path) -> int:
    """Count them; SQLite keeps one of the file itself for the next opener."""
    found = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum(name != str(path) for name in found)


async def test_closing_that_is_cancelled_closes_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    jet, _ = await _store({}, memory=False, path=tmp_path)
    before = _open_descriptors(path)
    for steps in range(_STEPS):
        other = await pelton.open(path)
        listening = await other.subscribe("s")
        publishing = [asyncio.ensure_future(other.publish("s")) for _ in range(3)]
        await _after(steps // 4 + 1, asyncio.ensure_future(other.close()))
        await asyncio.gather(*publishing, return_exceptions=True)
        async with asyncio.timeout(60):
            while _open_descriptors(path) != before:
                await asyncio.sleep(0.001)
        with pytest.raises(StoreClosedError):
            await listening.next(timeout=60)
    await jet.close()
