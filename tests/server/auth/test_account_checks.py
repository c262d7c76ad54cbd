"""Activations that imports need, in versions 1 and 2, and accounts that contradict themselves: as on nats-server."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, first_jwt, jwt, user_jwt
from tests.server.auth.real import BareClient

OP, ONE, SIGNING, OTHER = Key("operator"), Key("account"), Key("account", 50), Key("account", 51)
ANN = Key("user")
NOW = int(time.time())
Make = Callable[[Key], str]


def first(issuer: Key = ONE, kind: str = "stream", subject: str = "ev.>", **fields: Any) -> Make:
    said = {"subject": subject, "type": kind}
    return lambda importer: first_jwt(issuer, importer.public, "activation", said, **{"iat": NOW - 10} | fields)


def second(issuer: Key = ONE, kind: str = "stream", subject: str = "ev.>", **fields: Any) -> Make:
    said = {"subject": subject, "kind": kind}
    return lambda importer: jwt(issuer, importer.public, "activation", nats=said, **{"iat": NOW - 10} | fields)


def of_issuer(importer: Key) -> str:
    said = {"subject": "ev.>", "kind": "stream", "issuer_account": ONE.public}
    return jwt(SIGNING, importer.public, "activation", nats=said, iat=NOW - 10)


# Of each activation, whether a user of the account is let in, and receives what it imports.
TOKENS: list[tuple[Make, bool, bool]] = [
    (first(), True, True),
    (first(subject="ev.*"), True, True),
    (first(subject="ev.b"), False, False),
    (first(kind="service"), False, False),
    (first(OTHER), False, False),
    (first(SIGNING, issuer_account=ONE.public), True, True),
    (first(SIGNING), False, False),
    (first(exp=NOW - 5), True, False),
    (lambda importer: first()(OTHER), False, False),
    (second(), True, True),
    (second(SIGNING), False, False),
    (second(kind="service"), False, False),
    (second(exp=NOW - 5), True, False),
    (of_issuer, True, True),
    (lambda importer: "", True, False),
    (lambda importer: "a.b.c", False, False),
]


def configuration(makes: list[Make], importers: list[Key]) -> str:
    exports = [{"name": "e", "subject": "ev.>", "type": "stream", "token_req": True}]
    accounts = {ONE: account_jwt(OP, ONE, {"exports": exports, "signing_keys": [SIGNING.public]}, iat=NOW - 20)}
    for importer, make in zip(importers, makes, strict=True):
        one = {"name": "e", "subject": "ev.a", "account": ONE.public, "type": "stream", "token": make(importer)}
        accounts[importer] = account_jwt(OP, importer, {"imports": [one]}, iat=NOW - 20)
    preload = ", ".join(f"{key.public}: {token}" for key, token in accounts.items())
    return f"operator: {jwt(OP, OP.public, 'operator')}\nresolver: MEMORY\nresolver_preload: {{ {preload} }}\n"


def receivers(port: int, importers: list[Key]) -> list[tuple[bool, bool]]:
    """Return of each account whether its user is let in, and receives what is imported."""

    def client(account: Key) -> BareClient:
        token = user_jwt(account, ANN, iat=NOW - 10)
        return BareClient(port, lambda nonce: {"jwt": token, "sig": ANN.signature(nonce)})

    with ExitStack() as stack:
        clients = [stack.enter_context(closing(client(importer))) for importer in importers]
        is_in = [each.ask("SUB ev.a 1") for each in clients]
        publisher = stack.enter_context(closing(client(ONE)))
        assert publisher.ask("PUB ev.a 1\r\nx")
        return [
            (allowed, allowed and each.ask() and bool(each.received))
            for allowed, each in zip(is_in, clients, strict=True)
        ]


def test_who_may_import(tmp_path: Path) -> None:
    importers = [Key("account", number) for number in range(2, 2 + len(TOKENS))]
    text = configuration([make for make, *_ in TOKENS], importers)
    (tmp_path / "ours.conf").write_text(f"host: 127.0.0.1\n{text}")
    with (
        nats_server(tmp_path, jetstream=False, extra=text) as theirs,
        served_store(None, ("-c", str(tmp_path / "ours.conf"))) as ours,
    ):
        expected = [(is_in, receives) for _, is_in, receives in TOKENS]
        assert receivers(theirs.port, importers) == expected
        assert receivers(ours.port, importers) == expected


def exported(kind: str, *subjects: str) -> dict[str, Any]:
    return {"exports": [{"name": "e", "subject": subject, "type": kind} for subject in subjects]}


def imported(kind: str, *subjects: str, **fields: Any) -> dict[str, Any]:
    one = {"name": "e", "account": ONE.public, "type": kind} | fields
    return {"imports": [{**one, "subject": subject} for subject in subjects]}


LIMITS = ACCOUNT_LIMITS | {"exports": 1, "imports": 1}
# What an account says, and whether a user of it is let in.
SAID: list[tuple[dict[str, Any], bool]] = [
    (exported("stream", "a.*", "b.*"), True),
    (exported("stream", "a.*", "a.b"), False),
    (exported("service", "a.*", "a.b"), False),
    ({"exports": [{"name": "e", "subject": "a", "type": kind} for kind in ("stream", "service")]}, True),
    (exported("stream", "a..b"), False),
    (exported("stream", "a b"), False),
    (exported("stream", "a", "b") | {"limits": LIMITS}, False),
    (exported("stream", "a") | {"limits": LIMITS}, True),
    (imported("stream", "a", "b") | {"limits": LIMITS}, False),
    (imported("stream", "a", "a"), True),
    (imported("stream", "a..b"), False),
    (imported("stream", "a", local_subject="b..c"), False),
    (imported("stream", "a", account=""), False),
    (imported("stream", "a", account=ANN.public), True),
    (imported("service", "a", "a"), False),
    (imported("service", "a", "b", local_subject="x"), False),
    (imported("service", "a", "b"), True),
]


def test_accounts_that_contradict_themselves(tmp_path: Path) -> None:
    accounts = [Key("account", number) for number in range(2, 2 + len(SAID))]
    tokens = {ONE: account_jwt(OP, ONE, iat=NOW - 20)}
    tokens |= {key: account_jwt(OP, key, said, iat=NOW - 20) for key, (said, _) in zip(accounts, SAID, strict=True)}
    preload = ", ".join(f"{key.public}: {token}" for key, token in tokens.items())
    text = f"operator: {jwt(OP, OP.public, 'operator')}\nresolver: MEMORY\nresolver_preload: {{ {preload} }}\n"
    (tmp_path / "ours.conf").write_text(f"host: 127.0.0.1\n{text}")

    def lets_in(port: int, account: Key) -> bool:
        token = user_jwt(account, ANN, iat=NOW - 10)
        with closing(BareClient(port, lambda nonce: {"jwt": token, "sig": ANN.signature(nonce)})) as client:
            return client.ask()

    with (
        nats_server(tmp_path, jetstream=False, extra=text) as theirs,
        served_store(None, ("-c", str(tmp_path / "ours.conf"))) as ours,
    ):
        for port in (theirs.port, ours.port):
            assert [lets_in(port, key) for key in accounts] == [is_in for _, is_in in SAID]
