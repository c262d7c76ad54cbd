"""Clients that get much and read slowly: consumers and direct gets wait for them, and nobody is cut."""

from __future__ import annotations

import asyncio

import pytest

from pelton.server import Server
from pelton.wire import Msg
from tests.server.raw import RawClient, raw_client

SIZE = 100_000
COUNT = 1000


@pytest.fixture
async def filled(server: Server) -> Server:
    """A server with a stream of 100 MB, more than may wait for one client."""
    async with raw_client(server.endpoints[0].port) as client:
        config = {"name": "S", "subjects": ["s"], "allow_direct": True}
        await client.request("$JS.API.STREAM.CREATE.S", config)
        client.sub("acks", "1")
        for _ in range(10):
            for _ in range(COUNT // 10):
                client.pub("s", bytes(SIZE), "acks")
            await client.take(COUNT // 10)
    return server


async def count(client: RawClient) -> int:
    """Read slowly at first; return how many messages came."""
    await asyncio.sleep(0.3)
    for number in range(COUNT):
        command = await client.next()
        assert isinstance(command, Msg), (number, command)
        assert len(command.data) == SIZE
    return COUNT


async def test_a_large_pull(filled: Server) -> None:
    async with raw_client(filled.endpoints[0].port) as client:
        made = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "none"}}
        await client.request("$JS.API.CONSUMER.CREATE.S.c", made)
        client.sub("in", "1")
        client.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": COUNT, "expires": 30 * 10**9}, "in")
        assert await count(client) == COUNT
        assert await client.settle() == []


async def test_a_push_consumer(filled: Server) -> None:
    async with raw_client(filled.endpoints[0].port) as client:
        client.sub("out", "1")
        await client.settle()
        config = {"durable_name": "c", "ack_policy": "none", "deliver_subject": "out"}
        client.pub("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        assert await count(client) == COUNT


async def test_a_large_direct_get(filled: Server) -> None:
    async with raw_client(filled.endpoints[0].port) as client:
        client.sub("in", "1")
        client.pub("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": COUNT, "max_bytes": 1 << 30}, "in")
        assert await count(client) == COUNT
        (end,) = await client.take(1)
        assert f"204 EOB|Nats-Num-Pending: 0|Nats-Last-Sequence: {COUNT}" in end
