"""Clients that get much and read slowly: consumers and direct gets wait for them, and nobody is cut.

Those that do not read at all are let go, also if their connection is being closed: until then it counts.
"""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
import weakref

import pytest

from pelton.server import Server
from tests.kit.wire_client import Msg
from tests.server.conftest import Started
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


# --- clients that do not read


async def deaf(server: Server, lines: bytes = b"SUB a 1\r\n") -> socket.socket:
    """A client that reads nothing by itself, and what the server holds for it."""
    loop, made = asyncio.get_running_loop(), socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    await loop.sock_connect(made, ("127.0.0.1", server.endpoints[0].port))
    await loop.sock_sendall(made, b'CONNECT {"verbose":false,"echo":false}\r\n' + lines)
    while not server.clients or not server.clients[-1].num_subscriptions:
        await asyncio.sleep(0)
    return made


async def flood(server: Server) -> None:
    """Publish much more than sockets take."""
    async with raw_client(server.endpoints[0].port) as client:
        for number in range(120):
            client.pub("a", b"%06d" % number * 16_000)
        await client.settle()


async def everything(made: socket.socket) -> bytes:
    """What there is to read, up to the end."""
    loop, found = asyncio.get_running_loop(), b""
    async with asyncio.timeout(30):
        while portion := await loop.sock_recv(made, 1 << 20):
            found += portion
    return found


async def test_a_connection_that_is_closed_counts_until_it_is(started: Started) -> None:
    server = await started(stores={}, max_connections=2)
    client = await deaf(server)
    await flood(server)
    while server.num_clients > 1:
        await asyncio.sleep(0)
    assert server.clients[0].pending_bytes > 1_000_000
    await asyncio.get_running_loop().sock_sendall(client, b"NONSENSE\r\n")
    while server.clients:
        await asyncio.sleep(0)
    async with raw_client(server.endpoints[0].port) as other:
        await other.settle()
        async with raw_client(server.endpoints[0].port, "") as refused:
            assert await refused.take(2) == ["-ERR maximum connections exceeded", "END"]
        # All of it arrives if the client reads after all.
        found = await everything(client)
    assert found.endswith(b"000119\r\n-ERR 'Unknown Protocol Operation'\r\n")
    assert found.count(b"MSG a 1 96000") == 120
    while server.num_clients:
        await asyncio.sleep(0)
    client.close()


@pytest.mark.parametrize("last", [b"NONSENSE\r\n", b""])
async def test_nobody_waits_for_a_client_that_does_not_read(started: Started, last: bytes) -> None:
    server = await started(stores={}, write_deadline=0.1)
    client = await deaf(server)
    kept = weakref.ref(server.clients[0])
    await flood(server)
    await asyncio.get_running_loop().sock_sendall(client, last)
    async with asyncio.timeout(30):
        while server.num_clients or kept() is not None:
            await asyncio.sleep(0.01)
    assert server.roster.totals.slow_consumers == (not last)
    client.close()


async def test_small_answers_that_nobody_reads_cost_no_more_than_their_bytes(started: Started) -> None:
    server = await started(stores={})
    client = await deaf(server)
    await flood(server)
    held = server.clients[0]
    before = held.pending_bytes
    tracemalloc.start()
    try:
        for _ in range(20_000):
            held.write(b"PONG\r\n")
            held.flush()
        cost = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held.pending_bytes == before + 120_000
    # What waits is in one piece, which has room to grow.
    assert cost < held.pending_bytes // 4
    client.close()
