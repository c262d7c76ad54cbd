"""Certificates and credentials as an operator would make them, for servers that require them."""

import base64
import json
import os
import subprocess
from pathlib import Path

import nkeys

_CNF = "[ext]\nsubjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:false\n"


class Certificates:
    """A private certificate authority, and what it has signed; files below ``home``."""

    def __init__(self, home: Path) -> None:
        self._home = home
        home.mkdir()
        self.ca = home / "ca.pem"
        new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
        _openssl(*new, "-subj", "/CN=authority", "-keyout", home / "ca.key", "-out", self.ca)
        (home / "ext.cnf").write_text(_CNF)
        self.server = self._signed("server")
        self.client = self._signed("client")

    def _signed(self, name: str) -> tuple[Path, Path]:
        key, request, cert = (self._home / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl(*new, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        by = ["-CA", self.ca, "-CAkey", self._home / "ca.key", "-CAcreateserial", "-days", "1"]
        _openssl(
            "x509", "-req", "-in", request, *by, "-extfile", self._home / "ext.cnf", "-extensions", "ext", "-out", cert
        )
        return cert, key

    def configuration(self, *, verify: bool = False) -> str:
        """Return the TLS section of a server's configuration."""
        cert, key = self.server
        parts = {"cert_file": str(cert), "key_file": str(key), "ca_file": str(self.ca), "verify": verify}
        return f"tls {json.dumps(parts)}"


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Person:
    """An identity with a key: an operator (O), account (A) or user (U)."""

    def __init__(self, kind: bytes) -> None:
        prefix = {b"O": nkeys.PREFIX_BYTE_OPERATOR, b"A": nkeys.PREFIX_BYTE_ACCOUNT, b"U": nkeys.PREFIX_BYTE_USER}
        self.seed = nkeys.encode_seed(os.urandom(32), prefix[kind]).decode()
        self.name = self._pair().public_key.decode()

    def _pair(self) -> nkeys.KeyPair:
        return nkeys.from_seed(bytearray(self.seed.encode()))

    def signs(self, subject: str, rights: dict[str, object], expires: int = 0) -> str:
        """Return a JWT with the permissions of ``subject``."""
        claims = {"jti": os.urandom(16).hex(), "iat": 1, "iss": self.name, "sub": subject, "nats": rights}
        if expires:
            claims["exp"] = expires
        head = _base64(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        body = f"{head}.{_base64(json.dumps(claims).encode())}"
        return f"{body}.{_base64(self._pair().sign(body.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Company:
    """An operator and an account with JetStream, as a server's configuration and users' credentials."""

    def __init__(self) -> None:
        self._operator, self._account, self._system = Person(b"O"), Person(b"A"), Person(b"A")

    def configuration(self) -> str:
        """Return the operator and accounts section of a server's configuration."""
        limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1}
        room = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "leaf": -1}
        account = {"type": "account", "version": 2, "limits": limits | room}
        system = {"type": "account", "version": 2, "limits": limits}
        operator = self._operator.signs(self._operator.name, {"type": "operator", "version": 2})
        known = {
            self._account.name: self._operator.signs(self._account.name, account),
            self._system.name: self._operator.signs(self._system.name, system),
        }
        preload = "\n".join(f"{name}: {jwt}" for name, jwt in known.items())
        return (
            f"operator: {operator}\nsystem_account: {self._system.name}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"
        )

    def credentials(self, expires: int = 0) -> str:
        """Return the credentials file of a new user; ``expires`` in seconds since the epoch."""
        user = Person(b"U")
        rights = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        jwt = self._account.signs(user.name, rights, expires)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
