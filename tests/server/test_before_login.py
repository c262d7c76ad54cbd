"""What a client can make a server hold before it has logged in, and after it is gone: very little."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from pelton.server import Server, WebSocketDoor
from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.settings.options import ConnectionLimits
from pelton.wire import Connect, Parser, Ping, Pub, Violation, WireLimits
from tests.kit.nats_server import nats_server
from tests.server.conftest import Started

LOGIN = b'CONNECT {"verbose":false,"user":"u","pass":"p"'
GUARDED = "accounts { A { users: [ { user: u, password: p } ], limits { max_payload: 1000 } } }"


class Guarded:
    """Lets in one user, whose messages must be small; ``held`` keeps its password from being checked."""

    wants_nonce = False

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.held.set()

    def is_required(self, kind: str = "STANDARD") -> bool:
        return True

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        return LoginRefusal("nobody is anonymous")

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        await self.held.wait()
        if (credentials.user, credentials.password) != ("u", "p"):
            return LoginRefusal("the password is wrong")
        return ServerUser(name="u", limits=ConnectionLimits(max_payload=1000))


@pytest.fixture(scope="module")
def guarded_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with nats_server(tmp_path_factory.mktemp("nats"), jetstream=False, extra=GUARDED) as running:
        yield running.port


async def answer(port: int, sent: bytes) -> bytes:
    """Return what a server says of it, up to a pong or the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(sent)
    found = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            while not found.endswith(b"PONG\r\n") and (line := await reader.readline()):
                # Clients are told about their account, at some time.
                found += b"" if line.startswith(b"INFO") else line
    writer.close()
    return found


def login(size: int) -> bytes:
    """A login whose JSON has so many bytes."""
    return b"CONNECT " + (LOGIN[8:] + b',"x":"').ljust(size - 2, b"x") + b'"}\r\n'


@pytest.mark.parametrize(
    "sent",
    [
        *(b"P", b"\r\n", b"PING\r\n", b"PUB a 2\r\nhi\r\n", b"SUB a 1\r\n", b"+OK\r\n", b"CX\r\n"),
        *(LOGIN + b"x" * 4300, login(4096) + b"PING\r\n", login(4097)),
        *(LOGIN + b"}\r\nPUB a 1001\r\n", LOGIN + b"}\r\nPUB a 1000\r\n" + bytes(1000) + b"\r\nPING\r\n"),
        *(LOGIN + b"}\r\nUNSUB " + b"a" * 4096 + b"\r\nPING\r\n", LOGIN + b"}\r\nUNSUB " + b"a" * 4097 + b"\r\n"),
    ],
    ids=lambda sent: f"{sent[:12]!r}{len(sent)}",
)
async def test_what_is_read_before_and_after_a_login(started: Started, guarded_port: int, sent: bytes) -> None:
    server = await started(authenticator=Guarded(), stores={})
    expected = await answer(guarded_port, sent)
    assert await answer(server.endpoints[0].port, sent) == expected


def test_a_parser_keeps_nothing_before_a_login() -> None:
    parser = Parser()
    parser.awaits_connect = True
    assert parser.feed(b"CONN") == []
    assert parser.feed(b"ECT {}\r\nPUB a 3\r\nabc\r\nPING\r\n") == [Connect(b"{}")]
    assert parser.feed(b"PI") == []
    parser.awaits_connect = False
    assert parser.go_on() == [Pub("a", "", b"abc"), Ping()]
    assert parser.feed(b"NG\r\n") == [Ping()]
    parser = Parser(WireLimits(line=100))
    parser.awaits_connect = True
    assert parser.feed(b"CONNECT {}\r\n") == [Connect(b"{}")]
    assert parser.feed(bytes(100)) == []
    assert parser.feed(b"x") == [Violation("maximum control line exceeded")]


def test_small_portions_cost_no_more_than_their_bytes() -> None:
    parser, size = Parser(), 200_000
    parser.feed(b"PUB a %d\r\n" % size)
    tracemalloc.start()
    try:
        for _ in range(size // 4):
            parser.feed(b"x" * 2)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < size


async def gone(server: Server, *refs: weakref.ref[Any]) -> None:
    """Wait until clients are gone, without a collector."""
    async with asyncio.timeout(30):
        while server.num_clients or any(ref() is not None for ref in refs):
            await asyncio.sleep(0)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("sent", [LOGIN, LOGIN + b"}\r\nPUB a 900\r\nhalf", LOGIN + b"}\r\nSUB a 1\r\nPING\r\n"])
async def test_a_closed_connection_holds_nothing(started: Started, sent: bytes) -> None:
    server = await started(authenticator=Guarded(), stores={})
    _, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port)
    while not server.clients:
        await asyncio.sleep(0)
    begun = server.clients[0].heard
    writer.write(sent)
    while server.clients[0].heard == begun:
        await asyncio.sleep(0)
    ref = weakref.ref(server.clients[0])
    writer.close()
    await gone(server, ref)


@pytest.mark.usefixtures("no_collector")
async def test_a_closed_websocket_holds_nothing(started: Started) -> None:
    server = await started(websocket=WebSocketDoor(compression=True), stores={})
    assert server.websocket_endpoint is not None
    async with connect(f"ws://localhost:{server.websocket_endpoint.port}/", close_timeout=0.1) as socket:
        await socket.recv()
        ref = weakref.ref(server.clients[0])
        socket.transport.write(Frame(Opcode.BINARY, bytes(100_000)).serialize(mask=True)[:5000])
    await gone(server, ref)


async def test_a_login_that_waits_is_not_read_on(started: Started) -> None:
    door = Guarded()
    door.held.clear()
    server = await started(authenticator=door, stores={})
    reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port)
    await reader.readline()
    writer.write(LOGIN + b"}\r\n" + b"PUB a 900\r\n" + bytes(900) + b"\r\n" + b"PING\r\n" * 10_000)
    while not server.clients or not server.clients[0].options.user:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.clients[0].in_msgs == 0
    door.held.set()
    assert await reader.readexactly(60_000) == b"PONG\r\n" * 10_000
    assert server.clients[0].in_msgs == 1
    writer.close()


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_frames_before_a_login_are_small(started: Started, is_compressed: bool) -> None:
    door = WebSocketDoor(compression=True)
    server = await started(authenticator=Guarded(), stores={}, websocket=door)
    assert server.websocket_endpoint is not None
    url = f"ws://localhost:{server.websocket_endpoint.port}/"
    async with connect(url, compression="deflate" if is_compressed else None, max_size=None) as socket:
        await socket.recv()
        with suppress(ConnectionClosed):
            # Small on its way, and large where it is unpacked.
            await socket.send(LOGIN + b" " * (3_000_000 if is_compressed else 10_000))
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(5):
                    while True:
                        assert b"maximum control line exceeded" in await socket.recv()
    while server.num_clients:
        await asyncio.sleep(0)


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_frames_after_a_login_may_have_messages(started: Started, compression: Any) -> None:
    server = await started(authenticator=Guarded(), stores={}, websocket=WebSocketDoor(compression=True))
    assert server.websocket_endpoint is not None
    async with connect(f"ws://localhost:{server.websocket_endpoint.port}/", compression=compression) as socket:
        await socket.recv()
        await socket.send(LOGIN + b"}\r\nPING\r\n")
        assert await socket.recv() == b"PONG\r\n"
        await socket.send((b"PUB a 900\r\n" + bytes(900) + b"\r\n") * 1000 + b"PING\r\n")
        assert await socket.recv() == b"PONG\r\n"
        assert server.clients[0].in_msgs == 1000
