"""Commands of clients, and the frames in which WebSocket clients send them. Pure functions of a random source."""

from __future__ import annotations

import re
import struct
import zlib
from random import Random

from tests.fuzz.odd import mutated, odd_object

SUBJECTS = (
    *(
        "a",
        "b",
        "a.b",
        "a.b.c",
        "a.*",
        "*.b",
        "*",
        "a.>",
        ">",
        "b.>",
        "A",
        "a.b.c.d.e.f",
        "$a",
        "ä",
        "a*",
        "a>b",
        "a.*b",
    ),
    *("a..b", ".a", "a.", "", "a\x00b", "a\x7f", "_INBOX.1", "$SYS.x", "x" * 200, "*.*", "a.>.b", "\u00a0", "+", "-1"),
)
_SIZES = ("-1", "+3", "03", "3.0", "3 ", "99999999999999999999", "1048577", "x", "", "9999999999", "0x3")
# What is left out, as nats-server takes it, and can only do so by mistake: a line end before a subject, what only
# servers say, no space behind CONNECT, and a second one that is not refused, with which its client loses all that it
# has subscribed to; and a carriage return that is not the one before a line end, of which it makes one thing or another
# with the portions in which it reads it. And what is refused here for reasons: subjects that are no UTF-8, filters that
# hold NUL. To Python, two more characters are space.
_ONLY_THERE = re.compile(
    rb"(?i)(h?pub|(un)?sub)[ \t]+\n|[+]ok|info|hmsg|connect([^ \t]|(?![^\n]*\"user\": ?\"nobody\"))"
    rb"|sub[ \t][^\n]*\x00|[^\n]*([\x0b\x0c]|\r\r\n|\r[^\n]*\Z)"
)
_OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
_OPTION_NAMES = (
    "echo",
    "user",
    "pass",
    "jwt",
    "name",
    "lang",
    "version",
    "nkey",
    "sig",
    "auth_token",
    "account",
    "new_account",
)
_BLOCKS = (
    *(
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\na: b\r\n\r\n",
        b"NATS/1.0\r\na:\r\n\r\n",
        b"NATS/1.0\r\n: b\r\n\r\n",
        b"",
        b"\r\n",
    ),
    *(
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 100 Idle\r\na: b\r\n\r\n",
        b"NATS/1.0\r\n\xcf: \xcf\r\n\r\n",
        b"NATS/2.0\r\n\r\n",
    ),
    *(
        b"NATS/1.0\r\na: b",
        b"NATS/1.0\r\na b\r\n\r\n",
        b"nats/1.0\r\na:b\r\n\r\n",
        b"NATS/1.0\r\na:b\r\na:c\r\n\r\n",
        b"x" * 40,
    ),
)


def connect(random: Random, user: str, share: float = 0.0) -> bytes:
    """The introduction of a user, odd in such a share of cases."""
    said = odd_object(random, {"user": user, "pass": "p", **_OPTIONS}, _OPTION_NAMES, share)
    return b"CONNECT " + said + b"\r\n"


def commands(random: Random, number: int = 100) -> list[bytes]:
    """Commands, of which a few are odd: after an error there is nothing left to send."""
    oddness = random.choice((0.0, 0.01, 0.03, 0.3))
    found = []
    for _ in range(number):
        command = _command(random, random.random() < oddness)
        other = mutated(random, command) if random.random() < oddness else command
        found.append(b"PING\r\n" if _is_known_to_differ(other) else other)
    return found


def _is_known_to_differ(command: bytes) -> bool:
    """Whether nats-server takes what is refused here."""
    try:
        command.partition(b"\n")[0].decode()
    except UnicodeDecodeError:
        return True
    return _ONLY_THERE.match(command) is not None or _is_drawn(command)


def _is_drawn(command: bytes) -> bool:
    """Whether a group gets another member: then it is not known who gets a message."""
    line, end, _ = command.partition(b"\n")
    name, *words = line.split() or [b""]
    return name.upper() == b"SUB" and (not end or (len(words) == 3 and words[1] != b"g" + words[2]))


def _subject(random: Random, is_odd: bool) -> bytes:
    return (random.choice(SUBJECTS) if is_odd else random.choice(SUBJECTS[:10])).encode()


def _gap(random: Random) -> bytes:
    return random.choice((b" ", b" ", b" ", b"  ", b"\t", b" \t "))


def _command(random: Random, is_odd: bool) -> bytes:
    kind = random.randrange(12)
    end = random.choice((b"\r\n",) * 5 + (b"\n", b" \r\n", b"\r\r\n")) if is_odd else b"\r\n"
    if kind < 5:
        return _publish(random, is_odd, end)
    sid = b"%d" % random.randrange(1, 9)
    if is_odd:
        sid = random.choice((sid, b"", b"\xcf", b"x" * 100, b"1 2", b"-1", b"a.b"))
    gap = _gap(random)
    if kind < 8:
        # Of a group with one member it is known who gets a message.
        queue = gap + b"g" + sid if random.random() < 0.3 and sid.isalnum() else b""
        return _named(random, b"SUB") + gap + _subject(random, is_odd) + queue + gap + sid + end
    if kind < 10:
        most = gap + b"%d" % random.randrange(4) if random.random() < 0.4 else b""
        if most and is_odd:
            most = gap + random.choice(_SIZES).encode()
        return _named(random, b"UNSUB") + gap + sid + most + end
    if is_odd:
        odd = (
            b"+OK",
            b"-ERR",
            b"-ERR 'x'",
            b"INFO {}",
            b"MSG a 1 0\r\n",
            b"PING x",
            b"",
            b"PIN",
            b"PUBX a 0\r\n",
            b"\x16\x03\x01",
        )
        return connect(random, "nobody", 0.7) if random.random() < 0.2 else random.choice(odd) + end
    return _named(random, random.choice((b"PING", b"PONG"))) + end


def _named(random: Random, name: bytes) -> bytes:
    return name if random.random() < 0.8 else bytes(random.choice((c, c | 0x20)) for c in name)


def _publish(random: Random, is_odd: bool, end: bytes) -> bytes:
    gap, data = _gap(random), bytes(random.choices(b"ab\r\n \x00\xcf", k=random.choice((0, 1, 3, 12, 300))))
    reply = gap + _subject(random, is_odd) if random.random() < 0.3 else b""
    size = random.choice(_SIZES).encode() if is_odd and random.random() < 0.3 else b""
    if random.random() < 0.3:
        block = random.choice(_BLOCKS if is_odd else _BLOCKS[:3])
        heads = b"%d" % (len(block) + (random.choice((-3, 0, 1, 500)) if is_odd and random.random() < 0.3 else 0))
        sizes = heads + gap + (size or b"%d" % (len(block) + len(data)))
        return (
            _named(random, b"HPUB")
            + gap
            + _subject(random, is_odd)
            + reply
            + gap
            + sizes
            + end
            + block
            + data
            + b"\r\n"
        )
    sizes = size or b"%d" % len(data)
    return _named(random, b"PUB") + gap + _subject(random, is_odd) + reply + gap + sizes + end + data + b"\r\n"


# --- WebSocket

_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


def frame(
    opcode: int, data: bytes, *, first: int = 0x80, mask: bytes | None = b"abcd", size: int | None = None
) -> bytes:
    """A frame; ``size`` is what it says of its length, ``first`` its flags."""
    length, bit = len(data) if size is None else size, 0x80 if mask is not None else 0
    if length < 126:
        head = struct.pack("!BB", first | opcode, bit | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", first | opcode, bit | 126, length)
    else:
        head = struct.pack("!BBQ", first | opcode, bit | 127, length)
    if mask is None:
        return head + data
    key = (mask * (len(data) // 4 + 1))[: len(data)]
    masked = int.from_bytes(data, "big") ^ int.from_bytes(key, "big")
    return head + mask + masked.to_bytes(len(data), "big")


def frames(random: Random, number: int = 40) -> list[bytes]:
    """Frames with commands, of which a few are odd."""
    oddness = random.choice((0.0, 0.02, 0.2))
    found = []
    for command in commands(random, number):
        odd = random.random() < oddness
        found.append(_odd_frame(random, command) if odd else _even_frame(random, command))
    return found


def _even_frame(random: Random, data: bytes) -> bytes:
    mask = bytes(random.choices(range(256), k=4))
    kind = random.randrange(6)
    # As above: what becomes of a carriage return depends on where its line is cut.
    if kind == 0 and not re.match(rb"[^\n]*\r[^\n]", data):
        at = random.randrange(len(data) + 1)
        asked = frame(_PING, b"hi", mask=mask) if random.random() < 0.3 else b""
        return frame(_BINARY, data[:at], first=0, mask=mask) + asked + frame(_CONTINUED, data[at:], mask=mask)
    if kind == 1:
        packer = zlib.compressobj(wbits=-15)
        packed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        return frame(_BINARY, packed[:-4], first=0xC0, mask=mask)
    return frame(_TEXT if kind == 2 and data.isascii() else _BINARY, data, mask=mask)


def _odd_frame(random: Random, data: bytes) -> bytes:
    kind = random.randrange(9)
    if kind == 0:
        return frame(_BINARY, data, mask=None)
    if kind == 1:
        return frame(random.choice((3, 7, 11, 15)), data)
    if kind == 2:
        return frame(_BINARY, data, first=random.choice((0x90, 0xA0, 0xC0, 0x10, 0x40)))
    if kind == 3:
        return frame(random.choice((_PING, _PONG)), data[:125] if random.random() < 0.5 else data * 20)
    if kind == 4:
        codes = (
            b"",
            b"\x03",
            b"\x03\xe8",
            b"\x03\xe8bye",
            b"\x03\xed",
            b"\x00\x01",
            b"\x03\xe8\xcf\xcf",
            b"\x0b\xb8ok",
        )
        return frame(_CLOSE, random.choice(codes))
    if kind == 5:
        # Of a frame that is not complete, nats-server passes on what it has.
        return frame(_BINARY, data, size=(1 << 63) + 1)
    if kind == 6:
        return frame(_CONTINUED, data)
    if kind == 7:
        return frame(_BINARY, b"")
    whole = frame(_BINARY, data)
    other = mutated(random, whole)
    body = carried_by(other)
    # To Python, two more characters are space.
    return whole if _is_known_to_differ(body) or b"\x0b" in body or b"\x0c" in body else other


def carried_by(changed: bytes) -> bytes:
    """What a server reads in a frame that was changed, as far as it is one."""
    begin = 2 + {126: 2, 127: 8}.get(changed[1] & 0x7F if len(changed) > 1 else 0, 0)
    mask = changed[begin : begin + 4]
    return bytes(byte ^ mask[at % 4] for at, byte in enumerate(changed[begin + 4 :]))


_HUB = (
    *(b"LS+ ", b"LS- ", b"LMSG ", b"HMSG ", b"INFO ", b"-ERR ", b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"\r\n", b"\n"),
    *(
        b" ",
        b"\t",
        b"> ",
        b"a.b ",
        b"_INBOX.x ",
        b"$JS.ACK.S.c.1.2.3.4.5@s.1 ",
        b"@ ",
        b"| q ",
        b"+ r q q ",
        b"{}",
        b"'x'",
    ),
    *(b"0\r\n\r\n", b"1\r\nx\r\n", b"3\r\nx\r\n\r\n", b"18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n", b"9 5\r\n", b"-1\r\n"),
    *(b"99999999999\r\n", b"\xff\xfe ", b'{"server_id":"N","client_id":1}', b'{"max_payload":-1,"export":{"allow":["'),
)


def sent_by_hubs(random: Random) -> list[bytes]:
    """What hubs send to leaf nodes, mostly broken somewhere."""
    lines = (
        b"LMSG s 1\r\nx\r\n",
        b"HMSG s r 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        b"LS+ s q 2\r\n",
        b"LS- s\r\n",
        b"PING\r\n",
    )
    found = []
    for _ in range(50):
        sound = b"".join(random.choices(lines, k=random.randrange(8)))
        odd = b"".join(random.choices(_HUB, k=random.randrange(1, 9)))
        data = sound + (odd if random.random() < 0.7 else mutated(random, random.choice(lines)))
        found.append(data + random.choice(lines))
    return found


def content_of(data: bytes) -> tuple[bytes, list[str]]:
    """What the frames of a server hold, unpacked, and what else it says in them."""
    content, others, at, is_packed = bytearray(), list[str](), 0, False
    while at + 2 <= len(data):
        first, size = data[at], data[at + 1] & 0x7F
        width = {126: 2, 127: 8}.get(size, 0)
        begin = at + 2 + width
        size = int.from_bytes(data[at + 2 : begin], "big") if width else size
        if begin + size > len(data):
            break
        body, at = data[begin : begin + size], begin + size
        if first & 0x0F < _CLOSE:
            is_packed = bool(first & 0x40) if first & 0x0F else is_packed
            content += zlib.decompressobj(-15).decompress(body + b"\x00\x00\xff\xff") if is_packed else body
        else:
            # Servers have words of their own for why they close a connection.
            others.append(f"{first & 0x0F} {body[:2] if first & 0x0F == _CLOSE else body!r}")
    return bytes(content), others
