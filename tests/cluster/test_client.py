"""What relies on methods of nats-py that are not public: if one of these fails after an upgrade, see client.py."""

import asyncio
from contextlib import suppress

import nats.aio.client
import pytest

import pelton
from tests.kit.nats_server import NatsServer


async def test_a_flush_that_is_given_up_does_not_silence_the_connection(jet: pelton.Jet) -> None:
    client = await jet.backend._connection.client()  # type: ignore[attr-defined]
    for _ in range(3):
        flush = asyncio.ensure_future(client.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with suppress(asyncio.CancelledError):
            await flush
    await asyncio.wait_for(client.flush(), 60)
    assert await asyncio.wait_for(jet.stream_names(), 60) == []


async def test_a_flush_does_not_overtake_what_was_sent_before(jet: pelton.Jet) -> None:
    client = await jet.backend._connection.client()  # type: ignore[attr-defined]
    told: list[str] = []

    def take(subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        told.append(subject)

    for number in range(50):
        await client.listen(f"quiet.{number}", take)
        client.send(f"quiet.{number}", "", b"", None)
        await client.flush()
        assert len(told) == number + 1


async def test_a_read_loop_that_fails_is_a_lost_connection(jet: pelton.Jet) -> None:
    client = await jet.backend._connection.client()  # type: ignore[attr-defined]

    def fails(subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        raise RuntimeError("no such message")

    await client.listen("bad", fails)
    client.send("bad", "", b"", None)
    while client.stats["reconnects"] < 1:
        await asyncio.sleep(0)
    assert await asyncio.wait_for(jet.stream_names(), 60) == []


async def test_connecting_again_ends_though_its_cancellation_was_swallowed(
    server: NatsServer, jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await jet.backend._connection.client()  # type: ignore[attr-defined]
    tries = asyncio.Semaphore(0)

    async def refused(self: nats.aio.client.Client, to: object) -> None:
        tries.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionRefusedError from None

    monkeypatch.setattr(nats.aio.client.Client, "_connect_to_server", refused)
    await asyncio.to_thread(server.kill)
    await tries.acquire()
    client._reconnection_task.cancel()
    await asyncio.wait([client._reconnection_task], timeout=10)
    assert client._reconnection_task.done()


async def test_closing_does_not_wait_for_a_server_that_stands_still(server: NatsServer) -> None:
    jet = await pelton.open(server.url)
    await jet.create_stream("S")
    server.pause()
    try:
        batch = asyncio.ensure_future(jet.publish_batch([("S", bytes(500_000))] * 40))
        await asyncio.sleep(0)
        await asyncio.wait_for(jet.close(), 60)
        with suppress(pelton.PeltonError):
            await asyncio.wait_for(batch, 60)
    finally:
        server.resume()


async def test_what_was_sent_right_before_the_end_arrives(jet: pelton.Jet, server: NatsServer) -> None:
    heard = await jet.backend.subscribe("told")
    for number in range(5):
        async with pelton.open(server.url) as other:
            await other.backend.send("told", b"%d" % number)
        found = await heard.next(timeout=60)
        assert found is not None
        assert found.data == b"%d" % number
    await heard.close()
