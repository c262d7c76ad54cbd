"""Certificates name users, as on the real server."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from pelton.server.identity import Credentials, ServerUser, TlsPeer, parts_of, peer_of, user_of_peer
from pelton.server.users import ConfiguredUsers
from tests.kit.nats_server import nats_server
from tests.kit.served import config_of, served_store

USERS = [
    "ann@example.com",
    "web.example.com",
    "spiffe://example.com/worker",
    "CN=dan,OU=garage,O=ACME",
    "O=ACME,OU=lab,CN=eve",
    "CN=with\\, comma,O=ACME",
    "plain",
]
# The subject and the alternative names of a certificate, and whose it is.
CASES = [
    ("/O=ACME/CN=x", "email:ann@example.com", "ann@example.com"),
    ("/O=ACME/CN=x", "DNS:web.example.com", "web.example.com"),
    ("/O=ACME/CN=x", "URI:spiffe://example.com/worker", "spiffe://example.com/worker"),
    ("/O=ACME/CN=x", "DNS:web.example.com,email:ann@example.com", "ann@example.com"),
    ("/O=ACME/OU=garage/CN=dan", "", "CN=dan,OU=garage,O=ACME"),
    ("/CN=dan/O=ACME/OU=garage", "", "CN=dan,OU=garage,O=ACME"),
    ("/O=ACME/OU=lab/CN=eve", "DNS:nobody.example.com", "O=ACME,OU=lab,CN=eve"),
    ("/O=ACME/CN=with, comma", "", "CN=with\\, comma,O=ACME"),
    ("/O=ACME/CN=dan", "", None),
    ("/O=ACME/OU=garage/OU=garage/CN=dan", "", None),
    ("/CN=plain", "", None),
    ("/O=ACME/CN=x", "DNS:nobody.example.com", None),
]


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def certificate_authority(folder: Path, name: str) -> None:
    openssl(folder, "req", "-x509", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def signed_certificate(folder: Path, authority: str, name: str, subject: str, names: str) -> None:
    extension = f"subjectAltName={names}\n" if names else "keyUsage=digitalSignature\n"
    (folder / f"{name}.ext").write_text(extension)
    openssl(folder, "req", *_KEY, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    signing = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", f"{name}.ext"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificate_authority(folder, "ca")
    for number, (subject, names, _) in enumerate([("/CN=server", "IP:127.0.0.1", None), *CASES]):
        signed_certificate(folder, "ca", str(number), subject, names)
    return folder


def config(authority: Path) -> str:
    users = ",".join(f"{{user: {json.dumps(user)}}}" for user in USERS)
    tls = f"cert_file: '{authority}/0.pem', key_file: '{authority}/0.key', ca_file: '{authority}/ca.pem'"
    return f"tls {{{tls}, verify_and_map: true}}\naccounts {{ A {{ users: [{users}] }} }}"


def certificate(authority: Path, number: int) -> dict[str, object]:
    """Return a certificate as a server in Python sees it, once it is verified."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(authority / "0.pem", authority / "0.key")
    server.load_verify_locations(authority / "ca.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client.load_cert_chain(authority / f"{number}.pem", authority / f"{number}.key")
    client.load_verify_locations(authority / "ca.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = theirs.getpeercert()
    assert found is not None
    return dict(found)


def is_let_in(authority: Path, port: int, number: int) -> bool:
    """Whether the real server lets a client with this certificate in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority / "ca.pem")
    context.load_cert_chain(authority / f"{number}.pem", authority / f"{number}.key")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        while plain.recv(1) != b"\n":
            pass
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
            with secure.makefile("rb") as lines:
                while (line := lines.readline()) and not line.startswith((b"PONG", b"-ERR")):
                    pass
                return line.startswith(b"PONG")


def test_the_real_server_knows_the_same_users(authority: Path, tmp_path: Path) -> None:
    users = ConfiguredUsers(config_of(config(authority), read=lambda path: "").settings)
    (tmp_path / "pelton.conf").write_text(config(authority))
    with (
        nats_server(tmp_path, jetstream=False, extra=config(authority)) as server,
        served_store(None, ("-c", str(tmp_path / "pelton.conf"))) as ours,
    ):
        for number, (subject, names, expected) in enumerate(CASES, start=1):
            peer = peer_of(certificate(authority, number))
            assert peer is not None
            assert user_of_peer(peer, USERS) == expected, (subject, names)
            answer = users.identify(Credentials(peer=peer, user="plain"), 0.0)
            assert isinstance(answer, ServerUser) == (expected is not None)
            if isinstance(answer, ServerUser):
                assert (answer.name, answer.account) == (expected, "A")
            assert is_let_in(authority, server.port, number) == (expected is not None), (subject, names)
            assert is_let_in(authority, ours.port, number) == (expected is not None), (subject, names)
    assert not isinstance(users.identify(Credentials(user="plain"), 0.0), ServerUser)


def test_without_a_certificate_there_is_no_peer() -> None:
    assert peer_of(None) is None
    assert peer_of({}) is None
    assert user_of_peer(TlsPeer(), ["CN=a", ""]) is None


@pytest.mark.parametrize("text", ["", "CN", "CN=a,", "CN=a,b", "=a", "CN=a;O=b\\"])
def test_what_is_no_distinguished_name(text: str) -> None:
    assert parts_of(text) is None or text == "CN=a,"


def test_distinguished_names() -> None:
    assert parts_of("CN=a\\,b + UID=7, o = ACME ") == (
        frozenset({("CN", "a,b"), ("UID", "7")}),
        frozenset({("O", "ACME")}),
    )
    assert parts_of("commonName=a") == parts_of("cn=a")
    assert parts_of("CN=\\41") == parts_of("CN=A")
