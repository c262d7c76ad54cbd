"""The client protocol: bytes come in any portions, commands go out in order, and are encoded.

A line names a command, and for messages the sizes of what follows it. Traffic repeats its lines (the same subject, the
same size), so the meaning of a message's line is cached once the line was seen for the second time: a line that never
repeats, such as an ack's, must not push out those that do. Messages whose lines do not repeat, as each has its own
reply, are read together once many of one size have followed each other. All connections of a server share what is
known, so that one costs no memory but that of its unfinished input; which is kept in one piece, however small the
portions in which it came, and looked at again once enough has arrived.

A client's ``CONNECT`` is the last command until :meth:`Parser.go_on`: what follows it depends on who the client is, and
waits as bytes. Before it, nothing else is read at all.

The parser never raises: input that breaks the protocol becomes a final :class:`Violation`.

A client may prove who it is by a signature with its nkey. The text form of such a key is base32 of a prefix byte, whose
first letter says what the key is for, 32 bytes of the key (ed25519), and a CRC-16.

**NATS's text form of ed25519 public keys, and signatures by them. Pure.** An nkey is base32 of a prefix byte, whose
first letter says what the key is for, 32 bytes of the key, and a CRC-16.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

ConnectionState = Literal["greeted", "open", "closed"]
"""A client's connection is ``greeted``, then ``open`` once the client was let in, then ``closed`` for good."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """What one side sent."""


class Connect(Command, frozen=True, gc=False):
    """A client introduces itself; ``options`` is its JSON."""

    options: bytes


class Pub(Command, frozen=True, gc=False):
    """A client publishes; ``reply`` is empty if it expects no answer."""

    subject: str
    reply: str
    data: bytes


class PubRun(Command, frozen=True, gc=False):
    """A client publishes messages that follow each other, all to one subject; each has its reply and its data."""

    subject: str
    replies: list[str]
    payloads: list[bytes]

    @property
    def messages(self) -> list[Pub]:
        """The same, as single messages."""
        return [Pub(self.subject, reply, data) for reply, data in zip(self.replies, self.payloads, strict=True)]


class AckRun(Command, frozen=True, gc=False):
    """A client acknowledges deliveries, one after another, and asks for no answer; each has its subject."""

    subjects: list[str]

    @property
    def messages(self) -> list[Pub]:
        """The same, as single messages."""
        return [Pub(subject, "", _ACKED) for subject in self.subjects]


class Hpub(Command, frozen=True, gc=False):
    """A client publishes a message with headers; ``block`` is their encoded block."""

    subject: str
    reply: str
    block: bytes
    data: bytes


class Sub(Command, frozen=True, gc=False):
    """A client subscribes under an id of its own; with ``queue`` one member of that group gets each message."""

    subject: str
    queue: str
    sid: bytes


class Unsub(Command, frozen=True, gc=False):
    """A client unsubscribes, at once or once it has received ``limit`` messages in all (0: at once)."""

    sid: bytes
    limit: int


class Ping(Command, frozen=True, gc=False):
    """The other side asks whether this one still answers."""


class Pong(Command, frozen=True, gc=False):
    """The answer to a ping."""


class Violation(Command, frozen=True, gc=False):
    """What was received is no command, or exceeds a limit. Nothing after it is read: close the connection.

    ``text`` is what NATS servers answer.
    """

    text: str


UNKNOWN: Final = "Unknown Protocol Operation"
MALFORMED: Final = "Parser Error"
TOO_LONG: Final = "maximum control line exceeded"
TOO_LARGE: Final = "Maximum Payload Violation"
NOT_LOGGED_IN: Final = "Authorization Violation"

# How many lines are remembered, and how long they may be: what clients can make a server keep is bounded.
_KNOWN_LINES: Final = 8192
_LONGEST_KNOWN: Final = 128
# Each ack has a line of its own; so has a message with a reply.
_ACK: Final = b"PUB $JS.ACK."
_PLAIN_ACK: Final = b" 4\r\n+ACK\r\n"
_BETWEEN_ACKS: Final = " 4\r\n+ACK\r\nPUB "
_ACKED: Final = b"+ACK"
_SHORT_LINE: Final = 256
# As most clients send them, and shorter than any line.
_ACKS: Final = re.compile(rb"(?:PUB \$JS\.ACK\.[!-~]{1,240} 4\r\n\+ACK\r\n)+").match
_PUB: Final = b"PUB "
_ONE: Final = re.compile(rb"PUB ([!-~]+) ([!-~]+) (\d{1,9})\r\n").match
# So many messages of one size follow each other before they are read together: that needs a pattern for the size, and
# to make one takes as long as reading a hundred.
_ALIKE_AFTER: Final = 64
_KNOWN_SIZES: Final = 128
_MAX_DIGITS: Final = 9
_NO_SIZE: Final = -1
_SPACE: Final = ord(" ")
# How many bytes become commands at a time: a frame of a WebSocket can bring more.
_PORTION: Final = 64 << 10
# The limit of a line applies to what follows its name.
_NAME: Final = 64


class WireLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most bytes of a line behind its name, and of a message with its headers."""

    line: int = 4096
    payload: int = 1_048_576


_Read = Callable[[bytes], Command]
_Head = tuple[str, str, int, int]
"""The line of a message: subject, reply, the sizes of its header block (-1: none) and of all that follows. A plain
tuple: one is made for every line that is not known."""


class BrokenError(Exception):
    """The input is no command."""


class _Alike(NamedTuple):
    """What finds messages of one size that follow each other: all of them, and the parts of each."""

    run: Callable[[bytes, int, int], re.Match[bytes] | None]
    each: Callable[[bytes, int, int], list[tuple[bytes, bytes, bytes]]]


class KnownLines:
    """The lines of messages that were seen before, and what they mean; for all connections of a server."""

    def __init__(self) -> None:
        self.meanings: dict[bytes, _Head] = {}
        self._seen: set[bytes] = set()
        self._alike: dict[int, _Alike] = {}

    def alike(self, size: int) -> _Alike:
        """Return what finds messages of this size whose lines are written as most clients do, and not very long."""
        found = self._alike.get(size)
        if found is None:
            if len(self._alike) >= _KNOWN_SIZES:
                self._alike.clear()
            word, body = rb"[!-~]{1,120}", rb".{%d}" % size
            run = rb"(?:PUB %b (?:%b )?%d\r\n%b\r\n)+" % (word, word, size, body)
            each = rb"PUB (%b) (?:(%b) )?%d\r\n(%b)\r\n" % (word, word, size, body)
            found = _Alike(re.compile(run, re.DOTALL).match, re.compile(each, re.DOTALL).findall)
            self._alike[size] = found
        return found

    def note(self, line: bytes, head: _Head) -> None:
        """Remember a line that was seen for the second time."""
        if len(line) > _LONGEST_KNOWN or line.startswith(_ACK):
            return
        if line in self._seen:
            if len(self.meanings) >= _KNOWN_LINES:
                self.meanings.clear()
            self.meanings[line] = head
        else:
            if len(self._seen) >= _KNOWN_LINES:
                self._seen.clear()
            self._seen.add(line)


class Parser:
    """Reads what a client sends; while ``awaits_connect``, that may be its ``CONNECT`` and nothing else."""

    def __init__(self, limits: WireLimits | None = None, lines: KnownLines | None = None) -> None:
        self.limits: WireLimits = WireLimits() if limits is None else limits
        self.awaits_connect = False
        self._known = KnownLines() if lines is None else lines
        self._held = bytearray()
        self._needed = 0
        # How many messages of one size were read in a row.
        self._size = self._in_a_row = 0
        self._ended = False
        self.is_paused: bool = False
        """Whether what is fed waits for :meth:`go_on`."""

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete with these bytes. After a :class:`Violation` it is always empty."""
        if self._ended:
            return []
        if self._held or self.is_paused:
            self._held += data
            if self.is_paused:
                is_full = self.awaits_connect and len(self._held) > self.limits.line
                return self._broken(TOO_LONG) if is_full else []
            if len(self._held) < self._needed:
                return []
            data = bytes(self._held)
            self._held.clear()
        if (line := _ONE(data)) is not None and self._is_alone(data, line.end(), int(line[3])):
            return [Pub(line[1].decode(), line[2].decode(), data[line.end() : -2])]
        found: list[Command] = []
        try:
            used = self._parse(data, found.append)
        except BrokenError as broken:
            return found + self._broken(str(broken))
        except UnicodeDecodeError:
            return found + self._broken(MALFORMED)
        if used < len(data):
            self._held += data[used:] if used else data
        return found

    def _is_alone(self, data: bytes, start: int, size: int) -> bool:
        """Whether one message that begins at ``start`` is all there is: it is awaited before the next is sent."""
        is_allowed = size <= self.limits.payload and start <= self.limits.line and not self.awaits_connect
        return is_allowed and len(data) == start + size + 2 and data.endswith(b"\r\n")

    def pause(self) -> None:
        """Let what is fed wait."""
        self.is_paused = True

    def go_on(self) -> list[Command]:
        self.is_paused = False
        return self.feed(b"")

    def close(self) -> None:
        """Keep nothing, and read nothing any more."""
        self._ended = True
        self._held.clear()

    def _broken(self, text: str) -> list[Command]:
        self.close()
        return [Violation(text)]

    def _parse(self, data: bytes, add: Callable[[Command], None]) -> int:
        """Add the complete commands, and return how many bytes they take; note how many the next one needs."""
        known, position, end = self._known.meanings, 0, len(data)
        find, longest, largest = data.find, self.limits.line, self.limits.payload
        if self.awaits_connect and data and data[:1] not in b"Cc":
            raise BrokenError(NOT_LOGGED_IN)
        last, self._needed = min(end, self._needed + _PORTION), 0
        while position < last:
            stop = find(b"\n", position)
            if stop < 0:
                if end - position > longest and _is_too_long(data[position:], longest):
                    raise BrokenError(TOO_LONG)
                return position
            line = data[position:stop]
            head = known.get(line)
            is_new = head is None
            if head is None:
                acked = self._add_acks(data, position, last, add) if line.startswith(_ACK) else 0
                head = None if acked else self._understand(line, add)
                if head is None:
                    position = acked or stop + 1
                    if self.is_paused:
                        break
                    continue
            subject, reply, block_size, size = head
            if size > largest:
                raise BrokenError(TOO_LARGE)
            start = stop + 1
            body = start + size
            behind = body + 2
            if behind > end:
                self._needed = behind - position
                return position
            if data[body:behind] != b"\r\n":
                raise BrokenError(UNKNOWN)
            if block_size < 0:
                add(Pub(subject, reply, data[start:body]))
                behind = self._add_alike(data, behind, last, size, add) if is_new else behind
            else:
                block = start + block_size
                add(Hpub(subject, reply, data[start:block], data[block:body]))
            position = behind
        self.is_paused = self.is_paused or position < end
        return position

    def _add_acks(self, data: bytes, position: int, last: int, add: Callable[[Command], None]) -> int:
        """Add the plain acks that follow each other, of which a consumer sends many; return where they end, or 0."""
        run = _ACKS(data, position, last)
        if run is None or self.limits.line < _SHORT_LINE or self.limits.payload < len(_ACKED):
            return 0
        add(AckRun(run[0][len(_PUB) : -len(_PLAIN_ACK)].decode().split(_BETWEEN_ACKS)))
        return run.end()

    def _add_alike(self, data: bytes, position: int, last: int, size: int, add: Callable[[Command], None]) -> int:
        """Add the messages that follow one of this size, and have it, too; return where they end."""
        if size != self._size:
            self._size, self._in_a_row = size, 0
        self._in_a_row += 1
        if self._in_a_row <= _ALIKE_AFTER or not data.startswith(_PUB, position) or self.limits.line < _SHORT_LINE:
            return position
        alike = self._known.alike(size)
        run = alike.run(data, position, last)
        if run is None:
            return position
        subjects, replies, payloads = zip(*alike.each(data, position, run.end()), strict=True)
        if subjects.count(subjects[0]) == len(subjects):
            add(PubRun(subjects[0].decode(), [reply.decode() for reply in replies], list(payloads)))
        else:
            for subject, reply, body in zip(subjects, replies, payloads, strict=True):
                add(Pub(subject.decode(), reply.decode(), body))
        return run.end()

    def _understand(self, line: bytes, add: Callable[[Command], None]) -> _Head | None:
        """Return the head of a message, or add any other command and return None."""
        if len(line) > self.limits.line and _is_too_long(line, self.limits.line):
            raise BrokenError(TOO_LONG)
        if line.find(b"\r", 0, -1) < 0:
            words = line.split()
        else:
            # As on nats-server: it takes the last byte away as soon as one is a carriage return.
            line = line[:-1]
            words = [word for word in line.replace(b"\t", b" ").split(b" ") if word]
        name = words[0].upper() if words and line[0] > _SPACE else b""
        read_message = _MESSAGES.get(name)
        if read_message is None:
            read = _LINES.get(name) or _WITH_ANYTHING.get(name[:4])
            if read is None:
                raise BrokenError(UNKNOWN)
            command = read(line.strip()[len(name) :].lstrip())
            add(command)
            self.is_paused = type(command) is Connect
            return None
        head = read_message(words)
        if not head[1]:
            self._known.note(line, head)
        return head


def _is_too_long(line: bytes, longest: int) -> bool:
    """Whether a line, or its beginning, is longer than may be: what follows its name counts."""
    words = line.split(None, 1)
    return len(line) > longest + _NAME or (len(words) > 1 and len(words[1].removesuffix(b"\r")) > longest)


# --- messages


def _pub(words: list[bytes]) -> _Head:
    if len(words) == 3:
        return words[1].decode(), "", _NO_SIZE, _number(words[2])
    if len(words) == 4:
        return words[1].decode(), words[2].decode(), _NO_SIZE, _number(words[3])
    raise BrokenError(MALFORMED)


def _hpub(words: list[bytes]) -> _Head:
    if len(words) not in (4, 5):
        raise BrokenError(MALFORMED)
    reply = words[2].decode() if len(words) == 5 else ""
    return (words[1].decode(), reply, *sizes_of(words))


def sizes_of(words: Sequence[bytes]) -> tuple[int, int]:
    """Return the sizes of a header block and of the whole, with which a line ends. Raises BrokenError."""
    block, size = _number(words[-2]), _number(words[-1])
    if block > size:
        raise BrokenError(MALFORMED)
    # Some clients send a block of no bytes for messages without headers.
    return block or _NO_SIZE, size


_MESSAGES: Final = {b"PUB": _pub, b"HPUB": _hpub}


# --- lines


def _connect(rest: bytes) -> Command:
    return Connect(rest.strip())


def _sub(rest: bytes) -> Command:
    words = rest.split()
    if len(words) == 2:
        return Sub(words[0].decode(), "", words[1])
    if len(words) == 3:
        return Sub(words[0].decode(), words[1].decode(), words[2])
    raise BrokenError(MALFORMED)


def _unsub(rest: bytes) -> Command:
    words = rest.split()
    if len(words) == 1:
        return Unsub(words[0], 0)
    if len(words) == 2:
        # What is no number is none.
        return Unsub(words[0], _number(words[1]) if _is_number(words[1]) else 0)
    raise BrokenError(MALFORMED)


# What follows their names at once is not looked at.
_WITH_ANYTHING: Final[dict[bytes, _Read]] = {b"PING": lambda _: Ping(), b"PONG": lambda _: Pong()}
_LINES: Final[dict[bytes, _Read]] = {b"CONNECT": _connect, b"SUB": _sub, b"UNSUB": _unsub, **_WITH_ANYTHING}


@lru_cache(maxsize=1024)
def _number(word: bytes) -> int:
    if not _is_number(word):
        raise BrokenError(MALFORMED)
    return int(word)


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= _MAX_DIGITS


# --- what both sides say of themselves, and what a server sends


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


OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def encode_info(hello: ServerHello) -> bytes:
    """Return the ``INFO`` line of a server."""
    # What clients look for is there even if it is false or 0.
    always = {"proto": hello.proto, "headers": hello.headers, "max_payload": hello.max_payload, "port": hello.port}
    return b"INFO %b\r\n" % msgspec.json.encode(msgspec.to_builtins(hello) | always)


def encode_err(text: str) -> bytes:
    """Return the line by which a server refuses something."""
    return b"-ERR '%b'\r\n" % text.encode()


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


KeyRole = Literal["user", "account", "operator", "server", "curve"]

_PREFIXES: Final[dict[int, KeyRole]] = {
    20 << 3: "user",
    0: "account",
    14 << 3: "operator",
    13 << 3: "server",
    23 << 3: "curve",
}
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64


def server_key(key: bytes) -> str:
    """Return the public key of a server as a text."""
    raw = bytes([13 << 3]) + key
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def role_of(nkey: str) -> KeyRole | None:
    """Return what a public key is for; None if the text is no public key."""
    raw = _decode_key(nkey)
    return None if raw is None else _PREFIXES.get(raw[0])


def is_signed(nkey: str, signed: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is the key's for these bytes. False for what is no key or no signature."""
    # Imported when a signature is checked, because a server without nkeys and JWTs does not need it.
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    raw = _decode_key(nkey)
    if raw is None or len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(raw[1:]).verify(signed, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def base64_bytes(text: str) -> bytes | None:
    """Return the bytes of base64 in either alphabet, with or without padding; None if it is none."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


@lru_cache(maxsize=1024)
def _decode_key(nkey: str) -> bytes | None:
    """Return the prefix and the key; None if the text is no public key."""
    try:
        raw = base64.b32decode(nkey + "=" * (-len(nkey) % 8))
    except (binascii.Error, ValueError):
        return None
    if len(raw) != 1 + _KEY_BYTES + 2 or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    return raw[:-2]
