"""WebSocket clients: frames of any size, compression, origins, TLS, and clients that never shake hands."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import pytest
from websockets.asyncio.client import ClientConnection as WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from pelton.server import Server, TlsDoor, WebSocketDoor, tls_context
from pelton.wire import Pong
from pelton.wire.protocol import Command
from tests.cluster.people import Certificates
from tests.kit.wire_client import ClientParser, ErrLine, InfoLine, Msg, encode_pub, parse_info
from tests.server.conftest import Started
from tests.server.raw import PLAIN, raw_client


def url(server: Server, scheme: str = "ws") -> str:
    assert server.websocket_endpoint is not None
    return f"{scheme}://localhost:{server.websocket_endpoint.port}/"


class Framed:
    """A client of the protocol over a WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self._parser = ClientParser()
        self._commands: list[Command] = []
        self._is_greeted = False

    async def next(self) -> Command:
        async with asyncio.timeout(60):
            while not self._commands:
                data = await self.socket.recv()
                self._commands += self._parser.feed(data if isinstance(data, bytes) else data.encode())
        found = self._commands.pop(0)
        if isinstance(found, InfoLine) and self._is_greeted:
            # At some time, the client is told of its account.
            return await self.next()
        self._is_greeted = True
        return found

    async def open(self) -> None:
        greeting = await self.next()
        assert isinstance(greeting, InfoLine)
        hello = parse_info(greeting.facts)
        assert hello is not None
        assert not hello.tls_required
        await self.socket.send(f"CONNECT {PLAIN}\r\nPING\r\n".encode())
        assert isinstance(await self.next(), Pong)


@pytest.mark.parametrize("compression", [False, True])
async def test_messages_go_both_ways(started: Started, compression: bool) -> None:
    server = await started(websocket=WebSocketDoor(compression=compression))
    async with connect(url(server)) as socket, raw_client(server.endpoints[0].port) as other:
        client = Framed(socket)
        await client.open()
        await socket.send(b"SUB a 1\r\nPING\r\n")
        assert isinstance(await client.next(), Pong)
        data = bytes(range(256)) * 2000
        other.pub("a", data)
        found = await client.next()
        assert isinstance(found, Msg)
        assert found.data == data
        other.sub("b", "1")
        await other.settle()
        sent = encode_pub("b", "", None, data)
        for start in range(0, len(sent), 100_000):
            await socket.send(sent[start : start + 100_000])
        command = await other.next()
        assert isinstance(command, Msg)
        assert command.data == data
        await socket.send([b"PUB b", b" 2\r\n", b"hi\r\n"])
        assert await other.take(1) == ["1 b - [] b'hi'"]


async def test_the_end(started: Started) -> None:
    server = await started(websocket=WebSocketDoor())
    async with connect(url(server)) as socket:
        client = Framed(socket)
        await client.open()
        assert server.num_clients == 1
        await socket.send(b"NONSENSE\r\n")
        assert isinstance(await client.next(), ErrLine)
        with pytest.raises(ConnectionClosed):
            await client.next()
    async with connect(url(server)) as socket:
        await Framed(socket).open()
    while server.num_clients:
        await asyncio.sleep(0)
    async with connect(url(server)) as socket:
        client = Framed(socket)
        await client.open()
        await server.close()
        with pytest.raises(ConnectionClosed):
            await client.next()


async def test_origins(started: Started) -> None:
    server = await started(websocket=WebSocketDoor(allowed_origins=("https://good.example",)))
    async with connect(url(server), origin="https://good.example") as socket:
        await Framed(socket).open()
    with pytest.raises(InvalidStatus):
        await connect(url(server), origin="https://evil.example")
    own = await started(websocket=WebSocketDoor(same_origin=True), stores={})
    address = url(own)
    async with connect(address, origin=address.replace("ws:", "http:").rstrip("/")) as socket:
        await Framed(socket).open()
    with pytest.raises(InvalidStatus):
        await connect(address, origin="https://evil.example")


async def test_tls(started: Started, tmp_path_factory: pytest.TempPathFactory) -> None:
    certificates = Certificates(tmp_path_factory.mktemp("tls") / "certificates")
    door = TlsDoor(context=tls_context(*map(str, certificates.server)))
    server = await started(tls=door, websocket=WebSocketDoor(tls=door))
    context = ssl.create_default_context(cafile=str(certificates.ca))
    async with connect(url(server, "wss"), ssl=context) as socket:
        await Framed(socket).open()


async def test_what_is_no_websocket(started: Started) -> None:
    server = await started(websocket=WebSocketDoor(timeout=0.2))
    assert server.websocket_endpoint is not None
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\xff nonsense\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket_endpoint.port)
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert b"101" not in await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert server.num_clients == 0
