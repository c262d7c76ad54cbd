"""Keys and JWTs for tests, made as NATS's tools make them."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import nkeys

PREFIXES = {
    "user": nkeys.PREFIX_BYTE_USER,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
}
NOW = 1_800_000_000


class Key:
    """A key pair; the same ``number`` gives the same key."""

    def __init__(self, role: str, number: int = 1) -> None:
        seed = hashlib.sha256(f"{role} {number}".encode()).digest()
        encoded = nkeys.encode_seed(seed, PREFIXES[role])
        self.seed: str = encoded.decode()
        self._pair = nkeys.from_seed(encoded)
        self.public: str = self._pair.public_key.decode()

    def sign(self, data: bytes) -> bytes:
        return bytes(self._pair.sign(data))

    def signature(self, nonce: str) -> str:
        """Return a signed nonce as clients send it."""
        return base64.urlsafe_b64encode(self.sign(nonce.encode())).decode().rstrip("=")


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def jwt(issuer: Key, subject: str, kind: str, *, algorithm: str = "ed25519-nkey", **fields: Any) -> str:
    """Return a signed JWT; ``nats`` has its claims, other fields are those of the token."""
    nats = {"version": 2, "type": kind} | fields.pop("nats", {})
    body = {"iat": NOW - 10, "iss": issuer.public, "sub": subject, "name": kind, "nats": nats} | fields
    body["jti"] = base64.b32encode(hashlib.new("sha512_256", json.dumps(body).encode()).digest()).decode().rstrip("=")
    signed = f"{part({'typ': 'JWT', 'alg': algorithm})}.{part(body)}"
    return f"{signed}.{base64.urlsafe_b64encode(issuer.sign(signed.encode())).decode().rstrip('=')}"


def first_jwt(issuer: Key, subject: str, kind: str, nats: dict[str, Any] | None = None, **fields: Any) -> str:
    """Return a JWT of version 1."""
    body = {"iat": NOW - 10, "iss": issuer.public, "sub": subject, "name": kind, "type": kind, "nats": nats or {}}
    said = part(body | {"jti": "x"} | fields)
    signature = base64.urlsafe_b64encode(issuer.sign(said.encode())).decode().rstrip("=")
    return f"{part({'typ': 'jwt', 'alg': 'ed25519'})}.{said}.{signature}"


UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = UNLIMITED | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}


def user_jwt(issuer: Key, user: Key, nats: dict[str, Any] | None = None, **fields: Any) -> str:
    return jwt(issuer, user.public, "user", nats=UNLIMITED | (nats or {}), **fields)


def account_jwt(issuer: Key, account: Key, nats: dict[str, Any] | None = None, **fields: Any) -> str:
    return jwt(issuer, account.public, "account", nats={"limits": ACCOUNT_LIMITS} | (nats or {}), **fields)
