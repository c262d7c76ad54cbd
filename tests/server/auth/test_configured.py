"""Who is let in: the real server with the same configuration is asked the same."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.settings.options import ConnectionLimits
from pelton.server.users import ConfiguredUsers, is_hash, is_password
from tests.kit.nats_server import nats_server
from tests.kit.served import config_of, served_store
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, first_jwt, jwt, part, user_jwt
from tests.server.auth.real import BareClient

HASH = bcrypt.hashpw(b"s3cr3t", bcrypt.gensalt(4, prefix=b"2a")).decode()
ANN, BOB, EVE = Key("user", 1), Key("user", 2), Key("user", 3)

Fields = dict[str, Any] | Callable[[str], dict[str, Any]]


def users_of(text: str) -> ConfiguredUsers:
    return ConfiguredUsers(config_of(text, read=lambda path: Path(path).read_text()).settings)


def proof_of(fields: Fields, nonce: str) -> Credentials:
    said = fields(nonce) if callable(fields) else fields
    names = {
        "user": "user",
        "pass": "password",
        "auth_token": "token",
        "jwt": "jwt",
        "nkey": "nkey",
        "sig": "signature",
    }
    return Credentials(nonce=nonce, address="127.0.0.1", **{names[key]: value for key, value in said.items()})


def compare(folder: Path, text: str, clients: list[tuple[Fields, str | None]]) -> list[ServerUser | LoginRefusal]:
    """Ask both servers to let clients in; the account, or None for a refusal, is expected of both."""
    ask_served(folder, text, clients)
    users, found = users_of(text), []
    with nats_server(folder, jetstream=False, extra=text) as server:
        for fields, account in clients:
            with closing(BareClient(server.port, fields)) as client:
                accepted = client.ask()
            assert accepted == (account is not None), (fields, client.errors)
            assert bool(client.info.get("auth_required")) == users.is_required()
            assert bool(client.info.get("nonce")) == users.wants_nonce
            answer = users.identify(proof_of(fields, client.info.get("nonce", "")), time.time())
            assert isinstance(answer, ServerUser) == accepted, (fields, answer)
            if isinstance(answer, ServerUser):
                assert answer.account == account
            elif client.errors[0]:
                assert answer.text == client.errors[0]
            found.append(answer)
    return found


def ask_served(folder: Path, text: str, clients: list[tuple[Fields, str | None]]) -> None:
    """Ask `pelton serve` with this configuration to let clients in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pelton.conf").write_text(f"host: 127.0.0.1\n{text}")
    with served_store(None, ("-c", str(folder / "pelton.conf"))) as server:
        for fields, account in clients:
            with closing(BareClient(server.port, fields)) as client:
                assert client.ask() == (account is not None), (fields, client.errors)
                assert account is not None or client.errors[0] in ("Authorization Violation", "")


def signed(key: Key, by: Key | None = None, **more: Any) -> Callable[[str], dict[str, Any]]:
    return lambda nonce: {"sig": (by or key).signature(nonce)} | more


def test_everybody_is_let_in_without_users(tmp_path: Path) -> None:
    compare(tmp_path, "", [({}, "$G"), ({"user": "a", "pass": "b"}, "$G"), ({"auth_token": "x"}, "$G")])


def test_a_single_user(tmp_path: Path) -> None:
    for number, password in enumerate(("s3cr3t", f'"{HASH}"')):
        compare(
            tmp_path / str(number),
            f"authorization {{user: ann, password: {password}}}",
            [
                ({"user": "ann", "pass": "s3cr3t"}, "$G"),
                ({"user": "ann", "pass": "s3cr3"}, None),
                ({"user": "ann", "pass": HASH}, None),
                ({"user": "bob", "pass": "s3cr3t"}, None),
                ({"user": "ann"}, None),
                ({"auth_token": "s3cr3t"}, None),
                ({}, None),
            ],
        )


def test_a_token(tmp_path: Path) -> None:
    for number, token in enumerate(("s3cr3t", f'"{HASH}"')):
        compare(
            tmp_path / str(number),
            f"authorization {{token: {token}}}",
            [
                ({"auth_token": "s3cr3t"}, "$G"),
                ({"auth_token": "s3cr3"}, None),
                ({"auth_token": ""}, None),
                ({"auth_token": HASH}, None),
                ({"user": "s3cr3t"}, None),
                ({"user": "s3cr3t", "pass": "s3cr3t"}, None),
                ({}, None),
            ],
        )


def test_users_and_accounts(tmp_path: Path) -> None:
    text = f"""
        authorization {{ users: [{{user: root, password: top}}] }}
        accounts {{
          A: {{ users: [{{user: ann, password: a}}, {{nkey: {ANN.public}}}] }}
          B: {{ users: [{{user: bob, password: '{HASH}'}},
                        {{user: web, password: w, allowed_connection_types: [WEBSOCKET]}},
                        {{nkey: {BOB.public}, allowed_connection_types: [WEBSOCKET]}}, {{user: open}}] }}
        }}
        """
    compare(
        tmp_path,
        text,
        [
            ({"user": "root", "pass": "top"}, "$G"),
            ({"user": "ann", "pass": "a"}, "A"),
            ({"user": "bob", "pass": "s3cr3t"}, "B"),
            ({"user": "bob", "pass": "a"}, None),
            ({"user": "ann", "pass": "s3cr3t"}, None),
            ({"user": "ann", "pass": ""}, None),
            ({"user": "web", "pass": "w"}, None),
            ({"user": "open"}, "B"),
            ({"user": "open", "pass": ""}, "B"),
            ({"user": "open", "pass": "x"}, None),
            ({"pass": "a"}, None),
            ({}, None),
            (signed(ANN, nkey=ANN.public), "A"),
            (signed(ANN, nkey=ANN.public, user="bob"), "A"),
            (signed(ANN, EVE, nkey=ANN.public), None),
            (signed(EVE, nkey=EVE.public), None),
            (signed(BOB, nkey=BOB.public), None),
            ({"nkey": ANN.public}, None),
            ({"nkey": ANN.public, "sig": ANN.signature("another nonce")}, None),
            ({"nkey": ANN.public, "sig": "?"}, None),
            ({"nkey": "", "user": "ann", "pass": "a"}, "A"),
        ],
    )


def test_no_auth_user(tmp_path: Path) -> None:
    text = "accounts {A {users: [{user: ann, password: a}]}, B {users: [{user: bob, password: b}]}}\nno_auth_user: ann"
    compare(
        tmp_path,
        text,
        [
            ({}, "A"),
            ({"user": "bob", "pass": "b"}, "B"),
            ({"user": "bob", "pass": "x"}, None),
            ({"user": "ann"}, None),
            ({"pass": "x"}, None),
            ({"auth_token": "x"}, None),
        ],
    )


# --- operator mode

OP, OP_SIGNING, FALSE_OP = Key("operator", 1), Key("operator", 2), Key("operator", 3)
ACME, ACME_SIGNING, ACME_SCOPED = Key("account", 1), Key("account", 2), Key("account", 3)
STRICT, EXPIRED, FOREIGN = Key("account", 4), Key("account", 5), Key("account", 6)


def operator_config(now: int) -> str:
    operator = jwt(OP, OP.public, "operator", nats={"signing_keys": [OP_SIGNING.public]})
    scope = {
        "kind": "user_scope",
        "key": ACME_SCOPED.public,
        "role": "worker",
        "template": {
            "pub": {"allow": ["jobs.{{name()}}.>", "at.{{tag(site)}}"]},
            "sub": {"allow": ["_INBOX.>"], "deny": ["not.{{subject()}}"]},
            "subs": 5,
            "data": -1,
            "payload": 100,
        },
    }
    acme = account_jwt(
        OP,
        ACME,
        {
            "signing_keys": [ACME_SIGNING.public, scope],
            "revocations": {BOB.public: now - 100},
            "default_permissions": {"pub": {"deny": ["secret.>"]}, "sub": {}},
        },
    )
    strict = account_jwt(
        OP_SIGNING, STRICT, {"limits": account_limits() | {"disallow_bearer": True}, "revocations": {"*": now - 1000}}
    )
    expired = account_jwt(OP, EXPIRED, exp=now - 5)
    preload = "\n".join(f"{key.public}: {text}" for key, text in ((ACME, acme), (STRICT, strict), (EXPIRED, expired)))
    return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"


def account_limits() -> dict[str, Any]:
    return {
        "subs": -1,
        "data": -1,
        "payload": -1,
        "imports": -1,
        "exports": -1,
        "wildcards": True,
        "conn": -1,
        "leaf": -1,
    }


def test_operator_mode(tmp_path: Path) -> None:
    now = int(time.time())

    def ann(token: str, by: Key = ANN) -> Fields:
        return signed(by, jwt=token)

    def user(issuer: Key, key: Key = ANN, nats: dict[str, Any] | None = None, **fields: Any) -> str:
        return user_jwt(issuer, key, nats, **{"iat": now - 10} | fields)

    by_acme = user(ACME)
    body = by_acme.split(".")
    forged = (
        f"{body[0]}.{part({'iss': ACME.public, 'sub': EVE.public, 'nats': {'type': 'user', 'version': 2}})}.{body[2]}"
    )
    clients: list[tuple[Fields, str | None]] = [
        (ann(by_acme), ACME.public),
        ({"jwt": by_acme}, None),
        (ann(by_acme, EVE), None),
        (ann(forged, EVE), None),
        (ann(forged), None),
        (ann(""), None),
        (ann("a.b.c"), None),
        (ann("eyJ"), None),
        ({}, None),
        ({"user": "a", "pass": "b"}, None),
        # Whose key signed it, and for which account.
        (ann(user(ACME_SIGNING, nats={"issuer_account": ACME.public})), ACME.public),
        (ann(user(ACME_SIGNING)), None),
        (ann(user(ACME_SIGNING, nats={"issuer_account": STRICT.public})), None),
        (ann(user(STRICT, nats={"issuer_account": ACME.public})), None),
        (ann(user(FOREIGN)), None),
        (ann(user(FOREIGN, nats={"issuer_account": ACME.public})), None),
        (ann(user(OP)), None),
        (ann(user(ANN)), None),
        # Scoped keys.
        (ann(user(ACME_SCOPED, nats={"issuer_account": ACME.public} | unscoped())), ACME.public),
        (ann(user(ACME_SCOPED, nats={"issuer_account": ACME.public, "pub": {"allow": [">"]}} | unscoped())), None),
        *(
            (ann(user(ACME_SCOPED, nats={"issuer_account": ACME.public} | unscoped() | own)), None)
            for own in (
                {"subs": 1},
                {"subs": -1},
                {"data": -1},
                {"payload": 10},
                {"src": ["127.0.0.0/8"]},
                {"src": []},
                {"allowed_connection_types": ["STANDARD"]},
                {"times": [{"start": "00:00:00", "end": "23:59:59"}]},
                {"times_location": "Europe/Zurich"},
                {"pub": {"deny": []}},
                {"resp": {"max": 0, "ttl": 0}},
                {"bearer_token": True},
            )
        ),
        # Times.
        (ann(user(ACME, exp=now + 100)), ACME.public),
        (ann(user(ACME, exp=now - 1)), None),
        (ann(user(ACME, nbf=now + 100)), None),
        (ann(user(EXPIRED)), None),
        # Revocations, of a user and of all.
        (signed(BOB, jwt=user(ACME, BOB, iat=now - 100)), None),
        (signed(BOB, jwt=user(ACME, BOB, iat=now - 99)), ACME.public),
        (ann(user(STRICT, iat=now - 1000)), None),
        (ann(user(STRICT, iat=now - 999)), STRICT.public),
        # Bearer tokens.
        ({"jwt": user(ACME, nats={"bearer_token": True})}, ACME.public),
        ({"jwt": user(STRICT, nats={"bearer_token": True})}, None),
        # Where from, by what, and when.
        (ann(user(ACME, nats={"src": ["10.0.0.0/8"]})), None),
        (ann(user(ACME, nats={"src": ["10.0.0.0/8", "127.0.0.0/8"]})), ACME.public),
        (ann(user(ACME, nats={"allowed_connection_types": ["WEBSOCKET"]})), None),
        (ann(user(ACME, nats={"allowed_connection_types": ["standard"]})), ACME.public),
        (ann(user(ACME, nats={"times": [{"start": "00:00:00", "end": "23:59:59"}]})), ACME.public),
        *(
            (ann(user(ACME, nats=wrong)), None)
            for wrong in (
                {"times": [{"start": "12:00:00", "end": "12:00:00"}]},
                {"times": [{"start": "00:00", "end": "23:59"}]},
                {"times_location": "Nowhere"},
                {"pub": {"allow": ["a b"]}},
                {"pub": {"deny": [""]}},
                {"sub": {"allow": ["a..b"]}},
                {"sub": {"deny": ["a b c"]}},
            )
        ),
        (ann(user(ACME, iat=-1)), ACME.public),
        # Other claims, other algorithms.
        (ann(jwt(ACME, ANN.public, "account")), None),
        (ann(jwt(ACME, ACME.public, "user")), None),
        (ann(jwt(ACME, ANN.public, "user", algorithm="none")), None),
        (ann(jwt(ACME, ANN.public, "user", algorithm="HS256")), None),
    ]
    found = compare(tmp_path, operator_config(now), clients)
    first = found[0]
    assert isinstance(first, ServerUser)
    assert first.permissions is not None
    assert not first.permissions.publish.allows("secret.x")
    scoped = next(answer for answer in found if is_scoped(answer))
    assert isinstance(scoped, ServerUser)
    assert scoped.permissions is not None
    assert scoped.permissions.publish.allows("jobs.user.1")
    assert not scoped.permissions.publish.allows("jobs.other.1")
    assert scoped.limits.max_payload == 100


def test_jwts_of_version_1(tmp_path: Path) -> None:
    now = int(time.time())

    def user(issuer: Key, nats: dict[str, Any] | None = None, **fields: Any) -> Fields:
        return signed(ANN, jwt=first_jwt(issuer, ANN.public, "user", nats, **{"iat": now - 10} | fields))

    acme = first_jwt(
        OP, ACME.public, "account", {"limits": account_limits(), "signing_keys": [ACME_SIGNING.public]}, iat=now - 10
    )
    text = (
        f"operator: {first_jwt(OP, OP.public, 'operator', iat=now - 10)}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {ACME.public}: {acme} }}"
    )
    clients: list[tuple[Fields, str | None]] = [
        (user(ACME), ACME.public),
        (user(ACME, {"bearer_token": True}), ACME.public),
        (user(ACME, {"src": "10.0.0.0/8,127.0.0.1/32"}), ACME.public),
        (user(ACME, {"src": "127.0.0.1"}), None),
        (user(ACME, {"src": "127.0.0.1/255.0.0.0"}), None),
        (user(ACME, {"allowed_connection_types": ["WEBSOCKET"]}), ACME.public),
        (user(ACME_SIGNING, issuer_account=ACME.public), ACME.public),
        (user(ACME_SIGNING, {"issuer_account": ACME.public}), None),
        (user(STRICT), None),
        (user(ACME, exp=now - 1), None),
        (signed(ANN, jwt=user_jwt(ACME, ANN, iat=now - 10)), ACME.public),
        (signed(ANN, jwt=first_jwt(ACME, ANN.public, "account")), None),
    ]
    found = compare(tmp_path, text, clients)
    assert isinstance(found[0], ServerUser)
    # A limit that is not there is none, unlike in version 2.
    assert found[0].limits == ConnectionLimits()


def test_accounts_in_the_folder_of_a_resolver(tmp_path: Path) -> None:
    now = int(time.time())
    folders = [tmp_path / name for name in ("theirs", "ours")]
    (tmp_path / "op.jwt").write_text(f"-----BEGIN JWT-----\n{jwt(OP, OP.public, 'operator')}\n-----END JWT-----\n")
    small = account_jwt(OP, STRICT, {"limits": account_limits() | {"conn": 0}}, iat=now - 100)
    for folder in folders:
        folder.mkdir()
        (folder / f"{STRICT.public}.jwt").write_text(account_jwt(OP, STRICT, iat=now - 50))
        (folder / f"{FOREIGN.public}.jwt").write_text(account_jwt(FALSE_OP, FOREIGN))
        (folder / f"{EXPIRED.public}.jwt").write_text("no JWT")

    def config(folder: Path) -> str:
        preload = f"{ACME.public}: {account_jwt(OP, ACME)}, {STRICT.public}: {small}"
        return (
            f"operator: '{tmp_path}/op.jwt'\nsystem_account: {ACME.public}\nresolver_preload: {{ {preload} }}\n"
            f"resolver: {{ type: full, dir: '{folder}', allow_delete: false, interval: '2m', timeout: '1.9s' }}\n"
        )

    (tmp_path / "ours.conf").write_text(config(folders[1]))
    expected = {STRICT: True, ACME: True, FOREIGN: False, EXPIRED: False}
    with (
        nats_server(tmp_path, jetstream=False, extra=config(folders[0])) as theirs,
        served_store(None, ("-c", str(tmp_path / "ours.conf"))) as ours,
    ):
        for port in (theirs.port, ours.port):
            for account, is_let_in in expected.items():
                with closing(BareClient(port, signed(ANN, jwt=user_jwt(account, ANN, iat=now - 10)))) as client:
                    assert client.ask("SUB a 1") == is_let_in, (account, client.errors)
    text = config(folders[1]).replace("system_account", "# system_account")
    (tmp_path / "ours.conf").write_text(text)
    # As nats-server: the accounts of such a resolver are for a system account to replace.
    command = [sys.executable, "-m", "pelton", "serve", "-t", "-c", str(tmp_path / "ours.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "needs a system account" in done.stderr) == (1, True)


def unscoped() -> dict[str, Any]:
    """What a user of a scoped key says of its own limits: nothing."""
    return {"subs": 0, "data": 0, "payload": 0}


def is_scoped(answer: ServerUser | LoginRefusal) -> bool:
    return isinstance(answer, ServerUser) and answer.limits.max_subscriptions == 5


@contextmanager
def both_servers(folder: Path, text: str) -> Iterator[list[int]]:
    """Run nats-server and ours with a configuration and JetStream; yields their ports."""
    (folder / "pelton.conf").write_text(f"jetstream {{ store_dir: '{folder}/stores' }}\n{text}")
    with nats_server(folder, extra=text) as theirs, served_store(None, ("-c", str(folder / "pelton.conf"))) as ours:
        yield [theirs.port, ours.port]


def test_limits_that_an_account_leaves_out_are_zero(tmp_path: Path) -> None:
    stored = ACCOUNT_LIMITS | {"disk_storage": -1}
    keys = {name: Key("account", 10 + number) for number, name in enumerate(("conn", "subs", "payload", "streams"))}
    tokens = [
        account_jwt(OP, key, {"limits": {at: most for at, most in stored.items() if at != name}})
        for name, key in keys.items()
    ]
    operator = jwt(OP, OP.public, "operator", nats={"system_account": ACME.public})
    tokens.append(account_jwt(OP, ACME))
    preload = "\n".join(f"{key.public}: {token}" for key, token in zip([*keys.values(), ACME], tokens, strict=True))
    text = f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"

    def client(port: int, name: str) -> BareClient:
        return stack.enter_context(closing(BareClient(port, signed(ANN, jwt=user_jwt(keys[name], ANN)))))

    with both_servers(tmp_path, text) as ports, ExitStack() as stack:
        for port in ports:
            refused = client(port, "conn")
            assert not refused.ask()
            assert refused.errors[0] == "maximum account active connections exceeded"
            refused = client(port, "subs")
            assert refused.ask() or refused.errors == ["maximum subscriptions exceeded"]
            assert not refused.ask("SUB a 1")
            # Perhaps twice: that of the login may come after the answer to the first ping.
            assert set(refused.errors) == {"maximum subscriptions exceeded"}
            refused = client(port, "payload")
            assert refused.ask("PUB a 0\r\n")
            assert not refused.ask("PUB a 1\r\nx")
            assert refused.errors[0] == "Maximum Payload Violation"
            # Of streams, none is no limit.
            streaming = client(port, "streams")
            assert '"max_streams":0' in streaming.request("$JS.API.INFO")
            assert '"name":"S"' in streaming.request("$JS.API.STREAM.CREATE.S", '{"name":"S","subjects":["s"]}')
            consumer = '{"stream_name":"S","config":{"durable_name":"c"}}'
            assert '"name":"c"' in streaming.request("$JS.API.CONSUMER.CREATE.S.c", consumer)


# --- passwords


@pytest.mark.parametrize("password", ["", "x", "ünï", "a" * 100, "nul\0", "$2a$"])
def test_a_password_is_itself_only(password: str) -> None:
    assert is_password(password, password)
    assert not is_password(password, password + "x")
    assert not is_password(password + "x", password)


@pytest.mark.parametrize("prefix", [b"2a", b"2b"])
def test_a_hash_is_of_its_password_only(prefix: bytes) -> None:
    stored = bcrypt.hashpw(b"word", bcrypt.gensalt(4, prefix=prefix)).decode()
    assert is_hash(stored)
    assert is_password(stored, "word")
    assert not is_password(stored, "word2")
    assert not is_password(stored, stored)
    assert not is_password(stored, "")
    assert not is_password(stored, "word\0")


def test_long_passwords_are_compared_as_bcrypt_does() -> None:
    stored = bcrypt.hashpw(b"a" * 72, bcrypt.gensalt(4)).decode()
    assert is_password(stored, "a" * 100)
    assert not is_password(stored, "a" * 71)


@pytest.mark.parametrize("stored", ["$2a$", "$2a$10$short", "$2a$99$" + "a" * 53, "$3a$10$" + "a" * 53])
def test_what_only_looks_like_a_hash_lets_nobody_in_by_accident(stored: str) -> None:
    assert not is_password(stored, "")
    assert is_password(stored, stored) != is_hash(stored)
