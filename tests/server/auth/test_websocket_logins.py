"""Who is let in by WebSocket: the real server with the same configuration is asked the same."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from pelton.server.identity import Credentials, ServerUser
from pelton.server.settings.grammar import SettingsError
from pelton.server.users import ConfiguredUsers
from tests.kit.nats_server import NatsServerError, nats_server
from tests.kit.served import config_of, served_store
from tests.server.auth.test_certificates import certificate_authority, signed_certificate

SINGLE = "authorization {user: ann, password: a}"
USERS = "authorization {users: [{user: ann, password: a}, {user: bob, password: b}]}"
CLIENTS: tuple[dict[str, str], ...] = (
    {},
    {"user": "ann", "pass": "a"},
    {"user": "bob", "pass": "b"},
    {"user": "ann", "pass": "x"},
    {"auth_token": "t"},
    {"auth_token": "w"},
)
# What the server says, and its websocket block, which listens.
CASES = [
    (main, block)
    for main in ("", SINGLE, f"{USERS}\nno_auth_user: ann")
    for block in (
        "",
        "authorization {timeout: 1}",
        "authorization {token: w}",
        "authorization {user: bob, password: b}",
        "no_auth_user: bob",
    )
] + [
    (USERS, "no_auth_user: nobody"),
    (USERS, "authorization {users: [{user: zoe, password: z}]}"),
    ("", "authorization {default_permissions: {publish: a}}"),
]


def websocket(port: int, block: str) -> str:
    return f"websocket {{ host: 127.0.0.1, port: {port}, no_tls: true\n{block}\n}}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, fields: dict[str, str], context: ssl.SSLContext | None = None) -> tuple[bool, bool]:
    """Return whether a client is let in, and whether it was told that it has to show something."""
    return asyncio.run(_ask(url, fields, context))


async def _ask(url: str, fields: dict[str, str], context: ssl.SSLContext | None) -> tuple[bool, bool]:
    # Not the client on threads: it reads and writes one TLS socket from two of them, and one in fifty stands still.
    async with connect(url, ssl=context, open_timeout=60) as client:
        info = json.loads((await client.recv(decode=True)).removeprefix("INFO "))
        with suppress(ConnectionClosed):
            await client.send(
                f"CONNECT {json.dumps({'verbose': False, 'pedantic': False} | fields)}\r\nPING\r\n".encode()
            )
        answer = await client.recv(decode=True)
        assert answer.startswith(("PONG", "-ERR 'Authorization Violation'"))
        return answer.startswith("PONG"), bool(info.get("auth_required"))


def users_of(text: str) -> ConfiguredUsers | None:
    try:
        return ConfiguredUsers(config_of(text, read=lambda path: "").settings)
    except SettingsError:
        return None


def decided(users: ConfiguredUsers) -> list[bool]:
    proofs = [
        Credentials(user=each.get("user", ""), password=each.get("pass", ""), token=each.get("auth_token", ""))
        for each in CLIENTS
    ]
    by_websocket = [Credentials(kind="WEBSOCKET", user=p.user, password=p.password, token=p.token) for p in proofs]
    return [isinstance(users.identify(proof, 0.0), ServerUser) for proof in by_websocket]


def asked(folder: Path, port: int, text: str) -> list[bool] | None:
    """Ask the real server; None if it does not start."""
    try:
        with nats_server(folder, jetstream=False, extra=text):
            return [ask(f"ws://127.0.0.1:{port}/", fields)[0] for fields in CLIENTS]
    except (NatsServerError, ConnectionRefusedError):
        return None


@pytest.mark.parametrize(("main", "block"), CASES)
def test_the_block_of_websockets_decides_as_on_the_real_server(tmp_path: Path, main: str, block: str) -> None:
    port = free_port()
    text = f"{main}\n{websocket(port, block)}"
    users = users_of(text)
    assert (None if users is None else decided(users)) == asked(tmp_path, port, text)


def test_a_served_store_asks_websockets_for_what_is_theirs_alone(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "pelton.conf").write_text(websocket(port, "authorization {token: w}"))
    with served_store(None, ("-c", str(tmp_path / "pelton.conf"))):
        assert [ask(f"ws://127.0.0.1:{port}/", {"auth_token": token}) for token in "wx"] == [
            (True, True),
            (False, True),
        ]


@pytest.mark.parametrize("own", ["", "verify: true", "verify_and_map: true"])
def test_certificates_of_websockets_are_verified_and_mapped_by_their_own_block(tmp_path: Path, own: str) -> None:
    for name in ("main", "other"):
        certificate_authority(tmp_path, name)
    signed_certificate(tmp_path, "main", "server", "/CN=server", "IP:127.0.0.1")
    signed_certificate(tmp_path, "other", "eve", "/CN=x", "email:ann@example.com")
    pair = f"cert_file: '{tmp_path}/server.pem', key_file: '{tmp_path}/server.key'"
    port = free_port()
    text = f"""
        tls {{ {pair}, ca_file: '{tmp_path}/main.pem', verify_and_map: true }}
        authorization {{ users: [{{user: ann@example.com, password: a}}, {{user: bob, password: b}}] }}
        websocket {{ host: 127.0.0.1, port: {port}, tls {{ {pair}, ca_file: '{tmp_path}/other.pem', {own} }} }}
        """
    (tmp_path / "pelton.conf").write_text(text)
    context = ssl.create_default_context(cafile=str(tmp_path / "main.pem"))
    context.load_cert_chain(tmp_path / "eve.pem", tmp_path / "eve.key")
    clients: tuple[dict[str, Any], ...] = ({}, {"user": "bob", "pass": "b"}, {"user": "bob", "pass": "a"})

    def answers() -> list[bool]:
        return [ask(f"wss://127.0.0.1:{port}/", fields, context)[0] for fields in clients]

    with nats_server(tmp_path / "real", jetstream=False, extra=text):
        real = answers()
    with served_store(None, ("-c", str(tmp_path / "pelton.conf"))):
        assert answers() == real == ([False, False, True] if "map" in own else [False, True, False])
