"""The leaf protocol of nats-server, as a spoke: what a hub sends becomes commands, and what it is sent bytes. Pure.

A leaf node connects to a hub, which greets it with ``INFO``. The leaf introduces itself with ``CONNECT``; the hub
answers with a second ``INFO``, which tells the account and what may cross, and then with its interest. From then on
each side tells the other what it wants (``LS+``, with a weight for a queue group) and no longer wants (``LS-``), and
sends each message that the other side wants once: ``LMSG``, or ``HMSG`` with headers, and with the queue groups of
which the other side is to choose a member. Messages are not compressed, and both sides send ``PING``.

What a stream delivers is found by one subject and has another, which travels behind the reply, after an ``@``.

A hub is no more trusted than a client: input that breaks the protocol becomes a final :class:`Violation`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from pelton.wire.protocol import (
    MALFORMED,
    TOO_LARGE,
    TOO_LONG,
    UNKNOWN,
    BrokenError,
    Command,
    KnownLines,
    Parser,
    Ping,
    Pong,
    WireLimits,
    sizes_of,
)

LOOP_PREFIX: Final = "$LDS."
"""A leaf subscribes to a subject of its own below it: whoever is told of that by a hub has come back to itself."""
LOOP_DETECTED: Final = "Loop detected"
_ACK: Final = "$JS.ACK."
_LONGEST_LINE: Final = 1 << 20
_LARGEST_PAYLOAD: Final = 64 << 20
_DIGITS: Final = 9
# INFO of a large cluster names all its addresses.
LONGEST_HELLO: Final = 1 << 16
PROTOCOL: Final = 1


class CrossingRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which subjects may cross: those of ``allow``, None for all, but for those of ``deny``."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


class HubHello(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub tells of itself; field names are NATS's.

    ``leafnode_urls`` is None if it is no port for leaf nodes. ``import_rules`` are what a leaf may ask for, and
    ``export`` what it may send. ``is_last``: the hub has let the leaf in, and tells its interest next.
    """

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    domain: str = ""
    client_id: int = 0
    max_payload: int = 1 << 20
    leafnode_urls: tuple[str, ...] | None = None
    info_on_connect: bool = False
    is_last: bool = msgspec.field(default=False, name="connect_info")
    remote_account: str = ""
    import_rules: CrossingRules | None = msgspec.field(default=None, name="import")
    export: CrossingRules | None = None


class LeafConnect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a leaf tells of itself; field names are NATS's. A leaf that proves itself gives one kind of credentials."""

    version: str
    server_id: str
    name: str
    jwt: str = ""
    nkey: str = ""
    sig: str = ""
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    domain: str = ""
    cluster: str = ""
    headers: bool = False
    jetstream: bool = False
    deny_pub: tuple[str, ...] = ()
    compress_mode: str = ""
    remote_account: str = ""
    protocol: int = 0


# --- what a hub sends


class Hello(Command, frozen=True, gc=False):
    """The hub tells of itself, once before the leaf's ``CONNECT``, once after it, and when something changes."""

    hub: HubHello


class HubRefusal(Command, frozen=True, gc=False):
    """The hub refuses something (``-ERR``), and mostly closes the connection then."""

    text: str


class LeafSub(Command, frozen=True, gc=False):
    """The hub wants messages; with ``queue``, ``weight`` is how many members the group has there."""

    subject: str
    queue: str
    weight: int


class LeafUnsub(Command, frozen=True, gc=False):
    """The hub wants these messages no longer."""

    subject: str
    queue: str


class LeafMessage(Command, frozen=True, gc=False):
    """A message; ``route`` is what it was sent to, ``subject`` its own, which differ for what a stream delivers.

    A member of each of the ``queues`` is to get it, and all that subscribe without a group.
    """

    route: str
    subject: str
    reply: str
    queues: tuple[str, ...]
    block: bytes | None
    data: bytes


def read_hello(line: bytes) -> HubHello | None:
    """Return what an ``INFO`` line tells, without its name; None if it is not valid."""
    try:
        return msgspec.json.decode(line, type=HubHello)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class LeafParser(Parser):
    """Reads what a hub sends. It never raises: what breaks the protocol becomes a :class:`Violation`."""

    def __init__(self) -> None:
        super().__init__(WireLimits(line=_LONGEST_LINE, payload=_LARGEST_PAYLOAD), KnownLines())

    def _parse(self, data: bytes, add: Callable[[Command], None]) -> int:
        """Add the complete commands, and return how many bytes they take; note how many the next one needs."""
        position, end, self._needed = 0, len(data), 0
        while position < end and not self.is_paused:
            stop = data.find(b"\n", position)
            if stop < 0 or stop - position > _LONGEST_LINE:
                if end - position > _LONGEST_LINE:
                    raise BrokenError(TOO_LONG)
                break
            words = data[position:stop].split()
            read_message = _MESSAGES.get(words[0]) if words else None
            if read_message is None:
                _understand(data[position:stop].strip(), words, add)
                position = stop + 1
                continue
            block_size, size = read_message(words)
            start = stop + 1
            body = start + size
            if size > self.limits.payload:
                raise BrokenError(TOO_LARGE)
            if body + 2 > end:
                self._needed = body + 2 - position
                break
            if data[body : body + 2] != b"\r\n":
                raise BrokenError(UNKNOWN)
            add(_message(words, data[start : start + block_size], data[start + block_size : body]))
            position = body + 2
        return position


def _sizes_of_headers(words: Sequence[bytes]) -> tuple[int, int]:
    if len(words) < 4:
        raise BrokenError(MALFORMED)
    block, size = sizes_of(words)
    return max(block, 0), size


def _size(words: Sequence[bytes]) -> tuple[int, int]:
    if len(words) < 3 or not words[-1].isdigit() or len(words[-1]) > _DIGITS:
        raise BrokenError(MALFORMED)
    return 0, int(words[-1])


_MESSAGES: Final = {b"LMSG": _size, b"HMSG": _sizes_of_headers}


def _message(words: Sequence[bytes], block: bytes, data: bytes) -> LeafMessage:
    """Return a message of its line: its subject, then a reply, or a sign and queue groups, then sizes."""
    texts = [word.decode() for word in (words[1:-2] if words[0] == b"HMSG" else words[1:-1])]
    route, reply, queues = texts[0], "", tuple[str, ...]()
    if len(texts) == 2:
        reply = texts[1]
    elif len(texts) > 2 and texts[1] == "|":
        queues = tuple(texts[2:])
    elif len(texts) > 3 and texts[1] == "+":
        reply, queues = texts[2], tuple(texts[3:])
    elif len(texts) > 1:
        raise BrokenError(MALFORMED)
    subject = route
    if reply.startswith(_ACK) and "@" in reply:
        reply, _, subject = reply.rpartition("@")
    return LeafMessage(route, subject or route, reply, queues, block or None, data)


def _understand(line: bytes, words: Sequence[bytes], add: Callable[[Command], None]) -> None:
    name, rest = (words[0], line[len(words[0]) :].strip()) if words else (b"", b"")
    if name == b"PING":
        add(Ping())
    elif name == b"PONG":
        add(Pong())
    elif name == b"LS+" and len(words) in (2, 4):
        add(LeafSub(words[1].decode(), words[2].decode(), _size(words)[1]) if len(words) == 4 else _sub(words[1]))
    elif name == b"LS-" and len(words) in (2, 3):
        add(LeafUnsub(words[1].decode(), words[2].decode() if len(words) == 3 else ""))
    elif name == b"INFO" and (hub := read_hello(rest)) is not None:
        add(Hello(hub))
    elif name == b"-ERR":
        add(HubRefusal(rest.decode("utf-8", "replace").strip("'")))
    elif name != b"+OK":
        raise BrokenError(UNKNOWN)


def _sub(subject: bytes) -> LeafSub:
    return LeafSub(subject.decode(), "", 0)


# --- what a leaf sends


def encode_connect(options: LeafConnect) -> bytes:
    """Return the line by which a leaf introduces itself."""
    return b"CONNECT %b\r\n" % msgspec.json.encode(options)


def encode_interest(subject: str, queue: str, weight: int) -> bytes:
    """Return the line that tells how many subscriptions there are: none, some, or how many members of a group."""
    if not weight:
        return f"LS- {subject} {queue}".rstrip().encode() + b"\r\n"
    return (f"LS+ {subject} {queue} {weight}\r\n" if queue else f"LS+ {subject}\r\n").encode()


def encode_leaf_message(
    route: str, subject: str, reply: str, queues: Iterable[str], block: bytes | None, data: bytes
) -> bytes:
    """Return a message for the other side: see :class:`LeafMessage`. A subject of its own needs an ack's reply."""
    if subject != route and reply.startswith(_ACK):
        reply = f"{reply}@{subject}"
    chosen = " ".join(queues)
    middle = f"{'+' if reply else '|'} {reply} {chosen}".replace("  ", " ") if chosen else reply
    head = f"{route} {middle}".rstrip().encode()
    if not block:
        return b"LMSG %b %d\r\n%b\r\n" % (head, len(data), data)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (head, len(block), len(block) + len(data), block, data)


_USER: Final = 20 << 3
_SEED: Final = 18
_KEY_BYTES: Final = 32


def sign_with(seed: str, data: bytes) -> tuple[str, str] | None:
    """Return a user's public key, and its signature of some bytes; None if the text is no seed of one."""
    from nacl.signing import SigningKey

    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except (binascii.Error, ValueError):
        return None
    kind = raw[0] >> 3 == _SEED and (raw[0] & 7) << 5 | raw[1] >> 3 if len(raw) == 2 + _KEY_BYTES + 2 else None
    if kind != _USER or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    key = SigningKey(raw[2:-2])
    public = bytes([_USER]) + bytes(key.verify_key)
    text = base64.b32encode(public + binascii.crc_hqx(public, 0).to_bytes(2, "little")).decode().rstrip("=")
    return text, base64.urlsafe_b64encode(key.sign(data).signature).decode().rstrip("=")
