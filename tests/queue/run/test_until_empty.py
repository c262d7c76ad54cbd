"""Workers that end by themselves: what they ask the store for, and when they end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

import pelton
from pelton.api import PullRequest
from pelton.connect import Jet
from pelton.queue.job_source import ConsumerJobSource
from pelton.queue.registry import TakenJob
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH


async def test_a_channel_without_jobs_is_hardly_asked_while_another_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = list[str]()
    take = ConsumerJobSource.take

    async def noted(self: ConsumerJobSource, channel: str, request: PullRequest) -> list[TakenJob]:
        found = await take(self, channel, request)
        if not found:
            empty.append(channel)
        return found

    monkeypatch.setattr(ConsumerJobSource, "take", noted)
    async with pelton.open("memory:") as jet:
        queue = await jet.queue("garage", exclusive=True)
        ran = list[int]()

        @queue.job
        async def wash(number: int) -> None:
            ran.append(number)

        await wash.enqueue_many([(number,) for number in range(3000)], keys=[f"k{number}" for number in range(3000)])
        begun = monotonic()
        await queue.work(concurrency=4, until_empty=True, handle_signals=False)
        took = monotonic() - begun
    assert len(ran) == 3000
    # At the begin, at the end, and every 50 ms; it was once for each 30 jobs.
    assert len(empty) <= 20 + 2 * took / 0.05


async def test_jobs_of_both_kinds_are_worked_off_when_they_enqueue_each_other() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", exclusive=True)
        ran = list[int]()

        @queue.job
        async def wash(left: int) -> None:
            ran.append(left)
            if left:
                # Now with a key, now without one.
                await queue.options(key="car1" * (left % 2)).enqueue(wash, left - 1)

        await wash.enqueue(20)
        work = asyncio.create_task(queue.work(until_empty=True, handle_signals=False))
        while len(ran) < 21:
            # None waits for a timer: the clock stands still.
            await asyncio.sleep(0.001)
        while not work.done():
            runtime.clock.advance(0.05)
            await asyncio.sleep(0.001)
        await work
    assert ran == list(range(20, -1, -1))


async def test_a_worker_that_waits_for_the_last_job_of_another_ends_soon_after_it(tmp_path: Path) -> None:
    path = tmp_path / "garage.pelton"
    began, go_on = asyncio.Event(), asyncio.Event()
    async with pelton.open(path) as one, pelton.open(path) as two:
        queue, other = await one.queue("garage"), await two.queue("garage")

        async def wash() -> None:
            began.set()
            await go_on.wait()

        await queue.job(wash).enqueue()
        other.job(wash)
        works = asyncio.create_task(queue.work(until_empty=True, handle_signals=False))
        await began.wait()
        waits = asyncio.create_task(other.work(until_empty=True, handle_signals=False))
        go_on.set()
        async with asyncio.timeout(60):
            await asyncio.gather(works, waits)
        assert (await queue.counts()).completed == 1


@ON_BOTH
async def test_what_a_consumer_has_not_heard_of_yet_is_left(jet: Jet) -> None:
    """A server tells it of a message a moment after the message is acknowledged: its counts may be too low."""
    stream = await jet.create_stream("s", subjects=["s.*"], retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", filter_subjects=["s.a", "s.b"])
    early = await consumer.info()
    await jet.publish("s.c", b"of others")
    assert await jet.backend.has_seen_all(early)
    await jet.publish("s.b", b"ours")
    # Where it is of one moment with what is stored, it is not asked.
    assert await jet.backend.has_seen_all(early) is jet.backend.planning.atomic_batches
    [message] = await consumer.fetch(1)
    assert await jet.backend.has_seen_all(await consumer.info())
    await message.ack()
    assert await jet.backend.has_seen_all(early)
