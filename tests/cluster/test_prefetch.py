"""Prefetched messages of a slow program keep their deliveries, in a file as on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

import pelton
from tests.kit.nats_server import nats_server

_NUMBER = 10
_ACK_WAIT = 0.6
_LONG = 2.5


@pytest.fixture(params=["memory", "file", "server"])
async def work(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[pelton.Stream]:
    """A stream with ten messages."""
    if request.param == "server":
        with nats_server(tmp_path) as server:
            async with pelton.open(server.url) as jet:
                yield await _filled(jet)
    else:
        async with pelton.open("memory:" if request.param == "memory" else tmp_path / "a.pelton") as jet:
            yield await _filled(jet)


async def _filled(jet: pelton.Jet) -> pelton.Stream:
    stream = await jet.create_stream("work", subjects=["work.>"])
    await jet.publish_batch([(f"work.{n}", b"") for n in range(1, _NUMBER + 1)])
    return stream


async def test_what_was_not_handed_out_is_not_delivered_again(work: pelton.Stream) -> None:
    consumer = await work.create_consumer(durable_name="c", ack_wait=_ACK_WAIT, max_deliver=2)
    seen = []
    async with asyncio.timeout(60), aclosing(consumer.messages()) as messages:
        async for message in messages:
            await message.ack()
            if not seen:
                # The program handles this one for long; another consumer would get messages whose ack wait ends.
                assert await (await work.consumer("c")).fetch(_NUMBER, timeout=_LONG) == []
            seen.append((message.delivered.seq, message.delivered.num_delivered))
            if len(seen) == _NUMBER:
                break
    assert seen == [(n, 1) for n in range(1, _NUMBER + 1)]
    assert (await consumer.info()).num_ack_pending == 0


async def test_what_a_callback_has_not_seen_is_not_delivered_again(work: pelton.Stream) -> None:
    consumer = await work.create_consumer(durable_name="c", ack_wait=_ACK_WAIT, max_deliver=2)
    seen: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def slow(message: pelton.Message) -> None:
        if message.delivered.seq == 5:
            # Four are done and not acknowledged yet, for five the callback has not run.
            await message.ack()
            assert await (await work.consumer("c")).fetch(_NUMBER, timeout=_LONG) == []
        seen.append((message.delivered.seq, message.delivered.num_delivered))
        if len(seen) == _NUMBER:
            done.set()

    consuming = asyncio.create_task(consumer.consume(slow))
    await asyncio.wait_for(done.wait(), 60)
    consuming.cancel()
    await asyncio.wait([consuming])
    assert seen == [(n, 1) for n in range(1, _NUMBER + 1)]


async def test_what_was_pushed_and_not_handed_out_is_not_delivered_again(work: pelton.Stream) -> None:
    consumer = await work.create_consumer(
        durable_name="c", deliver_subject="pushed.here", ack_wait=_ACK_WAIT, max_deliver=2
    )
    seen = []
    async with asyncio.timeout(60), aclosing(consumer.messages(prefetch=3)) as messages:
        async for message in messages:
            if not seen:
                await message.ack()
                empty = await work.create_consumer(filter_subject="work.none")
                assert await empty.fetch(1, timeout=_LONG) == []
            else:
                await message.ack()
            seen.append((message.delivered.seq, message.delivered.num_delivered))
            if len(seen) == _NUMBER:
                break
    assert seen == [(n, 1) for n in range(1, _NUMBER + 1)]


async def test_one_that_is_delivered_once_alone_is_not_taken_in_advance(work: pelton.Stream) -> None:
    consumer = await work.create_consumer(durable_name="c", max_deliver=1)
    for expected in range(1, _NUMBER + 1):
        async with asyncio.timeout(60), aclosing(consumer.messages()) as messages:
            async for message in messages:
                assert message.delivered.seq == expected
                break
    assert await consumer.fetch(1, no_wait=True) == []
