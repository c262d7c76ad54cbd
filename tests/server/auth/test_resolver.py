"""Accounts that an operator pushes while the server runs (``nsc push``): as on nats-server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, jwt, user_jwt
from tests.server.auth.real import BareClient

OP, FALSE_OP = Key("operator"), Key("operator", 2)
SYSTEM, ACME, OTHER = (Key("account", number) for number in (1, 2, 3))
ANN, BOB = Key("user", 1), Key("user", 2)
STREAMS = {"limits": ACCOUNT_LIMITS | {"disk_storage": -1, "streams": -1, "consumer": -1}}


class Running(NamedTuple):
    is_ours: bool
    port: int
    folder: Path

    def client(self, account: Key, user: Key = ANN) -> BareClient:
        token = user_jwt(account, user, iat=int(time.time()) - 10)
        return BareClient(self.port, lambda nonce: {"jwt": token, "sig": user.signature(nonce)})

    def lets_in(self, account: Key) -> bool:
        with closing(self.client(account)) as client:
            return client.ask("SUB a 1")

    def ask(self, name: str, data: str = "") -> Any:
        with closing(self.client(SYSTEM)) as client:
            answer = client.request(f"$SYS.REQ.{name}", data)
        try:
            found = json.loads(answer)
        except ValueError:
            return answer
        assert found.pop("server")["id"]
        return found

    def push(self, token: str, name: str = "CLAIMS.UPDATE") -> str:
        found = self.ask(name, token)
        return str(found["data"]["message"] if "data" in found else found["error"]["description"].partition(" - ")[2])

    def delete(self, token: str) -> str:
        found = self.ask("CLAIMS.DELETE", token)
        return str(found["data"]["message"] if "data" in found else found["error"]["description"].partition(" - ")[2])


@contextmanager
def running(kind: str, home: Path, more: str = "", resolver: str = "", preload: str = "") -> Iterator[Running]:
    folder = home / "accounts"
    operator = jwt(OP, OP.public, "operator", nats={"system_account": SYSTEM.public})
    resolver = (resolver or "{ type: full, dir: 'FOLDER' MORE }").replace("FOLDER", str(folder)).replace("MORE", more)
    text = (
        f"operator: {operator}\nresolver_preload: {{ {SYSTEM.public}: {account_jwt(OP, SYSTEM)} {preload} }}\n"
        f"resolver: {resolver}\n"
    )
    if kind == "nats":
        with nats_server(home, extra=text) as theirs:
            yield Running(is_ours=False, port=theirs.port, folder=folder)
        return
    (home / "pelton.conf").write_text(f"jetstream {{ store_dir: '{home}/stores' }}\n{text}")
    with served_store(None, ("-c", str(home / "pelton.conf"))) as ours:
        yield Running(is_ours=True, port=ours.port, folder=folder)


@pytest.mark.parametrize("kind", ["nats", "pelton"])
def test_accounts_are_pushed(kind: str, tmp_path: Path) -> None:
    now = int(time.time())
    with running(kind, tmp_path) as server:
        assert server.ask("CLAIMS.LIST") == {"data": [SYSTEM.public]}
        assert server.ask(f"ACCOUNT.{ACME.public}.CLAIMS.LOOKUP") == ""
        assert not server.lets_in(ACME)
        good = account_jwt(OP, ACME, STREAMS, iat=now - 50)
        assert server.push(good) == "jwt updated"
        assert server.lets_in(ACME)
        with closing(server.client(ACME)) as client:
            assert "error" not in json.loads(client.request("$JS.API.STREAM.CREATE.S", '{"name":"S"}'))
        # An older one takes its place, too.
        for token in (account_jwt(OP, ACME, iat=now - 80), good):
            assert server.push(token) == "jwt updated"
            assert server.ask(f"ACCOUNT.{ACME.public}.CLAIMS.LOOKUP") == token
        assert server.push(account_jwt(OP, OTHER, iat=now), f"ACCOUNT.{OTHER.public}.CLAIMS.UPDATE") == "jwt updated"
        assert server.lets_in(OTHER)
        assert sorted(server.ask("CLAIMS.LIST")["data"]) == sorted(key.public for key in (SYSTEM, ACME, OTHER))
        with closing(server.client(SYSTEM)) as client:
            client.send("SUB packed 1")
            client.send("PUB $SYS.REQ.CLAIMS.PACK packed 0\r\n")
            packed = [client.next_message() for _ in range(4)]
        assert f"{ACME.public}|{good}" in packed[:3]
        assert packed[3] == ""
        mismatch = server.push(good, f"ACCOUNT.{OTHER.public}.CLAIMS.UPDATE")
        assert mismatch == "subject does not match jwt content"
        assert server.push(user_jwt(ACME, ANN)) == "not account claim"
        for wrong in ("", "nonsense"):
            assert server.push(wrong) == "expected 3 chunks"
        assert (server.folder / f"{ACME.public}.jwt").read_text() == good


@pytest.mark.parametrize("kind", ["nats", "pelton"])
def test_clients_that_are_connected(kind: str, tmp_path: Path) -> None:
    now = int(time.time())
    with running(kind, tmp_path) as server:
        assert server.push(account_jwt(OP, ACME, iat=now - 50)) == "jwt updated"
        with closing(server.client(ACME)) as ann, closing(server.client(ACME, BOB)) as bob:
            assert ann.ask()
            assert bob.ask()
            revoked = account_jwt(OP, ACME, {"revocations": {ANN.public: now}}, iat=now - 40)
            assert server.push(revoked) == "jwt updated"
            while ann.ask():
                pass
            assert bob.ask()
            server.push(account_jwt(OP, ACME, {"limits": ACCOUNT_LIMITS | {"conn": 0}}, iat=now - 30))
            while bob.ask():
                pass
            assert bob.errors[0] == "maximum account active connections exceeded"


@pytest.mark.parametrize("kind", ["nats", "pelton"])
@pytest.mark.parametrize("hard", [False, True])
def test_accounts_are_deleted(kind: str, hard: bool, tmp_path: Path) -> None:
    def asked(issuer: Key, *accounts: str, about: Key | None = None) -> str:
        return jwt(issuer, (about or issuer).public, "generic", nats={"accounts": [*accounts]})

    more = f", allow_delete: true, hard_delete: {str(hard).lower()}"
    with running(kind, tmp_path, more) as server:
        server.push(account_jwt(OP, ACME))
        for issuer in (ACME, FALSE_OP):
            assert server.delete(asked(issuer, ACME.public)) == "not trusted"
        assert server.delete(asked(OP, SYSTEM.public)) == "not allowed to delete system account"
        for wrong in ("../x", ANN.public):
            assert server.delete(asked(OP, ACME.public, wrong)) == "malformed request"
        assert server.lets_in(ACME)
        for _ in range(2):
            assert server.delete(asked(OP, ACME.public)) == "deleted 1 accounts"
        assert not server.lets_in(ACME)
        assert server.ask("CLAIMS.LIST") == {"data": [SYSTEM.public]}
        left = [path.name for path in server.folder.iterdir() if ACME.public in path.name]
        assert left == ([] if hard else [f"{ACME.public}.jwt.deleted"])
    with running(kind, tmp_path) as server:
        server.push(account_jwt(OP, ACME))
        assert server.delete(asked(OP, ACME.public)) == "delete must be enabled in server config"


def test_what_is_refused_leaves_what_was_there(tmp_path: Path) -> None:
    now = int(time.time())
    good = account_jwt(OP, ACME, iat=now - 50)
    with running("pelton", tmp_path) as server:
        server.push(good)
        assert server.push(account_jwt(FALSE_OP, ACME, iat=now)) == "it is not signed by a trusted operator"
        imports = [{"subject": "q", "account": OTHER.public, "type": "service", "to": "q"}] * 2
        exports = {"exports": [{"subject": "q", "type": "service"}]}
        assert server.push(account_jwt(OP, OTHER, exports)) == "jwt updated"
        assert "overlap" in server.push(account_jwt(OP, ACME, {"imports": imports}, iat=now))
        assert server.ask(f"ACCOUNT.{ACME.public}.CLAIMS.LOOKUP") == good
        assert server.lets_in(ACME)
    with running("pelton", tmp_path) as server:
        assert server.lets_in(ACME)


def limited(account: Key, subs: int, **fields: Any) -> str:
    return account_jwt(OP, account, {"limits": ACCOUNT_LIMITS | {"subs": subs}}, **fields)


def subscribes(server: Running, account: Key) -> bool:
    """Whether a user of an account may have two subscriptions."""
    with closing(server.client(account)) as client:
        return client.ask("SUB a 1", "SUB b 2")


@pytest.mark.parametrize("kind", ["nats", "pelton"])
def test_accounts_in_memory_are_changed(kind: str, tmp_path: Path) -> None:
    now = int(time.time())
    preload = f", {ACME.public}: {account_jwt(OP, ACME, iat=now - 100)}"
    with running(kind, tmp_path, resolver="MEMORY", preload=preload) as server:
        name = f"ACCOUNT.{ACME.public}.CLAIMS.UPDATE"
        assert subscribes(server, ACME)
        assert server.push(limited(ACME, 1, iat=now - 50), name) == "jwt updated"
        assert not subscribes(server, ACME)
        # An older one takes its place, too.
        assert server.push(limited(ACME, 9, iat=now - 200), name) == "jwt updated"
        assert subscribes(server, ACME)
        for wrong in (account_jwt(FALSE_OP, ACME), limited(ACME, 1, exp=now - 5)):
            assert server.push(wrong, name) == "account validation failed"
        assert server.push(account_jwt(OP, OTHER), name) == "subject does not match jwt content"
        assert server.push(user_jwt(ACME, ANN), name) == "not account claim"
        assert server.push("nonsense", name) == "expected 3 chunks"
        assert server.push("", name) == "request body is empty"
        assert subscribes(server, ACME)
        assert server.push(account_jwt(OP, OTHER), f"ACCOUNT.{OTHER.public}.CLAIMS.UPDATE") == "jwt update skipped"
        assert not server.lets_in(OTHER)
        for none in (
            "CLAIMS.UPDATE",
            "CLAIMS.LIST",
            "CLAIMS.PACK",
            "CLAIMS.DELETE",
            f"ACCOUNT.{ACME.public}.CLAIMS.LOOKUP",
        ):
            assert "503" in server.ask(none, account_jwt(OP, ACME))


@pytest.mark.parametrize("kind", ["nats", "pelton"])
def test_a_cache_changes_the_accounts_that_it_has(kind: str, tmp_path: Path) -> None:
    now = int(time.time())
    (tmp_path / "accounts").mkdir()
    (tmp_path / "accounts" / f"{ACME.public}.jwt").write_text(account_jwt(OP, ACME, iat=now - 100))
    with running(kind, tmp_path, resolver="{ type: cache, dir: 'FOLDER', limit: 10, ttl: '2m' }") as server:
        assert server.lets_in(ACME)
        assert sorted(server.ask("CLAIMS.LIST")["data"]) == sorted([SYSTEM.public, ACME.public])
        assert server.push(limited(ACME, 1, iat=now - 50)) == "jwt updated cache"
        assert not subscribes(server, ACME)
        assert (
            server.push(limited(ACME, 9, iat=now - 40), f"ACCOUNT.{ACME.public}.CLAIMS.UPDATE") == "jwt updated cache"
        )
        assert subscribes(server, ACME)
        assert server.push(account_jwt(OP, OTHER)) == "jwt update cache skipped"
        assert not server.lets_in(OTHER)
        assert server.push("") == "expected 3 chunks"
        for none in ("CLAIMS.PACK", f"ACCOUNT.{ACME.public}.CLAIMS.LOOKUP"):
            assert "503" in server.ask(none)
        assert server.delete(jwt(OP, OP.public, "generic", nats={"accounts": [ACME.public]})) == "deleted 1 accounts"
        assert not server.lets_in(ACME)
