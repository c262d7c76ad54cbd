"""Encodes commands of both sides."""

from __future__ import annotations

from typing import Final

import msgspec

from pelton.wire.hello import ConnectOptions, ServerHello

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
