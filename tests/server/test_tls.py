"""TLS: greeted before the handshake or after it, certificates of clients, and clients that never finish."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import nats
import nats.errors
import pytest

import pelton
from pelton.server import TlsDoor, WebSocketDoor, tls_context
from tests.cluster.people import Certificates
from tests.server.conftest import Started
from tests.server.raw import PLAIN, RawClient


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


def door(certificates: Certificates, **options: object) -> TlsDoor:
    cert, key = certificates.server
    verify = bool(options.get("verify"))
    return TlsDoor(context=tls_context(str(cert), str(key), ca_file=str(certificates.ca), verify=verify), **options)


def trusting(certificates: Certificates, *, shows: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if shows:
        context.load_cert_chain(*map(str, certificates.client))
    return context


@pytest.mark.parametrize("first", [False, True, 0.2])
async def test_clients_use_tls(first: bool | float, started: Started, certificates: Certificates) -> None:
    server = await started(tls=door(certificates, first=first))
    port = server.endpoints[0].port
    for handshake_first in [first] if isinstance(first, bool) else [False, True]:
        client = await nats.connect(
            f"tls://localhost:{port}",
            tls=trusting(certificates),
            tls_handshake_first=handshake_first,
            allow_reconnect=False,
        )
        subscription = await client.subscribe("a")
        await client.publish("a", bytes(200_000))
        assert len((await subscription.next_msg(5)).data) == 200_000
        await client.close()


async def test_pelton_is_a_client(started: Started, certificates: Certificates) -> None:
    server = await started(tls=door(certificates))
    address = f"tls://localhost:{server.endpoints[0].port}"
    async with pelton.open(address, tls_ca=certificates.ca) as jet:
        stream = await jet.create_stream("S", subjects=["s"])
        await jet.publish("s", b"x")
        assert (await stream.get_message(1)).data == b"x"


async def test_certificates_of_clients(started: Started, certificates: Certificates) -> None:
    server = await started(tls=door(certificates, verify=True))
    address = f"tls://localhost:{server.endpoints[0].port}"
    client = await nats.connect(address, tls=trusting(certificates, shows=True), allow_reconnect=False)
    await client.flush()
    await client.close()
    with pytest.raises((OSError, nats.errors.Error)):
        await nats.connect(address, tls=trusting(certificates), allow_reconnect=False, connect_timeout=2)


async def test_who_never_shakes_hands_is_let_go(started: Started, certificates: Certificates) -> None:
    server = await started(tls=door(certificates, timeout=0.2))
    port = server.endpoints[0].port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert b'"tls_required":true' in await reader.readline()
    assert await reader.read() == b""
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(b"CONNECT {}\r\nPING\r\n")
    assert b"PONG" not in await reader.read()
    writer.close()
    assert server.num_clients == 0


async def test_a_quick_client(started: Started, certificates: Certificates) -> None:
    """One that does not wait for the greeting: its handshake is never taken for a command."""
    server = await started(tls=door(certificates))
    for _ in range(5):
        reader, writer = await asyncio.open_connection("localhost", server.endpoints[0].port, family=2)
        await reader.readline()
        await writer.start_tls(trusting(certificates), server_hostname="localhost")
        client = RawClient(reader, writer)
        client.send(f"CONNECT {PLAIN}")
        assert await client.settle() == []
        await client.close()


def test_files_that_cannot_be_used(tmp_path: Path, certificates: Certificates) -> None:
    with pytest.raises(pelton.ConfigError, match="does not exist"):
        tls_context("nowhere.pem", "nowhere.key")
    (tmp_path / "x.pem").write_text("no certificate")
    with pytest.raises(pelton.ConfigError, match="cannot be used"):
        tls_context(str(tmp_path / "x.pem"), str(tmp_path / "x.pem"))


@pytest.mark.parametrize("kind", ["tls", "websocket"])
async def test_handshakes_count_as_connections(kind: str, started: Started, certificates: Certificates) -> None:
    own = {"tls": door(certificates, first=True, timeout=60.0)}
    server = await started(max_connections=2, **own if kind == "tls" else {"websocket": WebSocketDoor(timeout=60.0)})
    where = server.endpoints[0] if kind == "tls" else server.websocket_endpoint
    assert where is not None
    silent = [await asyncio.open_connection("127.0.0.1", where.port) for _ in range(2)]
    reader, writer = await asyncio.open_connection("127.0.0.1", where.port)
    assert await reader.read() == b""
    writer.close()
    for begun, ended in silent:
        ended.write(b"no handshake\r\n\r\n")
        await begun.read()
        ended.close()
    # They are gone, and make room.
    _, writer = await asyncio.open_connection("127.0.0.1", where.port)
    while not server._shaking:  # nobody else is told
        await asyncio.sleep(0)
    writer.close()
