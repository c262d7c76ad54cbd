"""Logins with JWTs, and configurations. Pure functions of a random source, and of the time for what expires."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

from tests.fuzz.odd import NUMBERS, TEXTS, mutated
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, jwt, user_jwt

OPERATOR, SIGNING = Key("operator", 1), Key("operator", 2)
ACME, ACME_SIGNING, ACME_SCOPED, STRICT, FOREIGN = (Key("account", number) for number in range(1, 6))
_USERS: Final = tuple(Key("user", number) for number in range(1, 4))
# When all of it was issued: long ago, so that a case is the same whenever it is played.
_ISSUED: Final = 1_700_000_000


def operator_config() -> str:
    """An operator with two accounts, one of which has a scoped key."""
    operator = jwt(OPERATOR, OPERATOR.public, "operator", nats={"signing_keys": [SIGNING.public]}, iat=_ISSUED)
    template = {
        "pub": {"allow": ["jobs.{{name()}}.>", "at.{{tag(site)}}", "{{account-name()}}.x"]},
        "sub": {"allow": ["_INBOX.>", "{{tag(site)}}.>"], "deny": ["not.{{subject()}}"]},
        "subs": 5,
        "data": -1,
        "payload": 100,
    }
    scope = {"kind": "user_scope", "key": ACME_SCOPED.public, "role": "worker", "template": template}
    acme = {
        "signing_keys": [ACME_SIGNING.public, scope],
        "revocations": {_USERS[1].public: _ISSUED - 100},
        "default_permissions": {"pub": {"deny": ["secret.>"]}, "sub": {}},
    }
    strict = {"limits": ACCOUNT_LIMITS | {"disallow_bearer": True, "conn": 50}, "revocations": {"*": _ISSUED - 1000}}
    accounts = {
        ACME.public: account_jwt(OPERATOR, ACME, acme, iat=_ISSUED),
        STRICT.public: account_jwt(SIGNING, STRICT, strict, iat=_ISSUED),
    }
    preload = "\n".join(f"{public}: {text}" for public, text in accounts.items())
    return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"


class Login(NamedTuple):
    """What a client shows; it signs the server's nonce with ``key``."""

    token: str
    key: Key
    changed: str

    def fields(self, nonce: str) -> dict[str, Any]:
        """The fields of CONNECT."""
        signature = self.key.signature(nonce)
        if self.changed == "signature":
            signature = signature[:-4] + signature[-4:].swapcase()
        said: dict[str, Any] = {"jwt": self.token, "sig": signature}
        if self.changed == "no signature":
            del said["sig"]
        elif self.changed == "nkey":
            said["nkey"] = self.key.public
        return said


_CLAIMS: Final[dict[str, tuple[Any, ...]]] = {
    "subs": (-1, 0, 1, 5),
    "data": (-1, 0, 10),
    "payload": (-1, 0, 10, 1 << 40),
    "src": ([], ["127.0.0.0/8"], ["10.0.0.0/8"], ["x"], ["::1/128", "127.0.0.1/32"], None),
    "times": (
        [],
        [{"start": "00:00:00", "end": "23:59:59"}],
        [{"start": "x", "end": "y"}],
        [{"start": "12:00:00", "end": "12:00:00"}],
    ),
    "times_location": ("", "UTC", "Europe/Zurich", "Nowhere"),
    "pub": ({}, {"allow": ["a"]}, {"deny": [">"]}, {"allow": ["a b"]}, {"allow": ["a..b"]}, {"allow": []}),
    "sub": ({}, {"allow": ["a", "a.> g"]}, {"deny": ["a.*"]}, {"allow": ["{{name()}}"]}, {"deny": ["b g"]}),
    "resp": (None, {"max": 1, "ttl": 1_000_000_000}, {"max": 0, "ttl": 0}, {"max": -1}),
    "bearer_token": (True, False),
    "allowed_connection_types": ([], ["STANDARD"], ["standard"], ["WEBSOCKET"], ["x"], None),
    "issuer_account": (ACME.public, STRICT.public, FOREIGN.public, "", "x"),
    "tags": ([], ["site:a"], ["site:a", "site:b"], ["site:a b"], ["site:*"], ["site:{{name()}}"], ["SITE:Z"]),
    "version": (1, 2, 3, 0),
    "type": ("user", "account", "operator", "", "x"),
}


def logins(random: Random, number: int = 10) -> list[Login]:
    """Users' JWTs, with claims and issuers of all kinds."""
    return [_login(random) for _ in range(number)]


def _login(random: Random) -> Login:
    issuer = random.choice((ACME, ACME, ACME_SIGNING, ACME_SCOPED, ACME_SCOPED, STRICT, FOREIGN, OPERATOR, _USERS[0]))
    user, claims = random.choice(_USERS), dict[str, Any]()
    if issuer in (ACME_SIGNING, ACME_SCOPED):
        claims["issuer_account"] = ACME.public
    while random.random() < 0.5:
        name = random.choice(list(_CLAIMS))
        claims[name] = random.choice(_CLAIMS[name])
    fields: dict[str, Any] = {"iat": random.choice((_ISSUED, _ISSUED, _ISSUED - 100, _ISSUED - 1000, 0, -1))}
    if random.random() < 0.2:
        fields["exp"] = random.choice((0, 1, _ISSUED, 4_000_000_000))
    if random.random() < 0.1:
        fields["nbf"] = random.choice((0, 4_000_000_000))
    if random.random() < 0.3:
        fields["name"] = random.choice(("ann", "a b", "*", ">", "{{name()}}", "a.b", "", "ä"))
    if random.random() < 0.05:
        fields["algorithm"] = random.choice(("none", "HS256", "ed25519", "ED25519-NKEY"))
    if issuer is ACME_SCOPED and random.random() < 0.8:
        # It carries nothing of its own.
        own = claims if random.random() < 0.2 else {}
        claims = own | {"issuer_account": ACME.public, "tags": claims.get("tags", [])}
        token = jwt(issuer, user.public, "user", nats=claims, **fields)
    else:
        token = user_jwt(issuer, user, claims, **fields)
    if random.random() < 0.1:
        other = mutated(random, token.encode()).decode("latin-1")
        # Go's base64 passes over line ends and spare bits: what means the same is refused here.
        token = token if _meaning(other) == _meaning(token) else other
    changed = random.choice(("",) * 12 + ("signature", "no signature", "nkey"))
    return Login(token, user if random.random() < 0.95 else random.choice(_USERS), changed)


def _meaning(token: str) -> list[bytes]:
    with suppress(ValueError):
        return [urlsafe_b64decode(f"{piece}==".encode("latin-1")) for piece in token.split(".")]
    return []


# What a user tries who was let in: each line is allowed or not.
TRIALS: Final = (
    *(
        "PUB a 0\r\n",
        "PUB secret.x 0\r\n",
        "PUB jobs.ann.x 0\r\n",
        "PUB at.a 0\r\n",
        "PUB at.b 0\r\n",
        "PUB jobs.user.x 0\r\n",
    ),
    *("SUB a 1", "SUB a.b g 2", "SUB a.> 3", "SUB b 4", "SUB b g 5", "SUB not.x 6", "SUB _INBOX.x 7", "SUB > 8"),
)


# --- configurations

# Parts of configurations, each on a line of its own.
_PIECES: Final = f"""
port: -1
host: 127.0.0.1
listen: '127.0.0.1:4222'
max_payload: 2MB
max_control_line: 4k
ping_max: 3
max_connections: 10
max_subscriptions: 7
max_pending: 1G
ping_interval: '1m'
ping_interval = 3
write_deadline: 2s
debug: true
server_name: n
server_tags: [a, b]
lame_duck_duration: 60s
jetstream: enabled
jetstream {{ store_dir: '/tmp/none' }}
jetstream {{ max_mem: 1G, max_file: 10GB, domain: d }}
no_auth_user: u
system_account: S
x: 1
$v: 3
max_payload: $v
http: 8222
pid_file: '/tmp/x'
log_file: '/tmp/x'
include 'none.conf'
# comment
// comment
accounts {{ A {{ users: [ {{user: u, password: p}} ] }} }}
accounts {{ A {{ jetstream: enabled, limits {{ max_conn: 3, max_subs: 1 }} }} }}
accounts {{ A {{ exports: [{{service: a.>}}] }} B {{ imports: [{{service: {{account: A, subject: a.b}}, to: c}}] }} }}
accounts {{ A {{ exports: [{{stream: a.>}}] }} B {{ imports: [{{stream: {{account: A, subject: a.b}}, prefix: c}}] }} }}
accounts {{ A {{ exports: [ {{stream: a.>, accounts: [B]}} ] }} B {{ jetstream: enabled }} }}
authorization {{ user: u, password: p, timeout: 1 }}
authorization {{ token: t }}
authorization {{ users: [ {{nkey: {_USERS[0].public}}} ] }}
authorization {{ users: [ {{user: u, pass: p, permissions: {{ publish: [a, b.>], subscribe: {{ deny: '>' }} }} }} ] }}
authorization {{ default_permissions {{ publish: a, allow_responses: {{ max: 3, expires: 1m }} }}, users: [] }}
websocket {{ port: -1, no_tls: true }}
websocket {{ listen: '127.0.0.1:0', no_tls: true, authorization {{ timeout: 1 }} }}
websocket {{ port: 8080, no_tls: true, same_origin: true, compression: true, no_auth_user: u }}
""".strip().splitlines()
_WORDS: Final = (
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ";",
        ":",
        "=",
        "\n",
        " ",
        "'",
        '"',
        "#",
        "$",
        "$HOME",
        "true",
        "null",
        "1k",
        "1.5",
        "-3",
        "2h",
    ),
    *(
        "u",
        "A",
        "user",
        "password",
        "permissions",
        "publish",
        "deny",
        "allow",
        "a.>",
        ">",
        "a b",
        "2025-01-01T00:00:00Z",
        "\\x41",
        "\\",
    ),
)


def configurations(random: Random, number: int = 4) -> list[str]:
    """Configurations, a few of their words changed."""
    return [_configuration(random) for _ in range(number)]


def _configuration(random: Random) -> str:
    text = random.choice(("\n", "\n", ", ", " ")).join(random.sample(_PIECES, random.randrange(1, 5)))
    while random.random() < 0.6:
        at = random.randrange(len(text) + 1)
        end = at + random.choice((0, 0, 1, 3, 8))
        word = random.choice((*_WORDS, random.choice(NUMBERS), json.dumps(random.choice(TEXTS))))
        text = text[:at] + word + text[end:]
    return text.encode("utf-8", "replace").decode()
