"""What accounts offer each other, beside a real server with the same accounts."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pelton.api import AccountLimits, ConfigError
from pelton.server.account import ServerAccount
from pelton.server.accounts import accounts_of_server
from pelton.server.clients import smallest_limit
from pelton.server.crossing import AccountExchange, ServiceReplies, ServiceRoute, StreamRoute
from pelton.server.settings.options import (
    AccountConfig,
    ConnectionLimits,
    ExportConfig,
    ImportConfig,
    OperatorConfig,
    ServerConfig,
)
from pelton.server.users import OperatorTrust
from tests.kit.nats_server import nats_server
from tests.kit.served import config_of, served_store
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, jwt
from tests.server.auth.real import BareClient


def exchange_of(text: str) -> AccountExchange:
    config = config_of(text, read=lambda path: "").settings
    return AccountExchange(accounts_of_server(config, None, 0.0).values())


def accounts(exports: str, imports: str) -> str:
    return f"""accounts {{
        A: {{ users: [{{user: a, password: p}}], exports: [{exports}] }}
        B: {{ users: [{{user: b, password: p}}], imports: [{imports}] }}
        C: {{ users: [{{user: c, password: p}}] }}
    }}"""


# Where what A publishes at one subject appears in B: the import, the subject, the subject there.
STREAMS = [
    ('{stream: {account: A, subject: "s.x"}}', "s.x", "s.x"),
    ('{stream: {account: A, subject: "s.*"}}', "s.x", "s.x"),
    ('{stream: {account: A, subject: "s.*"}}', "s.x.y", None),
    ('{stream: {account: A, subject: "s.x"}}', "s.y", None),
    ('{stream: {account: A, subject: "s.x"}, prefix: "from.a"}', "s.x", "from.a.s.x"),
    ('{stream: {account: A, subject: "s.>"}, prefix: "from.a"}', "s.x.y", "from.a.s.x.y"),
    ('{stream: {account: A, subject: "s.*"}, to: "t.*"}', "s.x", "t.x"),
    ('{stream: {account: A, subject: "s.*.*"}, to: "t.$2.$1"}', "s.x.y", "t.y.x"),
    ('{stream: {account: A, subject: "s.>"}, to: "t.>"}', "s.x.y", "t.x.y"),
    ('{stream: {account: A, subject: "s.x"}, to: "t"}', "s.x", "t"),
]
# Where what B publishes at one subject arrives in A.
SERVICES = [
    ('{service: {account: A, subject: "q.x"}}', "q.x", "q.x"),
    ('{service: {account: A, subject: "q.*"}}', "q.x", "q.x"),
    ('{service: {account: A, subject: "q.x"}}', "q.y", None),
    ('{service: {account: A, subject: "q.x"}, to: "ask"}', "ask", "q.x"),
    ('{service: {account: A, subject: "q.x"}, to: "ask"}', "q.x", None),
    ('{service: {account: A, subject: "q.*"}, to: "ask.*"}', "ask.x", "q.x"),
    ('{service: {account: A, subject: "q.*.*"}, to: "ask.$2.$1"}', "ask.x.y", "q.y.x"),
    ('{service: {account: A, subject: "q.>"}, to: "ask.>"}', "ask.x.y", "q.x.y"),
]


@pytest.mark.parametrize(("imported", "subject", "expected"), STREAMS)
def test_streams_appear_where_the_server_has_them(
    imported: str, subject: str, expected: str | None, tmp_path: Path
) -> None:
    text = accounts('{stream: "s.>"}', imported)
    routes = exchange_of(text).streams("A", subject)
    assert routes == (() if expected is None else (StreamRoute("B", expected),))
    assert exchange_of(text).streams("B", subject) == ()
    assert received(tmp_path, text, "a", subject, "b") == ([] if expected is None else [expected])


@pytest.mark.parametrize(("imported", "subject", "expected"), SERVICES)
def test_requests_arrive_where_the_server_has_them(
    imported: str, subject: str, expected: str | None, tmp_path: Path
) -> None:
    text = accounts('{service: "q.>"}', imported)
    routes = exchange_of(text).services("B", subject)
    assert [(route.account, route.subject) for route in routes] == ([] if expected is None else [("A", expected)])
    assert exchange_of(text).services("A", subject) == ()
    assert received(tmp_path, text, "b", subject, "a") == ([] if expected is None else [expected])


def received(folder: Path, text: str, sender: str, subject: str, receiver: str) -> list[str]:
    """Return what arrives at a real server, and at ours; nothing arrives in a third account."""
    with nats_server(folder, jetstream=False, extra=text) as server:
        found = received_at(server.port, sender, subject, receiver)
    (folder / "pelton.conf").write_text(text)
    with served_store(None, ("-c", str(folder / "pelton.conf"))) as ours:
        assert received_at(ours.port, sender, subject, receiver) == found
    return found


def received_at(port: int, sender: str, subject: str, receiver: str) -> list[str]:
    with (
        closing(BareClient(port, {"user": sender, "pass": "p"})) as publishing,
        closing(BareClient(port, {"user": receiver, "pass": "p"})) as receiving,
        closing(BareClient(port, {"user": "c", "pass": "p"})) as third,
    ):
        for client in (receiving, third):
            # Imports count for subjects that are theirs, not for everything.
            assert client.ask("SUB s.> 1", "SUB t.> 2", "SUB t 3", "SUB from.> 4", "SUB q.> 5", "SUB ask.> 6")
        publishing.ask(f"PUB {subject} 0\r\n")
        receiving.ask()
        third.ask()
        assert not third.received
        return receiving.received


WRONG = [
    ('{service: "q.>"}', '{service: {account: A, subject: "q.*"}, to: "ask"}'),
    (
        '{service: "q.>"}',
        '{service: {account: A, subject: "q.x"}, to: y}, {service: {account: A, subject: "q.z"}, to: y}',
    ),
    (
        '{stream: "s.>"}',
        '{stream: {account: A, subject: "s.*"}, to: "x.*"}, {stream: {account: A, subject: "s.*"}, to: "y.*"}',
    ),
]


@pytest.mark.parametrize(("exports", "imports"), WRONG)
def test_imports_that_contradict_each_other_are_refused(exports: str, imports: str) -> None:
    with pytest.raises(ConfigError):
        exchange_of(accounts(exports, imports))


def test_services_form_no_cycle() -> None:
    text = """accounts {
        A { exports: [{service: x}], imports: [{service: {account: B, subject: y}, to: x}] }
        B { exports: [{service: y}], imports: [{service: {account: A, subject: x}, to: y}] }
    }"""
    with pytest.raises(ConfigError, match="cycle"):
        exchange_of(text)


def test_an_account_without_imports_has_no_routes() -> None:
    exchange = AccountExchange([AccountConfig(name="A")])
    assert exchange.services("A", "x") == ()
    assert exchange.streams("A", "x") == ()
    assert exchange.streams("unknown", "x") == ()


def replies(most: int = 10) -> ServiceReplies:
    numbers = count(1)
    return ServiceReplies(lambda: f"id{next(numbers)}", most)


def test_the_oldest_request_of_an_account_gives_way() -> None:
    table, route = replies(most=2), ServiceRoute("A", "q")
    other = table.open("C", "_INBOX.1", route, 10.0)
    first, *later = [table.open("B", "_INBOX.1", route, 10.0) for _ in range(3)]
    assert first not in table
    assert all(subject in table for subject in (other, *later))
    table.forget(later[0])
    table.forget(first)
    assert table.open("B", "_INBOX.2", route, 10.0) in table
    assert later[1] in table
    assert len(table) == 3


def test_an_answer_finds_its_way_back_once() -> None:
    table, route = replies(), ServiceRoute("A", "q", threshold_s=5.0)
    subject = table.open("B", "_INBOX.1", route, 10.0)
    assert subject == "_R_.id1"
    assert table.take("C", subject, 3, 11.0) is None
    assert table.take("B", subject, 3, 11.0) is None
    assert table.take("A", subject, 3, 11.0) == StreamRoute("B", "_INBOX.1")
    assert table.take("A", subject, 3, 11.0) is None
    assert table.open("B", "", route, 10.0) == ""


def test_answers_of_a_stream_come_until_none_comes() -> None:
    table, route = replies(), ServiceRoute("A", "q", "Stream", threshold_s=5.0)
    subject = table.open("B", "_INBOX.1", route, 10.0)
    assert table.take("A", subject, 3, 14.0) == StreamRoute("B", "_INBOX.1")
    assert table.take("A", subject, 0, 18.0) == StreamRoute("B", "_INBOX.1")
    assert table.take("A", subject, 3, 23.1) is None
    assert len(table) == 0


def test_chunks_end_with_an_empty_one() -> None:
    table, route = replies(), ServiceRoute("A", "q", "Chunked", threshold_s=5.0)
    subject = table.open("B", "_INBOX.1", route, 10.0)
    assert table.take("A", subject, 3, 11.0) == StreamRoute("B", "_INBOX.1")
    assert table.take("A", subject, 0, 11.0) == StreamRoute("B", "_INBOX.1")
    assert table.take("A", subject, 3, 11.0) is None


def test_requests_without_answers_are_forgotten() -> None:
    table, route = replies(), ServiceRoute("A", "q", threshold_s=5.0)
    table.open("B", "_INBOX.1", route, 10.0)
    table.open("B", "_INBOX.2", route, 12.0)
    table.forget_expired(16.0)
    assert len(table) == 1


# --- the accounts


def test_accounts_of_a_configuration() -> None:
    config = config_of("accounts {A {jetstream: enabled}}\njetstream: true", read=lambda path: "").settings
    found = accounts_of_server(config, None, 0.0)
    assert set(found) == {"A", "$G", "$SYS"}
    assert found["A"].jetstream == AccountLimits()
    # As on nats-server, with configured accounts the global one has no JetStream by itself.
    assert found["$SYS"].jetstream is found["$G"].jetstream is None
    alone = accounts_of_server(config_of("jetstream: true", read=lambda path: "").settings, None, 0.0)
    assert alone["$G"].jetstream == AccountLimits()
    assert set(accounts_of_server(ServerConfig(no_system_account=True), None, 0.0)) == {"$G"}


OP, ONE, TWO, SIGNING = Key("operator"), Key("account", 1), Key("account", 2), Key("account", 3)


def trust_of(exports: list[dict[str, Any]], imports: list[dict[str, Any]]) -> OperatorTrust:
    one = account_jwt(OP, ONE, {"exports": exports, "signing_keys": [SIGNING.public]})
    limits = ACCOUNT_LIMITS | {"mem_storage": 5, "disk_storage": -1, "conn": 2, "subs": 3, "payload": 4, "streams": 6}
    two = account_jwt(OP, TWO, {"imports": imports, "limits": limits})
    return OperatorTrust(
        OperatorConfig(operators=(jwt(OP, OP.public, "operator"),), accounts={ONE.public: one, TWO.public: two})
    )


def test_accounts_of_an_operator() -> None:
    exports = [
        {"name": "e", "subject": "ev.>", "type": "stream"},
        {"name": "q", "subject": "q.*", "type": "service", "response_type": "Stream", "response_threshold": 2 * 10**9},
    ]
    imports = [
        {"name": "e", "subject": "ev.a", "account": ONE.public, "type": "stream", "local_subject": "mine"},
        {"name": "e", "subject": "ev.b", "account": ONE.public, "type": "stream", "to": "pre"},
        {"name": "q", "subject": "ask", "account": ONE.public, "type": "service", "to": "q.x"},
        {"name": "n", "subject": "nothing", "account": ONE.public, "type": "stream"},
        {"name": "n", "subject": "ev.c", "account": SIGNING.public, "type": "stream"},
    ]
    trust = trust_of(exports, imports)
    found = accounts_of_server(ServerConfig(), trust, time.time())
    assert set(found) == {ONE.public, TWO.public}
    assert found[ONE.public].jetstream is None
    assert found[ONE.public].exports == (
        ExportConfig(kind="stream", subject="ev.>"),
        ExportConfig(kind="service", subject="q.*", response_type="Stream", response_threshold=2.0),
    )
    two = found[TWO.public]
    assert two.jetstream == AccountLimits(max_memory=5, max_storage=-1, max_streams=6, max_consumers=0)
    assert two.limits == ConnectionLimits(max_connections=2, max_subscriptions=3, max_payload=4)
    assert two.imports == (
        ImportConfig(kind="stream", account=ONE.public, subject="ev.a", to="mine"),
        ImportConfig(kind="stream", account=ONE.public, subject="ev.b", to="pre.ev.b"),
        ImportConfig(kind="service", account=ONE.public, subject="q.x", to="ask"),
    )
    assert AccountExchange(found.values()).services(TWO.public, "ask")[0].subject == "q.x"


def activation(issuer: Key, importer: Key, **fields: Any) -> str:
    nats = {"subject": fields.pop("subject", "ev.>"), "kind": fields.pop("kind", "stream")}
    nats |= {"issuer_account": fields.pop("issuer_account", "")}
    return jwt(issuer, importer.public, "activation", nats=nats, **fields)


@pytest.mark.parametrize(
    ("token", "is_allowed"),
    [
        ("", False),
        ("a.b.c", False),
        (activation(ONE, TWO), True),
        (activation(SIGNING, TWO), False),
        (activation(SIGNING, TWO, issuer_account=ONE.public), True),
        (activation(TWO, TWO), False),
        (activation(ONE, SIGNING), False),
        (activation(ONE, TWO, subject="ev.b"), False),
        (activation(ONE, TWO, subject="ev.*"), True),
        (activation(ONE, TWO, kind="service"), False),
        (activation(ONE, TWO, exp=5), False),
        (activation(ONE, TWO, iat=99), False),
        (activation(ONE, TWO, iat=101), True),
    ],
)
def test_a_private_export_needs_an_activation(token: str, is_allowed: bool) -> None:
    exports = [
        {"name": "e", "subject": "ev.>", "type": "stream", "token_req": True, "revocations": {TWO.public: 100}},
    ]
    imports = [{"name": "e", "subject": "ev.a", "account": ONE.public, "type": "stream", "token": token}]
    found = accounts_of_server(ServerConfig(), trust_of(exports, imports), time.time())
    assert bool(found[TWO.public].imports) == is_allowed


def test_the_clients_of_an_account_are_limited() -> None:
    account = ServerAccount("A", lambda fit: fit[0], lambda: 0.0)
    client: Any = object()
    account.join(client)
    assert not account.is_full
    account.limits = ConnectionLimits(max_connections=1)
    assert account.is_full
    account.leave(client, {})
    assert not account.is_full
    assert [smallest_limit(3, -1, 2), smallest_limit(-1), smallest_limit(0, 5)] == [2, -1, 0]
