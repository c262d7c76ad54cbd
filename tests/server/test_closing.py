"""How a server ends: what clients have sent is read and answered, and no connection is reset."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from pelton.server import WebSocketDoor
from pelton.wire.protocol import Command
from tests.cluster.people import Certificates
from tests.kit.wire_client import Msg
from tests.server.conftest import Started
from tests.server.raw import PLAIN, RawClient, raw_client
from tests.server.test_tls import door, trusting
from tests.server.test_websocket import Framed, url

_PUBLISHES = b"".join(b"PUB s in %d\r\n%b\r\n" % (len(data), data) for data in (bytes(n) for n in range(200)))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.server.server._LAST_READ_S", 60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


async def until_the_end(client: RawClient) -> AsyncIterator[Command]:
    while (found := await client.next()) is not None:
        yield found


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_what_has_arrived_is_answered(kind: str, started: Started, certificates: Certificates) -> None:
    server = await started(**({"tls": door(certificates)} if kind == "tls" else {}))
    reader, writer = await asyncio.open_connection("localhost", server.endpoints[0].port)
    await reader.readline()
    if kind == "tls":
        await writer.start_tls(trusting(certificates), server_hostname="localhost")
    client = RawClient(reader, writer)
    client.send(f"CONNECT {PLAIN}")
    await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    client.sub("in", "1")
    await client.settle()
    client.send(_PUBLISHES)
    client.pub("$JS.API.STREAM.INFO.S", b"", "in")
    await writer.drain()
    closing = asyncio.ensure_future(server.close())
    answers = [json.loads(found.data) async for found in until_the_end(client) if isinstance(found, Msg)]
    assert [answer["seq"] for answer in answers[:-1]] == list(range(1, 201))
    assert answers[-1]["state"]["messages"] == 200
    await client.close()
    await closing


async def test_acks_in_flight_are_confirmed(started: Started) -> None:
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        config = {"durable_name": "c", "ack_policy": "explicit"}
        await client.request("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        client.send(_PUBLISHES)
        client.sub("in", "1")
        client.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 50}, "in")
        acks: list[str] = []
        while len(acks) < 50:
            found = await client.next()
            acks += [found.reply] if isinstance(found, Msg) and found.reply else []
        for ack in acks:
            client.pub(ack, b"", "in")
        closing = asyncio.ensure_future(server.close())
        assert len([found async for found in until_the_end(client) if isinstance(found, Msg) and not found.data]) == 50
    await closing


async def test_a_client_that_goes_on_sending_is_not_reset(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.server.server._LAST_READ_S", 0)
    server = await started(stores={})
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", server.endpoints[0].port)) as client:
        client.setblocking(False)
        assert (await loop.sock_recv(client, 4096)).startswith(b"INFO")
        closing = asyncio.ensure_future(server.close())
        while True:
            await loop.sock_sendall(client, b"PUB a 5\r\nhello\r\n" * 100)
            try:
                if not client.recv(4096):
                    break
            except BlockingIOError:
                pass
    await closing


async def test_a_websocket_says_goodbye_after_its_answers(started: Started) -> None:
    server = await started(websocket=WebSocketDoor())
    async with connect(url(server)) as client:
        await client.send(f"CONNECT {PLAIN}\r\nSUB in 1\r\n".encode())
        framed = Framed(client)
        await framed.open()
        await client.send(b'PUB $JS.API.STREAM.CREATE.S in 29\r\n{"name":"S","subjects":["s"]}\r\n')
        assert isinstance(await framed.next(), Msg)
        for number in range(200):
            await client.send(b"PUB s in 3\r\n%03d\r\n" % number)
        closing = asyncio.ensure_future(server.close())
        answers = [await framed.next() for _ in range(200)]
        assert all(isinstance(answer, Msg) for answer in answers)
        with pytest.raises(ConnectionClosed) as ended:
            await client.recv()
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1001
    await closing
