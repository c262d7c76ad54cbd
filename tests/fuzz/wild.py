"""What nats-server takes and this server refuses, or takes otherwise: afterwards both have to answer as ever.

Subjects that are no UTF-8, NUL in filters, broken header blocks, acks of nothing, and a second CONNECT.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tests.fuzz import jetstream, protocol
from tests.fuzz.odd import NUMBERS, mutated

_BYTES: Final = (b"\xcf", b"\x00", b"\xc3\xa4", b"\xed\xa0\x80", b"\x7f", b"\xff\xfe")
_BLOCKS: Final = (
    b"NATS/1.0\r\n%b: %b\r\n\r\n",
    b"NATS/1.0\r\n%b%b\r\n\r\n",
    b"NATS/1.0\n%b:%b\n\n",
    b"NATS/1.0 %b\r\n%b: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id:%b\r\nNats-Rollup:%b",
    b"%b\r\n\r\n%b\r\n",
)
_NAMES: Final = tuple(name.encode() for name in jetstream.HEADERS)


def commands(random: Random, user: str) -> list[bytes]:
    """A program of requests, some of them odd in their bytes; what ends a connection comes last."""
    asked = jetstream.requests(random, 36)
    found = [_sent(asked[0].subject.encode(), asked[0].data, asked[0].block)]
    found += [_changed(random, each, user) for each in asked[1:]]
    last = random.choice((_broken_subject, _filter, _any))
    return [*found, *(last(random) for _ in range(4))]


def _changed(random: Random, asked: jetstream.Asked, user: str) -> bytes:
    kind = random.randrange(8)
    subject = asked.subject.encode("utf-8", "replace")
    if kind == 0:
        odd = (random.choice((*_NAMES, *_BYTES)), random.choice((*_BYTES, b"1", b"sub", b"")))
        block = random.choice(_BLOCKS) % odd
        return _sent(subject, asked.data, mutated(random, block) if random.random() < 0.5 else block)
    if kind == 1:
        numbers = b".".join(random.choice((*NUMBERS, "1", "2")).encode() for _ in range(5))
        return _sent(
            b"$JS.ACK.S.%b.%b" % (random.choice((b"c", b"d")), numbers), random.choice((b"", b"-NAK", b"+NXT"))
        )
    if kind == 2 and random.random() < 0.2:
        return protocol.connect(random, user, 0.4) if random.random() < 0.5 else b"CONNECT {}\r\n"
    if kind == 3:
        at = random.randrange(len(subject) + 1)
        return _sent(subject[:at] + random.choice((b"\x00", b"\xc3\xa4", b"\x7f")) + subject[at:], asked.data)
    return _sent(subject, mutated(random, asked.data) if kind == 4 else asked.data, asked.block)


def _sent(subject: bytes, data: bytes, block: bytes = b"") -> bytes:
    if block:
        return b"HPUB %b _INBOX.w %d %d\r\n%b%b\r\n" % (subject, len(block), len(block) + len(data), block, data)
    return b"PUB %b _INBOX.w %d\r\n%b\r\n" % (subject, len(data), data)


def _broken_subject(random: Random) -> bytes:
    odd = b"s.%b" % random.choice(_BYTES)
    return random.choice((_sent(odd, b"x"), _sent(odd, b"x", b"NATS/1.0\r\n\r\n"), b"PUB s.1 %b 1\r\nx\r\n" % odd))


def _filter(random: Random) -> bytes:
    odd = random.choice(_BYTES)
    return random.choice((b"SUB a%b 1\r\n", b"SUB a g%b 1\r\n", b"SUB a %b\r\n", b"UNSUB %b 1\r\n")) % odd


def _any(random: Random) -> bytes:
    return mutated(random, random.choice(protocol.commands(random, 5)))
