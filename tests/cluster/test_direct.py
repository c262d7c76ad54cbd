"""Direct get of a real server: lost connections, unusual names, the headers the server adds and we remove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import pelton
from pelton.api import DirectGet, ServerTimeoutError, StoreClosedError
from pelton.cluster import connection
from tests.kit.nats_server import NatsServer


async def test_reads_outlast_a_restart(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], allow_direct=True)
    await jet.publish_batch([(f"s.{number % 10}", b"%d" % number) for number in range(2000)])
    turns = 0
    restarted = False

    async def read() -> None:
        nonlocal turns
        while not restarted:
            assert (await stream.get_message(7)).data == b"6"
            assert (await stream.get_last_message("s.9")).seq == 2000
            assert [message.seq for message in await stream.get_messages(2000)] == list(range(1, 2001))
            assert len(await stream.get_last_messages("s.*")) == 10
            turns += 1

    readers = asyncio.gather(*(read() for _ in range(4)))
    while turns < 4:
        await asyncio.sleep(0)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    before = turns
    while turns < before + 4:
        await asyncio.sleep(0)
    restarted = True
    await readers


async def test_many_batches_at_once(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_direct=True)
    await jet.publish_batch([("s", b"%d" % number) for number in range(500)])
    asked = [stream.get_messages(50, seq=start) for start in range(1, 450)]
    for start, messages in enumerate(await asyncio.gather(*asked), start=1):
        assert [message.seq for message in messages] == list(range(start, start + 50))
    assert not jet.backend._connection._waiting


async def test_a_batch_that_is_given_up_leaves_nothing_behind(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_direct=True)
    await jet.publish_batch([("s", bytes(1000))] * 5000)
    given_up = asyncio.ensure_future(stream.get_messages(5000))
    while not jet.backend._connection._waiting:
        await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert len(await stream.get_messages(10)) == 10
    assert not jet.backend._connection._waiting


async def test_an_answer_that_does_not_come(jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_SILENCE_S", 0.05)
    monkeypatch.setattr(connection, "_SWEEP_S", 0.01)
    object.__setattr__(jet.backend._connection.settings, "patience", 0.2)
    async with unanswered(jet):
        for request in (DirectGet(seq=1), DirectGet(seq=1, batch=5)):
            with pytest.raises(ServerTimeoutError):
                await jet.backend.direct_get("T", request)
        # Somebody hears it, and no stream: as of what a gateway or a leaf node leads to.
        async with await jet.subscribe("heard"):
            with pytest.raises(ServerTimeoutError):
                await asyncio.wait_for(jet.publish("heard", b""), 20)


@asynccontextmanager
async def unanswered(jet: pelton.Jet) -> AsyncIterator[None]:
    """Take the requests for stream T without answering."""
    other = jet.backend.clone()
    await other.subscribe("$JS.API.DIRECT.GET.T")
    yield
    await other.close()


async def test_closing_ends_a_read(jet: pelton.Jet) -> None:
    async with unanswered(jet):
        reads = [asyncio.ensure_future(jet.backend.direct_get("T", DirectGet(seq=1, batch=batch))) for batch in (0, 5)]
        while len(jet.backend._connection._waiting) < 2:
            await asyncio.sleep(0)
        await jet.close()
        for read in reads:
            with pytest.raises(StoreClosedError):
                await read
