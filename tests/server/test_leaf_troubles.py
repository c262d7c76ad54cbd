"""Hubs that go away, refuse, lead back, or send odd bytes: the store works on, and the reason is told."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import nats
import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg

from pelton.runtime import system_runtime
from pelton.server import Server
from pelton.server.reports import REPORTS, ReportParameters
from pelton.server.settings.options import LeafRemoteConfig, TlsConfig
from tests.cluster.network import network
from tests.cluster.people import Certificates
from tests.conformance.cases.eventually import eventually
from tests.kit.nats_server import free_ports, nats_server
from tests.kit.served import served_store
from tests.server.auth.keys import Key, account_jwt, jwt, user_jwt
from tests.server.conftest import Started
from tests.server.test_leaf import linked

Remotes = tuple[LeafRemoteConfig, ...]
ClientOf = Callable[[Server], Awaitable[Client]]


@pytest.fixture
async def client_of() -> AsyncIterator[ClientOf]:
    clients: list[Client] = []

    async def connect(server: Server) -> Client:
        clients.append(await nats.connect(f"nats://{server.endpoints[0]}", allow_reconnect=False))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


def remotes(*ports: int, **options: object) -> Remotes:
    return tuple([LeafRemoteConfig(urls=(f"nats://127.0.0.1:{port}",), reconnect=0.02, **options) for port in ports])


def listening(port: int, more: str = "") -> str:
    return f'leafnodes {{ listen: "127.0.0.1:{port}" {more} }}'


async def told(server: Server) -> list[str]:
    """Return the state of each hub: "" while it is connected, else why not."""
    report = await REPORTS["varz"](server, ReportParameters({}))
    return [remote.get("reason", "") for remote in report["leaf"]["remotes"]]


async def becomes(server: Server, *reasons: str) -> None:
    async def is_so() -> bool:
        found = await told(server)
        return len(found) == len(reasons) and all(
            (one in other) if one else not other for one, other in zip(reasons, found, strict=True)
        )

    try:
        await eventually(is_so, True)
    except AssertionError:
        raise AssertionError(await told(server)) from None


async def works(server: Server) -> None:
    """Assert that the store works."""
    async with await nats.connect(f"nats://{server.endpoints[0]}") as client:
        js = client.jetstream()
        await js.add_stream(name="works", subjects=["works"])
        assert (await js.publish("works", b"x")).stream == "works"
        await js.delete_stream("works")


async def test_a_hub_that_comes_and_goes(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = await started(leaf_remotes=remotes(port), domain="edge")
    await works(server)
    await becomes(server, "Connect call failed")
    edge = await client_of(server)
    for _ in range(2):
        with nats_server(tmp_path / "hub", domain="hub", extra=listening(port)) as hub:
            async with await nats.connect(hub.url) as client:
                await linked(edge, client)
                await becomes(server, "")
        await becomes(server, "Connect call failed")
        await works(server)


async def test_a_wire_that_is_cut(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    """Interest is shared anew each time: what ended meanwhile has ended, what began is there."""
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", extra=listening(port)) as hub:
        async with network(port) as net, await nats.connect(hub.url) as client:
            server = await started(leaf_remotes=remotes(net.port))
            edge = await client_of(server)
            await linked(edge, client)
            for number in range(5):
                net.cut()
                heard = await edge.subscribe(f"new.{number}")
                await edge.flush()
                net.mend()
                await linked(edge, client)
                await client.publish(f"new.{number}", b"x")
                assert (await heard.next_msg(5)).data == b"x"
                assert server.leafs.all[0].account.leaf is not None
                assert len(server.leafs.all[0].account.leaf.hubs) == 1


async def test_a_hub_that_does_not_answer_is_left(started: Started, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", extra=listening(port)):
        async with network(port) as net:
            server = await started(leaf_remotes=remotes(net.port), ping_interval=0.2, ping_max=1)
            await becomes(server, "")
            net.silence()
            await becomes(server, "does not answer")
            net.mend()
            await becomes(server, "")


@pytest.mark.parametrize("jetstream", [True, False])
async def test_a_hub_with_or_without_jetstream(
    jetstream: bool, started: Started, client_of: ClientOf, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", jetstream=jetstream, extra=listening(port)) as hub:
        server = await started(leaf_remotes=remotes(port), domain="edge")
        edge = await client_of(server)
        async with await nats.connect(hub.url) as client:
            await linked(edge, client)
            await edge.jetstream().add_stream(name="S", subjects=["s"])
            assert (await client.jetstream(domain="edge").stream_info("S")).config.name == "S"


# --- who this server is


async def test_users_and_their_accounts(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    accounts = "accounts { A { users: [{user: a, password: 'p:@1'}] }, B { users: [{user: b, password: b}] } }"
    with nats_server(tmp_path / "hub", jetstream=False, extra=f"{accounts}\n{listening(port)}") as hub:
        given = LeafRemoteConfig(urls=(f"nats://a:p%3A%401@127.0.0.1:{port}",), reconnect=0.02)
        wrong = LeafRemoteConfig(urls=(f"nats://a:wrong@127.0.0.1:{port}",), account="OTHER", reconnect=0.02)
        server = await started(leaf_remotes=(given, wrong), accounts=_accounts("OTHER"))
        await becomes(server, "", "Authorization Violation")
        edge = await client_of(server)
        async with await nats.connect(hub.url, user="a", password="p:@1") as client:
            await linked(edge, client)
        await works(server)


def _accounts(*names: str) -> dict[str, object]:
    from pelton.server.settings.options import AccountConfig

    return {name: AccountConfig(name=name) for name in names}


async def test_nkeys(started: Started, tmp_path: Path) -> None:
    import nkeys

    seed = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
    public = nkeys.from_seed(bytearray(seed.encode())).public_key.decode()
    (port,) = free_ports(1)
    extra = listening(port, f", authorization {{ nkey: {public} }}")
    (tmp_path / "seed").write_text(f"{seed}\n")
    with nats_server(tmp_path / "hub", jetstream=False, extra=extra):
        server = await started(leaf_remotes=remotes(port, nkey=str(tmp_path / "seed")))
        await becomes(server, "")


async def test_a_credentials_file(started: Started, tmp_path: Path) -> None:
    operator, account, user = Key("operator"), Key("account"), Key("user")
    now = system_runtime().clock.now() // 10**9 - 10
    preload = f"{account.public}: {account_jwt(operator, account, iat=now)}"
    operated = f"operator: {jwt(operator, operator.public, 'operator', iat=now)}\nresolver: MEMORY\n"
    (port,) = free_ports(1)
    extra = f"{operated}resolver_preload: {{ {preload} }}\n{listening(port)}"
    body = f"-----BEGIN NATS USER JWT-----\n{user_jwt(account, user, iat=now)}\n------END NATS USER JWT------\n\n"
    seed = f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    (tmp_path / "edge.creds").write_text(f"{body}************ IMPORTANT ************\n{seed}")
    with nats_server(tmp_path / "hub", jetstream=False, extra=extra):
        server = await started(leaf_remotes=remotes(port, credentials=str(tmp_path / "edge.creds")))
        await becomes(server, "")


async def test_what_leafz_tells(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    """The fields of a nats-server that is a leaf node of the same hub, and what the hub has asked for."""
    (port, monitoring) = free_ports(2)
    remote = f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}", deny_exports: ["b.>"] }}] }}'
    with (
        nats_server(tmp_path / "hub", jetstream=False, extra=listening(port)) as hub,
        nats_server(tmp_path / "edge", jetstream=False, extra=f"{remote}\nserver_name: edge\nhttp: {monitoring}"),
    ):
        server = await started(leaf_remotes=remotes(port, deny_exports=("b.>",)))
        await becomes(server, "")
        async with await nats.connect(hub.url) as client:
            await client.subscribe("orders.new")
            await linked(await client_of(server), client)

            def theirs(path: str) -> Any:
                return json.loads(urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/{path}").read())

            told = await asyncio.to_thread(theirs, "leafz?subs=1")
            [hub_there] = told["leafs"]
            [hub_here] = (await REPORTS["leafz"](server, ReportParameters({"subs": "1"})))["leafs"]
            assert hub_here.keys() == hub_there.keys()
            assert "orders.new" in hub_here["subscriptions_list"]
            assert hub_here["rtt"] != "0s"
            [remote_there] = (await asyncio.to_thread(theirs, "varz"))["leaf"]["remotes"]
            [remote_here] = (await REPORTS["varz"](server, ReportParameters({})))["leaf"]["remotes"]
            assert remote_there.items() <= remote_here.items()


@pytest.mark.parametrize("first", [False, True])
async def test_tls(first: bool, started: Started, tmp_path: Path) -> None:
    made = Certificates(tmp_path / "certificates")
    (port,) = free_ports(1)
    cert, key = made.server
    tls = f'cert_file: "{cert}", key_file: "{key}", ca_file: "{made.ca}", verify: true, handshake_first: {first}'
    shown = TlsConfig(
        ca_file=str(made.ca), cert_file=str(made.client[0]), key_file=str(made.client[1]), handshake_first=first
    )
    with nats_server(tmp_path / "hub", jetstream=False, extra=listening(port, f", tls {{ {tls} }}")):
        too_early = replace(shown, handshake_first=True)
        accounts = {"$G": shown, "B": TlsConfig(handshake_first=first), "C": too_early}
        tried = [replace(each, account=name) for name, tls in accounts.items() for each in remotes(port, tls=tls)]
        server = await started(leaf_remotes=tuple(tried), accounts=_accounts("B", "C"))
        await becomes(server, "", "certificate verify failed", "" if first else "does not begin with TLS")
        await works(server)


async def test_an_address_that_is_none(started: Started) -> None:
    odd = tuple([LeafRemoteConfig(urls=(url,), reconnect=0.02) for url in ("nats://hub:99999", "nats://no.such.host.")])
    server = await started(leaf_remotes=odd)
    await becomes(server, "ort", " ")
    await works(server)


async def test_credentials_that_cannot_be_read(started: Started, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "odd").write_text("nothing")
    with nats_server(tmp_path / "hub", jetstream=False, extra=listening(port)):
        odd = remotes(port, credentials=str(tmp_path / "odd")) + remotes(port, credentials=str(tmp_path / "none"))
        server = await started(leaf_remotes=odd)
        await becomes(server, "hold no user JWT", "cannot be read")
        await works(server)


async def test_what_the_hub_lets_cross(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    rules = "permissions: { publish: { deny: ['no.out'] }, subscribe: { deny: ['no.in'] } }"
    extra = f"accounts {{ A {{ users: [{{user: a, password: a, {rules}}}, {{user: c, password: c}}] }} }}\n"
    with nats_server(tmp_path / "hub", jetstream=False, extra=extra + listening(port)) as hub:
        given = LeafRemoteConfig(urls=(f"nats://a:a@127.0.0.1:{port}",), reconnect=0.02)
        server = await started(leaf_remotes=(given,))
        edge = await client_of(server)
        async with await nats.connect(hub.url, user="c", password="c") as client:
            heard = await client.subscribe("no.out"), await client.subscribe("yes")
            await edge.subscribe("no.in")
            await linked(edge, client)
            await edge.publish("no.out", b"")
            await edge.publish("yes", b"")
            await heard[1].next_msg(5)
            await linked(edge, client)
            assert heard[0].pending_msgs == 0
            assert server.leafs.all[0].connects == 1


# --- ways that lead back


async def test_two_ways_to_one_hub(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", extra=listening(port)) as hub:
        server = await started(leaf_remotes=remotes(port))
        await becomes(server, "")
        # Another process with the same store: what a hub sends would be stored twice.
        second = await started(leaf_remotes=remotes(port))
        await becomes(second, "leads back to this store")
        edge = await client_of(server)
        async with await nats.connect(hub.url) as client:
            await linked(edge, client)
            js = edge.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            await linked(edge, client)
            await client.request("s", b"x")
            await linked(edge, client)
            assert (await js.stream_info("S")).state.messages == 1
        await becomes(server, "")
        assert server.leafs.all[0].connects == 1


async def test_clients_of_another_server_of_the_file(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    """The one that is the leaf node tells its hub what they want; what another hub wants, it does not."""
    one, two = free_ports(2)
    with (
        nats_server(tmp_path / "1", jetstream=False, extra=listening(one)) as hub,
        nats_server(tmp_path / "2", jetstream=False, extra=listening(two)) as apart,
    ):
        server, other = await started(leaf_remotes=remotes(one)), await started()
        with_hub = await started(leaf_remotes=remotes(two))
        await becomes(server, "")
        await becomes(with_hub, "")
        edge, far = await client_of(server), await client_of(other)
        async with await nats.connect(hub.url) as client, await nats.connect(apart.url) as stranger:
            await stranger.subscribe("other.hub")
            await linked(await client_of(with_hub), stranger)
            heard = await far.subscribe("news.>")

            async def answer(message: Msg) -> None:
                await message.respond(b"yes")

            service = await far.subscribe("far.service", cb=answer)
            await client.subscribe("hub.service", cb=answer)
            await linked(far, client)
            await linked(edge, client)
            await client.publish("news.1", b"x")
            assert (await heard.next_msg(5)).data == b"x"
            for asks, subject in ((client, "far.service"), (edge, "far.service"), (far, "hub.service")):
                for _ in range(2):
                    assert (await asks.request(subject, b"", timeout=5)).data == b"yes", subject
            told = (await REPORTS["leafz"](server, ReportParameters({"subs": "1"})))["leafs"]
            assert len(told) == 1
            await service.unsubscribe()
            await far.flush()
            for subject in ("far.service", "other.hub"):

                async def is_unheard(subject: str = subject) -> bool:
                    with suppress(nats.errors.TimeoutError):
                        try:
                            await client.request(subject, b"", timeout=0.1)
                        except nats.errors.NoRespondersError:
                            return True
                    return False

                await eventually(is_unheard, True)


async def test_two_remotes_of_one_hub(started: Started, tmp_path: Path) -> None:
    """A hub leaves a leaf node that connects again: they would take turns for ever."""
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", jetstream=False, extra=listening(port)):
        server = await started(leaf_remotes=remotes(port, port))

        async def is_one_connected() -> bool:
            return sorted("leads back" in reason for reason in await told(server) if reason) == [True]

        await eventually(is_one_connected, True)
        before = [link.connects for link in server.leafs.all]
        [other] = [link for link in server.leafs.all if not link.is_open]
        tried = other.note().attempts

        async def is_tried_again() -> bool:
            return other.note().attempts > tried + 1

        await eventually(is_tried_again, True)
        assert [link.connects for link in server.leafs.all] == before
        assert await is_one_connected()


async def test_a_group_with_members_at_two_hubs(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    """Each message goes to one of them, and each hub gets its members' share, as by a nats-server."""
    first, second = free_ports(2)
    with (
        nats_server(tmp_path / "1", domain="one", extra=listening(first)) as one,
        nats_server(tmp_path / "2", domain="two", extra=listening(second)) as two,
    ):
        leaf = await started(leaf_remotes=remotes(first, second), domain="edge")
        here, heard = await client_of(leaf), list[str]()
        async with await nats.connect(one.url) as at_one, await nats.connect(two.url) as at_two:
            await becomes(leaf, "", "")
            for name, client in (("1", at_one), ("2", at_two), ("2", at_two), ("2", at_two)):

                async def hear(_: Msg, name: str = name) -> None:
                    heard.append(name)

                await client.subscribe("work", "workers", cb=hear)
                await linked(here, client)
            for _ in range(400):
                await here.publish("work", b"")
            await here.flush()

            async def number() -> int:
                return len(heard)

            await eventually(number, 400)
            # By chance less than once in a billion runs.
            assert 50 < heard.count("1") < 160


async def test_a_hub_that_is_a_leaf_of_the_same_hub(started: Started, tmp_path: Path) -> None:
    first, second = free_ports(2)
    between = f'leafnodes {{ listen: "127.0.0.1:{second}", remotes: [{{url: "nats-leaf://127.0.0.1:{first}"}}] }}'
    with (
        nats_server(tmp_path / "hub", jetstream=False, extra=listening(first)),
        nats_server(tmp_path / "between", jetstream=False, extra=between + "\nserver_name: between"),
    ):
        server = await started(leaf_remotes=remotes(first, second))

        async def is_so() -> bool:
            good, bad = sorted(await told(server))
            return not good and "leads back" in bad

        await eventually(is_so, True)
        await works(server)


# --- hubs that are none


async def _pretending(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> asyncio.Server:
    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await answer(reader, writer)
        writer.close()

    return await asyncio.start_server(met, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no NATS server"),
        (b"INFO {}\r\n", "no port for leaf nodes"),
        (b"INFO {\r\n", "no NATS server"),
        (b"x" * 100_000, "does not greet"),
        (b"", "does not greet"),
        (b'INFO {"client_id":1,"leafnode_urls":[],"tls_required":true}\r\nLS+ >\r\n', "goes on in plain text"),
    ],
)
async def test_what_is_no_hub(greeting: bytes, reason: str, started: Started) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()

    async with await _pretending(answer) as none:
        server = await started(leaf_remotes=remotes(none.sockets[0].getsockname()[1]))
        await becomes(server, reason)
        await works(server)


async def test_the_port_for_clients_is_none_for_leafs(started: Started, tmp_path: Path) -> None:
    with nats_server(tmp_path / "hub", jetstream=False) as hub:
        server = await started(leaf_remotes=remotes(hub.port))
        await becomes(server, "no port for leaf nodes")


_HELLO = b'INFO {"server_id":"N","client_id":1,"headers":true,"leafnode_urls":[],"info_on_connect":true}\r\n'
_PIECES = (
    *(b"LS+ ", b"LS- ", b"LMSG ", b"HMSG ", b"INFO ", b"-ERR ", b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"\r\n", b" "),
    *(b"> ", b"a ", b"$JS.API.STREAM.CREATE.X ", b"$JS.ACK.works.d.1.1.1.1.1 ", b"_INBOX.x ", b"| q ", b"+ r q "),
    *(b"0\r\n\r\n", b"1\r\nx\r\n", b"18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n", b"5", b"-1", b"\xff", b"{}", b"@a "),
)


@pytest.mark.parametrize("seed", range(3))
async def test_odd_bytes_of_a_hub(seed: int, started: Started) -> None:
    """A hub that sends odd bytes is left, and the store works on."""
    random, met = Random(seed), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        writer.write(_HELLO)
        await reader.readuntil(b"PING\r\n")
        writer.write(random.choice((b"", b"LS+ >\r\nPONG\r\n", b"LS+ a q 1\r\nPONG\r\n")))
        writer.write(b"".join(random.choices(_PIECES, k=random.randrange(1, 30))))
        await writer.drain()
        met += 1

    async with await _pretending(answer) as odd:
        config = LeafRemoteConfig(urls=(f"nats://127.0.0.1:{odd.sockets[0].getsockname()[1]}",), reconnect=0.0001)
        server = await started(leaf_remotes=(config,), domain="edge")

        async def is_met() -> bool:
            return met >= 60

        await eventually(is_met, True)
        await works(server)
        assert server.leafs.all[0].account.leaf is not None
        assert len(server.leafs.all[0].account.leaf.hubs) <= 1


# --- when a side is slow, or is killed


async def test_a_hub_that_does_not_read_is_cut(started: Started, client_of: ClientOf, tmp_path: Path) -> None:
    """What waits for it is bounded, and clients of the edge notice nothing."""
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", jetstream=False, extra=listening(port)) as hub:
        server = await started(leaf_remotes=remotes(port), max_pending=4 << 20)
        edge = await client_of(server)
        async with await nats.connect(hub.url) as client:
            heard = await client.subscribe("flood")
            await linked(edge, client)
            hub.pause()
            try:
                for _ in range(40):
                    await edge.publish("flood", bytes(500_000))
                await becomes(server, "")
            except AssertionError:
                pass
            finally:
                hub.resume()
            await linked(edge, client)
            await heard.unsubscribe()
        assert server.leafs.all[0].connects == 2


async def test_a_leaf_that_is_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flags = ("--leaf", f"nats://127.0.0.1:{port}", "--domain", "edge", "-m", "-1")
    with nats_server(tmp_path / "hub", domain="hub", extra=listening(port)) as hub:
        async with await nats.connect(hub.url) as client:
            stored = 0
            for _ in range(3):
                with served_store(tmp_path / "edge.pelton", flags) as leaf:
                    async with await nats.connect(leaf.url) as edge:
                        await edge.jetstream().add_stream(name="S", subjects=["s"])
                        await linked(edge, client)
                        for _ in range(5):
                            ack = json.loads((await client.request("s", b"x", timeout=5)).data)
                            stored = max(stored, ack["seq"])
                    leaf.kill()
            assert stored == 15
