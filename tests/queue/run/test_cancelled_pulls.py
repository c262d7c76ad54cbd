"""A worker that stops while a pull of it is answered: the jobs are given back, and no attempt of theirs is counted."""

from __future__ import annotations

import asyncio

import pytest

import pelton
from pelton.api import PullRequest
from pelton.queue import Queue
from pelton.queue.registry import TakenJob

_STEPS = 12


async def _cancelled(queue: Queue, steps: int, *, exclusive: bool) -> None:
    """Ask for a job as a worker does, and stop after this many turns of the loop."""
    source = queue._context.source_for("w")
    channel = source.channels[0] if exclusive else source.channels[-1]

    async def take() -> list[TakenJob]:
        # After this the pull waits for a shared transaction, and gets its answer a turn later.
        queue.jet.backend.stage(lambda: None, durable=False, at_once=True)
        return await source.take(channel, PullRequest(batch=1, no_wait=True))

    taking = asyncio.ensure_future(take())
    for _ in range(steps):
        await asyncio.sleep(0)
    taking.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait([taking])
        if not taking.cancelled():
            # It came in time: give it back as a worker that has not started it.
            for taken in taking.result():
                await source._give_back(taken)
        await source.close()


@pytest.mark.parametrize("exclusive", [False, True])
async def test_the_only_attempt_is_not_burnt_at_any_step(exclusive: bool) -> None:
    async with pelton.open("memory:") as jet:
        queue = await jet.queue("q", exclusive=exclusive, lease=600)
        ran: list[str] = []

        @queue.job(max_attempts=1)
        async def once(context: pelton.JobContext) -> int:
            ran.append(context.id)
            return context.attempt

        job = once.options(key="k") if exclusive else once
        handle = await job.enqueue()
        for steps in range(_STEPS):
            await _cancelled(queue, steps, exclusive=exclusive)
        await queue.work(until_empty=True, handle_signals=False)
        assert (await handle.value(timeout=30), ran) == (1, [handle.id])
