"""Clients that flood, never read, fall silent, or send what is no command: the server stays up and serves others."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pelton
from pelton.api import ConfigError
from pelton.server import Endpoint, ServerSettings, StoreSettings, connection
from pelton.server.identity import Credentials, LoginRefusal, Permissions, ServerUser, SubjectRules
from pelton.server.settings.options import AccountConfig
from tests.server.conftest import Connected, Started, settled
from tests.server.raw import raw_client


async def test_a_client_that_never_reads_is_cut_and_others_are_served(started: Started, connected: Connected) -> None:
    server = await started(max_pending=2 << 20)
    _reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port, limit=1)
    writer.write(b'CONNECT {"verbose":false}\r\nSUB flood 1\r\nPING\r\n')
    publisher = await connected(server)
    witness = await publisher.subscribe("flood")
    while server.num_clients < 2:
        await asyncio.sleep(0)
    await settled(publisher)
    before = server.num_clients
    sent = 0
    while server.num_clients == before and sent < 400:
        await publisher.publish("flood", bytes(100_000))
        await settled(publisher)
        sent += 1
    assert server.num_clients == before - 1
    for _ in range(sent):
        assert len((await witness.next_msg(5)).data) == 100_000
    writer.close()


async def test_a_client_that_floods_leaves_others_their_turn(started: Started) -> None:
    server = await started()
    port = server.endpoints[0].port
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b'CONNECT {"verbose":false}\r\n')
    over = False

    async def flood() -> None:
        while not over:
            writer.write(b"PUB nobody 1000\r\n" + bytes(1000) + b"\r\n")
            await writer.drain()

    flooding = asyncio.ensure_future(flood())
    async with raw_client(port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for number in range(1, 51):
            assert f'"seq": {number}' in await client.request("s", "x")
    over = True
    await flooding
    writer.close()


async def test_what_one_client_sends_at_once_leaves_others_their_turn(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each command took longer than a client may have the loop."""
    monkeypatch.setattr(connection, "_TURN_S", -1.0)
    server = await started(stores={})
    async with raw_client(server.endpoints[0].port) as client, raw_client(server.endpoints[0].port) as other:
        await client.settle()
        await other.settle()
        flooding = server.clients[0]
        client.sub("a", "1")
        for number in range(500):
            client.send(f"UNSUB {number}x", b"PUB a 3\r\n%03d" % number)
        while not flooding.in_msgs:
            await asyncio.sleep(0)
        await other.settle()
        assert flooding.in_msgs < 500
        assert await client.settle() == [f"1 a - [] b'{number:03}'" for number in range(500)]


async def test_long_subjects_are_not_remembered(started: Started) -> None:
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 1})
        client.sub("a.>", "1")
        await client.settle()
        tracemalloc.start()
        try:
            for number in range(500):
                for begin in ("a", "s", "n"):
                    client.pub(f"{begin}.{number}." + "x" * 2000)
                    client.pub(f"{begin}." + "x" * 2000 + f".{number}")
                await client.settle()
            held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/pelton/*")])
        finally:
            tracemalloc.stop()
    # Their text alone is 6 MB.
    assert sum(each.size for each in held.statistics("filename")) < 1_000_000


async def test_what_floods_a_stream_is_read_as_fast_as_it_is_stored(started: Started) -> None:
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "max_msgs": 1000})
        for _ in range(60):
            client.send(b"PUB s 10\r\n0123456789\r\n" * 1000)
        await client.settle()
        info = await client.request("$JS.API.STREAM.INFO.S")
        assert '"last_seq": 60000' in info


async def test_a_silent_client_is_stale(started: Started) -> None:
    server = await started(ping_interval=0.05, ping_max=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false}\r\n')
    assert await reader.readline() == b"PING\r\n"
    assert await reader.read() == b"-ERR 'Stale Connection'\r\n"
    writer.close()


async def test_no_more_connections_than_allowed(started: Started) -> None:
    server = await started(max_connections=1)
    async with raw_client(server.endpoints[0].port) as client:
        assert await client.settle() == []
        async with raw_client(server.endpoints[0].port, "") as other:
            assert await other.take(2) == ["-ERR maximum connections exceeded", "END"]
        assert await client.settle() == []


async def test_no_more_subscriptions_than_allowed(started: Started) -> None:
    server = await started(max_subscriptions=2)
    async with raw_client(server.endpoints[0].port) as client:
        for number in range(3):
            client.sub(f"a{number}", f"{number}")
        assert await client.settle() == ["-ERR maximum subscriptions exceeded"]


class OneUser:
    """Lets one user in, who may do little."""

    def is_required(self, kind: str = "STANDARD") -> bool:
        return True

    wants_nonce = True

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        return LoginRefusal("nobody is anonymous")

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        if credentials.user != "me" or not credentials.nonce:
            return LoginRefusal("the user is not known")
        return ServerUser(
            name="me",
            permissions=Permissions(
                publish=SubjectRules(allow=("ok.>", "_INBOX.>")),
                subscribe=SubjectRules(allow=("ok.>", "work group"), deny=("ok.secret",)),
            ),
        )


class BrokenDoor(OneUser):
    """Fails."""

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        raise RuntimeError("broken")


async def test_an_authenticator_that_fails_lets_nobody_in(started: Started) -> None:
    server = await started(authenticator=BrokenDoor())
    async with raw_client(server.endpoints[0].port, '{"user":"me","verbose":false}') as client:
        assert await client.take(2) == ["-ERR Authorization Violation", "END"]


async def test_permissions(started: Started) -> None:
    server = await started(authenticator=OneUser(), auth_timeout=1.5)
    port = server.endpoints[0].port
    async with raw_client(port, '{"user":"you","verbose":false}') as client:
        assert await client.take(2) == ["-ERR Authorization Violation", "END"]
    async with raw_client(port, "") as client:
        client.pub("ok.a")
        assert await client.take(2) == ["-ERR Authorization Violation", "END"]
    async with raw_client(port, "") as client:
        assert await client.take(2) == ["-ERR Authentication Timeout", "END"]
    async with raw_client(port, '{"user":"me","verbose":false}') as client:
        client.sub("ok.>", "1")
        client.sub("other", "2")
        client.sub("work", "3")
        client.sub("work", "4", "group")
        client.pub("ok.a", "x")
        client.pub("ok.secret", "x")
        client.pub("no", "x")
        assert await client.settle() == [
            '-ERR Permissions Violation for Subscription to "other"',
            '-ERR Permissions Violation for Subscription to "work"',
            "1 ok.a - [] b'x'",
            '-ERR Permissions Violation for Publish to "no"',
        ]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"PUB a 3\r\nabc\r\n", b"SUB > 1\r\n", b"PING\r\n", b"\r\n"]))
)
def test_nonsense_ends_a_connection_and_nothing_else(portions: list[bytes]) -> None:
    asyncio.run(_nonsense(portions))


async def _nonsense(portions: list[bytes]) -> None:
    from pelton.runtime import system_runtime
    from pelton.server import Server

    server = Server(ServerSettings(endpoints=(Endpoint(port=-1),)), system_runtime())
    await server.start()
    try:
        port = server.endpoints[0].port
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for portion in portions:
            writer.write(portion)
        async with raw_client(port) as client:
            client.sub("still", "1")
            client.pub("still", "here")
            assert await client.settle() == ["1 still - [] b'here'"]
        writer.close()
    finally:
        await server.close()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_payload"):
        ServerSettings(max_payload=0)
    with pytest.raises(ConfigError, match="max_pending"):
        ServerSettings(max_pending=10)
    with pytest.raises(ConfigError, match="place to listen"):
        ServerSettings(endpoints=())
    assert StoreSettings(path="x").sync == "commit"


async def test_a_port_that_is_taken(started: Started) -> None:
    server = await started()
    with pytest.raises(ConfigError, match="cannot listen on 127"):
        await started(endpoints=(server.endpoints[0],), stores={})


async def test_ipv6(started: Started) -> None:
    try:
        server = await started(endpoints=(Endpoint(host="::1", port=-1),))
    except ConfigError:
        pytest.skip("there is no IPv6 here")
    reader, writer = await asyncio.open_connection("::1", server.endpoints[0].port)
    assert (await reader.readline()).startswith(b"INFO ")
    writer.close()


@pytest.mark.parametrize("way", ["same", "symbolic", "dangling", "hard", "folder"])
async def test_two_accounts_never_share_a_file(way: str, started: Started, tmp_path: Path) -> None:
    first, other = tmp_path / "A.pelton", tmp_path / "B.pelton"
    if way != "dangling":
        async with pelton.open(first):
            pass
    if way == "same":
        other = tmp_path / "x" / ".." / "A.pelton"
        (tmp_path / "x").mkdir()
    elif way == "folder":
        (tmp_path / "link").symlink_to(tmp_path)
        other = tmp_path / "link" / "A.pelton"
    elif way == "hard":
        other.hardlink_to(first)
    else:
        other.symlink_to(first)
    stores = {"A": StoreSettings(path=str(first)), "B": StoreSettings(path=str(other))}
    with pytest.raises(ConfigError, match="accounts 'A' and 'B' would share one file"):
        await started(stores=stores, accounts={name: AccountConfig(name=name) for name in "AB"})
