"""SIGHUP: what changes while the server runs, and what is refused with all as it was."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from msgspec.structs import replace
from websockets.sync.client import connect

from pelton.api import AccountLimits, ConfigError, PeltonError
from pelton.api.requests import AccountInfoRequest
from pelton.server import StoreSettings, WebSocketDoor
from pelton.server.settings.options import AccountConfig
from tests.cluster.people import Certificates
from tests.kit.nats_server import NatsServer, free_ports, nats_server
from tests.kit.served import ServedStore, served_store
from tests.server.auth.real import BareClient
from tests.server.conftest import Started

BEFORE = """
max_payload: 100
accounts {
  A { users: [{user: stays, password: p}, {user: goes, password: p}, {user: changes, password: p},
              {user: narrows, password: p, permissions: {sub: ["a", "b"]}}] }
}
"""
AFTER = """
max_payload: 10
accounts {
  A { limits { max_conn: 3 }
      users: [{user: stays, password: p}, {user: changes, password: other}, {user: comes, password: p},
              {user: narrows, password: p, permissions: {sub: ["a"], pub: {deny: "no"}}}] }
}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedStore]:
    (tmp_path / "pelton.conf").write_text(BEFORE)
    with served_store(None, ("-c", str(tmp_path / "pelton.conf"))) as running:
        yield running


def reload(server: ServedStore, folder: Path, text: str, expected: str) -> None:
    (folder / "pelton.conf").write_text(text)
    server.signal(signal.SIGHUP)
    while expected not in server.log:
        server.pid  # noqa: B018  # fails if the server has ended
    assert "Traceback" not in server.log


def test_users_and_limits_are_read_again(server: ServedStore, tmp_path: Path) -> None:
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(closing(BareClient(server.port, {"user": name, "pass": "p"})))
            for name in ("stays", "goes", "changes", "narrows")
        }
        for client in clients.values():
            assert client.ask("SUB a 1", "SUB b 2")
        reload(server, tmp_path, AFTER, "Reloaded server configuration")
        assert clients["stays"].ask("PUB a 0\r\n")
        assert not clients["goes"].ask()
        assert clients["goes"].errors[0] == "Authorization Violation"
        assert not clients["changes"].ask()
        assert not clients["narrows"].ask()
        assert clients["narrows"].errors == ['Permissions Violation for Subscription to "b"']
        assert clients["narrows"].received == ["a"]
        assert not clients["narrows"].ask("PUB no 0\r\n")
        assert clients["stays"].ask("PUB a 0\r\n", "PUB b 0\r\n")
        clients["narrows"].ask()
        assert clients["narrows"].received == ["a"]
        # Two are connected, three may be.
        new = stack.enter_context(closing(BareClient(server.port, {"user": "comes", "pass": "p"})))
        assert new.ask()
        assert new.info["max_payload"] == 10
        refused = stack.enter_context(closing(BareClient(server.port, {"user": "changes", "pass": "other"})))
        assert not refused.ask()
        assert refused.errors[0] == "maximum account active connections exceeded"


def test_a_mistake_changes_nothing(server: ServedStore, tmp_path: Path) -> None:
    with closing(BareClient(server.port, {"user": "goes", "pass": "p"})) as client:
        assert client.ask()
        reload(server, tmp_path, "max_payload: x", "max_payload must be an integer")
        reload(server, tmp_path, "server_name: other", "restart the server for it")
        (tmp_path / "pelton.conf").write_bytes(b"max_payload: 5 # \xff")
        server.signal(signal.SIGHUP)
        while "it is no UTF-8" not in server.log:
            server.pid  # noqa: B018  # fails if the server has ended
        assert client.ask()
    with closing(BareClient(server.port, {"user": "goes", "pass": "p"})) as client:
        assert client.ask()


# Seconds of work for each wrong password, and for the right one, too: nobody knows that.
SLOW = bcrypt.gensalt(12, prefix=b"2a").decode() + "a" * 31
QUICK = bcrypt.hashpw(b"p", bcrypt.gensalt(4, prefix=b"2a")).decode()


def test_removed_users_go_at_once_behind_a_queue_of_passwords(tmp_path: Path) -> None:
    users = (
        "{{user: slow, password: '{slow}'}}, {{user: late, password: '{slow}'}}, {{user: stays, password: '{quick}'}}"
    )
    stay = f"[{users}]".format(slow=SLOW, quick=QUICK)
    before = stay.replace("]", f", {{user: goes, password: '{QUICK}'}}]")
    config = tmp_path / "pelton.conf"
    config.write_text(f"authorization {{ timeout: 600, users: {before} }}")
    with served_store(None, ("-c", str(config))) as server, ExitStack() as stack:

        def client(user: str) -> BareClient:
            return stack.enter_context(closing(BareClient(server.port, {"user": user, "pass": "p"})))

        stays, goes = client("stays"), client("goes")
        assert [stays.ask(), goes.ask()] == [True, True]
        waiting = [client("slow") for _ in range(20 * (os.cpu_count() or 1))]
        late = client("late")
        # They have arrived when what was sent after them is answered.
        assert stays.ask()
        reload(server, tmp_path, f"authorization {{ timeout: 600, users: {stay.replace('late', 'new')} }}", "Reloaded")
        assert [goes.ask(), stays.ask()] == [False, True]
        assert goes.errors[0] == "Authorization Violation"
        # As soon as a thread is free, one that was under way is refused: nobody is checked who is gone.
        assert not late.ask()
        assert late.errors[0] == "Authorization Violation"
        assert not all(each.is_answered for each in waiting)


ACCOUNTS = """
accounts {
  A { jetstream: enabled
      users: [{user: a, password: p}, {user: goes, password: p}]
      exports: [{service: "q"}] }
  B { users: [{user: b, password: p}, {user: moves, password: p}]
      imports: [{service: {account: A, subject: "q"}}] }
  OUT { users: [{user: out, password: p}] }
}
"""
FIXED = [
    ("server_name: pelton", "server_name: other", "server_?name"),
    ("127.0.0.1", "0.0.0.0", "host"),
    ("", "http_port: 8222", "http_?port"),
    ("", "max_subscriptions: 5", "max_?sub"),
    ("", "max_pending: 10M", "max_?pending"),
    ("", "lame_duck_duration: 60s", "lame_?duck_?duration"),
    ("", "lame_duck_grace_period: 5s", "lame_?duck_?grace_?period"),
    ("", "max_closed_clients: 5", "max_?closed_?clients"),
    ("", "system_account: B", "system_?account"),
    ("", "no_system_account: true", "no_?system_?account"),
    ("", "no_auth_user: a", "no_?auth_?user"),
    ("", "websocket { port: -1, no_tls: true }", "websocket"),
    ("/store", "/elsewhere", "jetstream.stor"),
    ("8G", "4G", "decreasing jetstream.max"),
    ("1G", "5M", "decreasing jetstream.max"),
    (", max_file_store: 8G", "", "jetstream.*max"),
    ("1G", "1G, domain: hub", "jetstream.?domain"),
]


class Reloaded:
    """A server, ours or nats-server, that reads its configuration again when told to."""

    def __init__(self, server: ServedStore | NatsServer, config: Path, text: str) -> None:
        self.server, self.config, self.text = server, config, text
        self.port = server.port

    def reload(self, text: str) -> str:
        """Let it read another configuration; return what it logs of that."""
        before = len(self.server.log)
        self.config.write_text(text)
        self.server.signal(signal.SIGHUP)
        while "configuration" not in (log := self.server.log[before:]) and "stay as they were" not in log:
            self.server.pid  # noqa: B018  # the log is read on a thread
        assert "Traceback" not in log
        return log

    def client(self, user: str, stack: ExitStack) -> BareClient:
        return stack.enter_context(closing(BareClient(self.port, {"user": user, "pass": "p"})))


@contextmanager
def serving(kind: str, folder: Path, extra: str) -> Iterator[Reloaded]:
    """Start a server, ours or nats-server."""
    if kind == "nats":
        with nats_server(folder, extra=extra) as server:
            text = (folder / "server.conf").read_text()
            yield Reloaded(server, folder / "server.conf", text)
        return
    store = json.dumps(str(folder / "store"))
    jetstream = f"jetstream {{ store_dir: {store}, max_file_store: 8G, max_memory_store: 1G }}"
    text = f'server_name: pelton\nhost: "127.0.0.1"\n{jetstream}\n{extra}'
    (folder / "pelton.conf").write_text(text)
    with served_store(None, ("-c", str(folder / "pelton.conf"))) as ours:
        yield Reloaded(ours, folder / "pelton.conf", text)


@pytest.fixture(params=["nats", "pelton"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reloaded]:
    with serving(request.param, tmp_path, ACCOUNTS) as server:
        yield server


def test_what_cannot_change_is_refused_and_nothing_changes(both: Reloaded) -> None:
    with ExitStack() as stack:
        client = both.client("goes", stack)
        for old, new, named in FIXED:
            # All that is asked for is refused, not the one setting alone.
            text = (both.text.replace(old, new, 1) if old else f"{both.text}\n{new}").replace("goes", "gone")
            log = both.reload(text).lower()
            assert re.search(f"reload (is )?not supported for .*{named}", log), (new, log)
            line = 3 if not new else 1 + text[: text.rindex(new)].count("\n")
            assert isinstance(both.server, NatsServer) or f"{both.config}:{line}:".lower() in log, (new, log)
        assert client.ask()


def test_accounts_and_what_they_offer_change(both: Reloaded) -> None:
    with ExitStack() as stack:
        a, b, moves, out = (both.client(user, stack) for user in ("a", "b", "moves", "out"))
        assert all(each.ask() for each in (a, b, moves, out))
        assert '"name":"S"' in a.request("$JS.API.STREAM.CREATE.S", '{"name":"S","subjects":["s"]}')
        # A service with one answer gets several; an account goes, one comes, a user moves, limits are smaller.
        text = both.text.replace('service: "q"}]', 'service: "q", response: stream}]')
        text = text.replace("jetstream: enabled", "jetstream { max_streams: 1 }").replace(
            ", {user: moves, password: p}", ""
        )
        text = text.replace(
            "OUT { users: [{user: out,", "NEW { jetstream: enabled, users: [{user: moves, password: p}, {user: new,"
        )
        assert "Reloaded server configuration" in both.reload(text)
        assert [moves.ask(), out.ask()] == [False, False]
        assert "maximum number of streams" in a.request("$JS.API.STREAM.CREATE.T", '{"name":"T","subjects":["t"]}')
        assert '"seq":1' in a.request("s", "kept")
        new = both.client("new", stack)
        assert '"name":"S"' in new.request("$JS.API.STREAM.CREATE.S", '{"name":"S","subjects":["s"]}')
        assert "stream not found" in new.request("$JS.API.STREAM.INFO.T")
        assert [a.ask("SUB q 1"), b.ask("SUB answers 1", "PUB q answers 0\r\n")] == [True, True]
        reply = a.next_reply()
        assert a.ask(f"PUB {reply} 1\r\n1", f"PUB {reply} 1\r\n2")
        assert [b.next_message(), b.next_message()] == ["1", "2"]
        # Streams are turned off, and are there again when they are turned on; the import is gone.
        off = text.replace("jetstream { max_streams: 1 }", "").replace(
            'imports: [{service: {account: A, subject: "q"}}]', ""
        )
        assert "Reloaded server configuration" in both.reload(off)
        assert "JetStream not enabled for account" in a.request("$JS.API.INFO")
        assert b.ask("PUB q answers 0\r\n")
        assert b.received == ["answers"]  # no responders
        assert "Reloaded server configuration" in both.reload(text)
        assert '"messages":1' in a.request("$JS.API.STREAM.INFO.S")
        assert '"seq":2' in a.request("s", "more")


def test_limits_change(both: Reloaded) -> None:
    with ExitStack() as stack:
        clients = [both.client("a", stack) for _ in range(3)]
        assert all(client.ask("SUB x 1", "SUB y 2") for client in clients)
        b, other = both.client("b", stack), both.client("b", stack)
        assert [each.ask("SUB x 1") for each in (b, other)] == [True, True]
        assert "Reloaded" in both.reload(both.text.replace("A {", "A { limits { max_conn: 2 }\n"))
        assert sorted(client.ask() for client in clients) == [False, True, True]
        # Each client may have so many, as on nats-server, which also cuts one that has just as many.
        assert "Reloaded" in both.reload(both.text.replace("A {", "A { limits { max_subs: 1 }\n"))
        assert not any(client.ask() for client in clients)
        again = [both.client("a", stack) for _ in range(2)]
        assert [client.ask("SUB x 1") for client in again] == [True, True]
        assert not again[0].ask("SUB y 2")
        assert "Reloaded" in both.reload(f"{both.text}\nmax_connections: 2\nmax_payload: 10")
        left = [each.ask() for each in (b, other, *again)].count(True)
        # The real server still counts those that it has just cut.
        assert left == 2 or (left < 2 and isinstance(both.server, NatsServer))


OUT = "OUT { users: [{user: out, password: p}] }"
WATCHED = f"""
accounts {{
  $SYS {{ users: [{{user: s, password: p}}] }}
  IN {{ users: [{{user: in, password: p}}] }}
  {OUT}
}}
"""


@pytest.mark.parametrize("kind", ["nats", "pelton"])
def test_an_account_that_goes_is_told_of_until_it_is_empty(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path, WATCHED) as server, ExitStack() as stack:
        system, stays, *out = [server.client(user, stack) for user in ("s", "in", "out", "out")]
        assert all(each.ask("SUB x 1") for each in (stays, *out))
        assert system.ask("SUB $SYS.ACCOUNT.OUT.SERVER.CONNS 1", "SUB $SYS.ACCOUNT.OUT.DISCONNECT 2")
        assert "Reloaded" in server.reload(server.text.replace(OUT, ""))
        assert [each.ask() for each in (stays, *out)] == [True, False, False]
        told: list[dict[str, Any]] = []
        while len([one for one in told if "reason" in one]) < 2 or 0 not in [one.get("conns") for one in told]:
            told.append(json.loads(system.next_message()))
        assert {one["reason"] for one in told if "reason" in one} == {"Client Closed"}
        assert stays.ask()


def certificate_of(port: int) -> bytes:
    """Return the certificate that a server shows, nothing if it wants no TLS."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        if b'"tls_required":true' not in plain.makefile("rb").readline():
            return b""
        with trusting().wrap_socket(plain) as secured:
            return secured.getpeercert(binary_form=True) or b""


def test_certificates_change(both: Reloaded, tmp_path: Path) -> None:
    shown = [certificate_of(both.port)]
    for number in range(2):
        cert, key = Certificates(tmp_path / f"tls{number}").server
        both.reload(f"{both.text}\ntls {{ cert_file: '{cert}', key_file: '{key}' }}")
        shown.append(certificate_of(both.port))
        assert shown[-1] == ssl.PEM_cert_to_DER_cert(cert.read_text())
    assert re.search(
        "no such file|does not exist", both.reload(f"{both.text}\ntls {{ cert_file: none, key_file: none }}")
    )
    assert certificate_of(both.port) == shown[-1]
    both.reload(both.text)
    assert certificate_of(both.port) == shown[0] == b""


@pytest.mark.parametrize("kind", ["nats", "pelton"])
def test_certificates_of_websockets_are_exchanged_on_disk(kind: str, tmp_path: Path) -> None:
    cert, key = tmp_path / "ws.pem", tmp_path / "ws.key"
    made = [Certificates(tmp_path / f"tls{number}").server for number in range(2)]

    def exchange(number: int) -> bytes:
        for source, target in zip(made[number], (cert, key), strict=True):
            target.write_bytes(source.read_bytes())
        return ssl.PEM_cert_to_DER_cert(cert.read_text())

    first, (port,) = exchange(0), free_ports(1)
    block = f"websocket {{\n host: 127.0.0.1, port: {port}\n tls {{\n cert_file: '{cert}', key_file: '{key}' }} }}"
    with (
        serving(kind, tmp_path, f"{ACCOUNTS}\n{block}") as server,
        connect(f"wss://127.0.0.1:{port}", ssl=trusting()) as old,
    ):

        def pings() -> None:
            old.send(b"PING\r\n")
            while b"PONG" not in old.recv(timeout=60):
                pass

        old.send(b'CONNECT {"user":"a","pass":"p"}\r\n')
        pings()
        assert secured_certificate(port) == first
        second = exchange(1)
        assert "Reloaded" in server.reload(server.text)
        assert secured_certificate(port) == second != first
        pings()
        cert.write_text("no certificate")
        log = server.reload(server.text)
        assert "Reloaded" not in log
        line = 1 + server.text[: server.text.index(" tls {")].count("\n")
        assert f"{server.config}:{line}:" in log
        assert secured_certificate(port) == second
        pings()


def trusting() -> ssl.SSLContext:
    """Return a client's context that looks at no certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def secured_certificate(port: int) -> bytes:
    """Return the certificate that a port shows where TLS comes first."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, trusting().wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True) or b""


async def test_a_server_in_a_program_says_what_it_cannot_change(started: Started, tmp_path: Path) -> None:
    server = await started()
    settings = server.settings
    moved = {"$G": StoreSettings(path=str(tmp_path / "other.pelton"))}
    for changed in ({"domain": "hub"}, {"stores": moved}, {"websocket": WebSocketDoor()}):
        with pytest.raises(ConfigError, match="cannot change while the server runs"):
            await server.reload(replace(settings, **changed))
    (tmp_path / "folder").mkdir()
    broken = {
        "accounts": {"A": AccountConfig(name="A")},
        "stores": {**settings.stores, "A": StoreSettings(path=str(tmp_path / "folder"))},
    }
    with pytest.raises(PeltonError):
        await server.reload(replace(settings, **broken))
    assert server.settings is settings
    assert server.account("A") is None
    larger = StoreSettings(path=settings.stores["$G"].path, limits=AccountLimits(max_storage=1 << 20))
    await server.reload(replace(settings, stores={"$G": larger}))
    account = server.account("$G")
    assert account is not None
    assert account.link is not None
    assert (await account.link.engine.call(AccountInfoRequest())).limits.max_storage == 1 << 20
