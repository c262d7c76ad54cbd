"""The bounds on what a client can cost, at their borders: what is just below passes, what is just above does not.

Those of lines, messages and logins are in ``test_before_login.py``, those of archives in ``test_archives.py``. What a
client sends is handed to its connection here, so that it is one portion on any machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pelton.server import Endpoint, Server, WebSocketDoor, router
from pelton.server import account as accounts
from pelton.server import interest as interests
from pelton.server import monitoring as answers
from pelton.server import store_link as link
from pelton.server.connection import ClientConnection
from pelton.server.identity import ClientRights, Permissions, ServerUser, SubjectRules
from pelton.server.listening import FairChecks
from pelton.server.store_link import OpenRequests
from pelton.wire import Parser, Pub
from pelton.wire import protocol as wire
from pelton.wire.protocol import KnownLines
from tests.fuzz.protocol import content_of, frame
from tests.server.conftest import Started
from tests.server.raw import raw_client
from tests.server.test_before_login import LOGIN, Guarded

HELLO = LOGIN + b"}\r\n"


def held(server: Server) -> ClientConnection:
    """The server's side of its only client."""
    (found,) = server.clients
    assert isinstance(found, ClientConnection)
    return found


def is_read(client: ClientConnection) -> bool:
    assert client._transport is not None
    return client._transport.is_reading()


async def again(client: ClientConnection) -> None:
    """Wait until a client is read again."""
    while not is_read(client):
        await asyncio.sleep(0)


# --- WebSocket


def upgrade(size: int) -> bytes:
    """A handshake of so many bytes."""
    head = (
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    left = size - len(head) - 2
    while left:
        line = left if left <= 8000 else 4000
        head += b"X: " + b"x" * (line - 5) + b"\r\n"
        left -= line
    return head + b"\r\n"


@asynccontextmanager
async def opened(
    server: Server, size: int = 400
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]]:
    """A WebSocket, and what the server says to a handshake."""
    assert server.websocket_endpoint is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.websocket_endpoint.port)
    writer.write(upgrade(size))
    said = b""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        said = await reader.readuntil(b"\r\n\r\n")
    yield reader, writer, said
    await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def until(reader: asyncio.StreamReader, wanted: bytes, least: int = 1) -> bool:
    """Whether the server says something so often, before it closes the connection."""
    data = b""
    while content_of(data)[0].count(wanted) < least:
        try:
            portion = await asyncio.wait_for(reader.read(1 << 16), 60)
        except ConnectionError:
            return False
        if not portion:
            return False
        data += portion
    return True


async def test_the_handshake_of_a_websocket(started: Started) -> None:
    server = await started(websocket=WebSocketDoor(), stores={})
    for size, is_enough in ((16 << 10, True), ((16 << 10) + 1, False)):
        async with opened(server, size) as (_, _, said):
            assert said.startswith(b"HTTP/1.1 101") == is_enough


async def test_frames_before_a_login(started: Started) -> None:
    server = await started(authenticator=Guarded(), websocket=WebSocketDoor(), stores={})
    login = frame(2, HELLO.replace(b"false", b"true"))
    for size, is_enough in ((8 << 10, True), ((8 << 10) + 1, False)):
        async with opened(server) as (reader, writer, _):
            left = size - len(login)
            pings = frame(9, b"x" * 94) * (left // 100 - 1)
            # Frames of control have at most 125 bytes.
            rest = left - len(pings) - 66
            writer.write(pings + frame(9, b"x" * 60) + frame(9, b"x" * (rest - 6)) + login)
            assert await until(reader, b"+OK") == is_enough


async def test_one_frame_after_a_login(started: Started) -> None:
    server = await started(authenticator=Guarded(), websocket=WebSocketDoor(), stores={})
    largest = 1000 + (1 << 20)
    message = b"PUB a 900\r\n" + bytes(900) + b"\r\n"
    for size, is_enough in ((largest, True), (largest + 6, False)):
        async with opened(server) as (reader, writer, _):
            writer.write(frame(2, HELLO + b"PING\r\n"))
            assert await until(reader, b"PONG")
            messages = size // len(message)
            # So many that pings fill what is left.
            messages -= next(less for less in range(6) if (size - (messages - less) * len(message)) % 6 == 0)
            pings = (size - messages * len(message)) // 6
            writer.write(frame(2, message * messages + b"PING\r\n" * pings))
            assert await until(reader, b"PONG", pings) == is_enough


# --- what waits


@pytest.mark.parametrize("over", [0, 1])
async def test_what_waits_to_be_read(over: int, started: Started) -> None:
    server = await started(stores={}, max_payload=1000, max_pending=5000)
    async with raw_client(server.endpoints[0].port) as client:
        client.sub("a", "1")
        await client.settle()
        one = held(server)
        # MSG a 1 985, and its payload: 1,000 bytes.
        one.receive((b"PUB a 985\r\n" + bytes(985) + b"\r\n") * 5)
        assert one.pending_bytes == 5000
        if over:
            one.receive(b"PUB a 0\r\n\r\n")
        assert (one.state == "closed") == bool(over)
        assert server.roster.totals.slow_consumers == over


@pytest.mark.parametrize(("bound", "most"), [("_MOST_WAITING", 4), ("_MOST_BYTES", 40)])
async def test_what_waits_for_the_store(
    bound: str, most: int, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, bound, most)
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        one, message = held(server), b"PUB s 10\r\n0123456789\r\n"
        one.receive(message * 4)
        assert is_read(one)
        one.receive(message)
        assert not is_read(one)
        await again(one)
        assert '"last_seq": 5' in await client.request("$JS.API.STREAM.INFO.S")


async def test_subscriptions_that_other_processes_do_not_know(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interests, "_MOST_WAITING", 4)
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await client.settle()
        one = held(server)
        for number in range(4):
            one.receive(b"SUB a.%d g %d\r\n" % (number, number))
        assert is_read(one)
        one.receive(b"SUB a.4 g 4\r\n")
        assert not is_read(one)
        await again(one)
        assert await client.settle() == []


# --- what is remembered


def test_lines_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_KNOWN_LINES", 4)
    for size, is_known in ((128, True), (129, False)):
        lines = KnownLines()
        parser = Parser(lines=lines)
        subject = "a" * (size - len("PUB  0\r"))
        for _ in range(3):
            assert parser.feed(f"PUB {subject} 0\r\n\r\n".encode()) == [Pub(subject, "", b"")]
        assert bool(lines.meanings) == is_known
    for number in range(20):
        parser.feed(b"PUB %d 0\r\n\r\n" % number * 2)
        assert len(lines.meanings) <= 4
        assert len(lines._seen) <= 4


async def test_subjects_that_are_remembered(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_REMEMBERED", 4)
    server = await started(stores={})
    async with raw_client(server.endpoints[0].port) as client:
        await client.settle()
        routes = held(server).account._routes  # type: ignore[union-attr]
        for size, is_kept in ((128, True), (129, False)):
            subject = "a" * size
            held(server).receive(f"PUB {subject} 0\r\n\r\n".encode())
            assert (subject in routes) == is_kept
        for number in range(20):
            held(server).receive(b"PUB n%d 0\r\n\r\n" % number)
            assert len(routes) <= 4


async def test_clients_that_have_left(started: Started) -> None:
    server = await started(stores={}, max_closed_clients=2)
    for count in (1, 2, 2):
        async with raw_client(server.endpoints[0].port) as client:
            await client.settle()
        while server.num_clients:
            await asyncio.sleep(0)
        assert len(server.roster.closed) == count


def test_requests_that_may_be_answered() -> None:
    rules = SubjectRules(allow=())
    rights = ClientRights(ServerUser(name="u", permissions=Permissions(publish=rules, responses=1, response_s=0.0)))
    for number in range(4096):
        rights.expect_answer(f"r.{number}", 0.0)
    assert rights.may_publish("r.0", 0.0)
    for number in range(4097):
        rights.expect_answer(f"s.{number}", 0.0)
    assert not rights.may_publish("r.4095", 0.0)
    assert not rights.may_publish("s.0", 0.0)
    assert rights.may_publish("s.1", 0.0)
    assert rights.may_publish("s.4096", 0.0)


# --- logins and reports


async def test_passwords_of_one_address() -> None:
    checks = FairChecks(1)
    assert await checks.has_turn("a")
    waiting = [asyncio.ensure_future(checks.has_turn("a")) for _ in range(256)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    waiting.append(asyncio.ensure_future(checks.has_turn("a")))
    await asyncio.sleep(0)
    assert await waiting[0] is False
    await asyncio.sleep(0)
    assert [each.done() for each in waiting] == [True] + [False] * 256
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def report(server: Server, request: bytes) -> bytes:
    assert server.monitoring_endpoint is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.monitoring_endpoint.port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        await closed(writer)


async def test_requests_for_reports(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await started(stores={}, monitoring=Endpoint(port=-1))
    for size, is_answered in ((16 << 10, True), ((16 << 10) + 5, False)):
        head = b"GET /varz HTTP/1.0\r\nX: "
        request = head + b"x" * (size - len(head)) + b"\r\n\r\n"
        assert (b"200 OK" in await report(server, request)) == is_answered
    monkeypatch.setattr(answers, "_PATIENCE_S", 0.01)
    assert await report(server, b"GET /varz HTTP/1.0\r\n") == b""


# --- requests


@pytest.mark.parametrize(("subject", "body"), [("STREAM.INFO.S", ""), ("DIRECT.GET.S", '{"seq":77}')])
async def test_requests_that_are_answered_together(
    started: Started, monkeypatch: pytest.MonkeyPatch, subject: str, body: str
) -> None:
    """What one client asks for is answered some at a time, however much it asks for at once."""
    server, most = await started(), 0
    begin = OpenRequests.begin

    def counted(requests: OpenRequests, client: ClientConnection) -> None:
        nonlocal most
        begin(requests, client)
        most = max(most, requests._open[client])

    monkeypatch.setattr(OpenRequests, "begin", counted)
    async with raw_client(server.endpoints[0].port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
        client.sub("in.*", "1")
        await client.settle()
        many = 5 * link._MOST_REQUESTS
        lines = (f"PUB $JS.API.{subject} in.{number} {len(body)}\r\n{body}".encode() for number in range(many))
        held(server).receive(b"".join(line + b"\r\n" for line in lines))
        assert {one.split()[1] for one in await client.take(many)} == {f"in.{number}" for number in range(many)}
        assert most == link._MOST_REQUESTS
        assert not held(server).is_held
