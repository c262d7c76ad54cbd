"""Encodes commands of both sides."""

from __future__ import annotations

from typing import Final

import msgspec


class ServerHello(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a server tells of itself; field names are NATS's."""

    server_id: str
    server_name: str
    version: str
    go: str = ""
    git_commit: str = ""
    host: str
    port: int
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    max_payload: int = 0
    jetstream: bool = False
    client_id: int = 0
    client_ip: str = ""
    connect_info: bool = False
    remote_account: str = ""
    acc_is_sys: bool = False
    nonce: str = ""
    cluster: str = ""
    domain: str = ""
    connect_urls: tuple[str, ...] = ()
    ws_connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    proto: int = msgspec.field(default=0)
    api_lvl: int = 0


class ConnectOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a client tells of itself. A client that leaves ``verbose`` and ``pedantic`` out gets both, as on NATS."""

    verbose: bool = True
    pedantic: bool = True
    tls_required: bool = False
    auth_token: str | None = None
    user: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")
    jwt: str | None = None
    nkey: str | None = None
    sig: str | None = None
    account: str | None = None
    new_account: bool = False
    name: str | None = None
    lang: str | None = None
    version: str | None = None
    protocol: int = 0
    echo: bool = True
    headers: bool = False
    no_responders: bool = False


def parse_info(facts: bytes) -> ServerHello | None:
    """Return a server's introduction, or None if it is no valid JSON of one."""
    try:
        return msgspec.json.decode(facts, type=ServerHello)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def encode_info(hello: ServerHello) -> bytes:
    """Return the ``INFO`` line of a server."""
    # What clients look for is there even if it is false or 0.
    always = {"proto": hello.proto, "headers": hello.headers, "max_payload": hello.max_payload, "port": hello.port}
    return b"INFO %b\r\n" % msgspec.json.encode(msgspec.to_builtins(hello) | always)


def encode_connect(options: ConnectOptions) -> bytes:
    """Return the ``CONNECT`` line of a client."""
    always = {"verbose": options.verbose, "pedantic": options.pedantic, "echo": options.echo}
    return b"CONNECT %b\r\n" % msgspec.json.encode(msgspec.to_builtins(options) | always)


def encode_err(text: str) -> bytes:
    """Return the line by which a server refuses something."""
    return b"-ERR '%b'\r\n" % text.encode()


def encode_sub(subject: str, sid: bytes, queue: str = "") -> bytes:
    """Return the line that subscribes."""
    return b"SUB %b %b\r\n" % ((f"{subject} {queue}" if queue else subject).encode(), sid)


def encode_unsub(sid: bytes, limit: int = 0) -> bytes:
    """Return the line that unsubscribes, at once or after ``limit`` messages."""
    return b"UNSUB %b %d\r\n" % (sid, limit) if limit else b"UNSUB %b\r\n" % sid


def encode_pub(subject: str, reply: str, block: bytes | None, data: bytes) -> bytes:
    """Return a message that a client publishes."""
    names = (f"{subject} {reply}" if reply else subject).encode()
    if not block:
        return b"PUB %b %d\r\n%b\r\n" % (names, len(data), data)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (names, len(block), len(block) + len(data), block, data)


def encode_msg(subject: str, sid: bytes, reply: str, block: bytes | None, data: bytes) -> bytes:
    """Return a message that a server delivers."""
    back = f" {reply}".encode() if reply else b""
    if not block:
        return b"MSG %b %b%b %d\r\n%b\r\n" % (subject.encode(), sid, back, len(data), data)
    size = len(block) + len(data)
    return b"HMSG %b %b%b %d %d\r\n%b%b\r\n" % (subject.encode(), sid, back, len(block), size, block, data)


def status_block(code: int, text: str = "", **values: object) -> bytes:
    """Return the header block of a status; ``values`` are headers, ``_`` stands for ``-`` in their names."""
    opening = f"NATS/1.0 {code} {text}" if text else f"NATS/1.0 {code}"
    lines = [opening, *(f"{name.replace('_', '-')}: {value}" for name, value in values.items())]
    return "\r\n".join([*lines, "", ""]).encode()
