"""A holder or leader is cancelled at any moment, even during release: no lock stays held without a holder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import pelton
from pelton import Jet

SOON = 60.0
STEPS = 24


@pytest.fixture
async def jet(tmp_path: Path) -> AsyncIterator[Jet]:
    async with pelton.open(tmp_path / "a.pelton", sync="off") as jet:
        yield jet


async def cancelled(work: Awaitable[None], steps: int, again: int) -> None:
    """Run a task for that many turns of the loop, and cancel it; and once more some turns later."""
    task = asyncio.ensure_future(work)
    for turns in (steps, again):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])


async def busy(jet: Jet) -> None:
    """Keep the store writing all the time, so that other requests wait."""
    await jet.create_stream("noise")
    while True:
        await jet.publish("noise")


@pytest.mark.parametrize("again", [0, 3])
@pytest.mark.parametrize("what", ["lock", "semaphore"])
async def test_what_was_held_is_free(jet: Jet, what: str, again: int) -> None:
    def made() -> pelton.Lock | pelton.Semaphore:
        return jet.lock("s") if what == "lock" else jet.semaphore("s", slots=1)

    async def hold() -> None:
        async with made():
            await asyncio.sleep(0)

    noise = [asyncio.ensure_future(busy(jet)) for _ in range(2)]
    try:
        for steps in range(STEPS):
            await cancelled(hold(), steps, again)
            # A lease lasts for 30 s: acquiring it sooner shows that it was released.
            held = await made().acquire(timeout=5)
            await held.release()
    finally:
        for task in noise:
            task.cancel()
        await asyncio.wait(noise)


async def _leader_of(jet: Jet) -> str:
    async with asyncio.timeout(SOON), jet.elect("s", ttl=2) as term:
        return term.name


def candidates() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pelton-election"]


async def _lead(jet: Jet) -> None:
    async with jet.elect("s", ttl=2):
        await asyncio.sleep(0)


async def _run(jet: Jet) -> None:
    election = jet.elect("s", ttl=2, on_won=lambda term: election.stop())
    await election.run()


@pytest.mark.parametrize("lead", [_lead, _run])
async def test_nobody_who_was_cancelled_leads(jet: Jet, lead: Callable[[Jet], Awaitable[None]]) -> None:
    await _leader_of(jet)
    for again in (0, 1, 3):
        for milliseconds in range(0, 60, 6):
            task = asyncio.ensure_future(lead(jet))
            await asyncio.wait([task], timeout=milliseconds / 1000)
            task.cancel()
            for _ in range(again):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
    async with asyncio.timeout(SOON):
        while candidates():
            await asyncio.sleep(0.01)
    await _leader_of(jet)
