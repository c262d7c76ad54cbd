"""Deliveries and their acks as they travel (ADR-13, ADR-15): the reply subject of a delivery names it in its ack.

``$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>``; servers in a domain put domain and
account hash before the stream, and a random token at the end. The payload of an ack says what became of the message.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import msgspec

from pelton.api.durations import parse_duration
from pelton.api.errors import ConfigError
from pelton.api.go_json import GoJsonError, StructReader
from pelton.api.message import ACK_PREFIX, AckOp, Delivered
from pelton.api.pulling import NextRequest, decode_next

_SHORT: Final = 9
_LONG: Final = 11
_LARGEST: Final = (1 << 63) - 1
# Python refuses to read numbers of some thousand digits.
_READABLE: Final = 1000
# As nats-server's getHash: so many bytes of the SHA-256, each as one of these.
_HASHED: Final = 8
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WORDS: Final = {"ack": b"+ACK", "nak": b"-NAK", "progress": b"+WPI", "term": b"+TERM"}


class AckTarget(NamedTuple):
    """The delivery that an ack names."""

    stream: str
    consumer: str
    num_delivered: int
    seq: int
    consumer_seq: int


class Verdict(NamedTuple):
    """What the payload of an ack says; ``following`` is the pull that an ack with ``+NXT`` makes as well.

    The kind is "unknown" for a payload that means nothing, and has no effect.
    """

    kind: Literal["ack", "nak", "progress", "term", "unknown"]
    delay_ns: int = 0
    reason: str = ""
    following: NextRequest | None = None

    def of(self, target: AckTarget) -> AckOp | None:
        """Return the ack that a client of a server sent for a delivery; None if there is none."""
        if self.kind == "unknown":
            return None
        return AckOp(
            kind=self.kind,
            seq=target.seq,
            consumer_seq=target.consumer_seq,
            delay_ns=self.delay_ns,
            reason=self.reason,
            num_delivered=target.num_delivered,
            is_of_any=True,
        )


def delivery_of(subject: str, reply: str, headers: bytes | None, data: bytes) -> Delivered:
    """Return a pushed or pulled message as a delivery; `ConfigError` if its reply subject names none.

    The fencing token is the delivery's number.
    """
    stream, consumer, deliveries, seq, consumer_seq, time_ns, pending = _where(reply)
    number = int(consumer_seq)
    return Delivered(
        subject, int(seq), int(time_ns), headers, data, number, int(deliveries), int(pending), stream, consumer, number
    )


def ack_subject(stream: str, consumer: str, ack: AckOp) -> str:
    """Return the subject that acknowledges a delivery; time and counts in it only inform."""
    return f"$JS.ACK.{stream}.{consumer}.{ack.num_delivered}.{ack.seq}.{ack.consumer_seq}.0.0"


def long_ack_prefix(account: str, domain: str = "") -> str:
    """Return how the longer form of an account's ack subjects begins: with its domain, or ``_``, and its hash."""
    digest = sha256(account.encode()).digest()[:_HASHED]
    return f"{ACK_PREFIX}{domain or '_'}.{''.join(_DIGITS[byte % len(_DIGITS)] for byte in digest)}."


def ack_target(subject: str, long_prefix: str) -> AckTarget | None:
    """Return the delivery that the subject of an ack names, in either form; None if it names none.

    The longer form must begin with ``long_prefix`` (`long_ack_prefix`): a client's permissions rest on its tokens.
    """
    if subject.count(".") > _SHORT and not subject.startswith(long_prefix):
        return None
    try:
        stream, consumer, *numbers = _where(subject)
    except ConfigError:
        return None
    deliveries, seq, consumer_seq = map(_number, numbers[:3])
    return AckTarget(stream, consumer, deliveries, seq, consumer_seq)


def _number(text: str) -> int:
    """Return a number as nats-server's parseAckReplyNum: what is none is larger than any."""
    if len(text) > _READABLE or not (text.isascii() and text.isdigit()):
        return _LARGEST
    return min(int(text) % (1 << 64), _LARGEST)


def ack_payload(ack: AckOp) -> bytes:
    """Return the payload of an ack (ADR-13 and -15)."""
    word = _WORDS[ack.kind]
    if ack.kind == "nak" and ack.delay_ns:
        return b'%b {"delay": %d}' % (word, ack.delay_ns)
    if ack.kind == "term" and ack.reason:
        return b"%b %b" % (word, ack.reason.encode())
    return word


def ack_verdict(payload: bytes) -> Verdict:
    """Return what the payload of an ack says. Raises BadRequestError for ``+NXT`` with an invalid pull."""
    if payload in (b"", b"+ACK", b"+OK"):
        return _ACKED
    if payload.startswith(b"-NAK"):
        return Verdict("nak", _delay(payload[4:].strip()))
    if payload == b"+WPI":
        return Verdict("progress")
    if payload.startswith(b"+NXT"):
        return Verdict("ack", following=decode_next(payload[4:]))
    if payload.startswith(b"+TERM"):
        return Verdict("term", reason=payload[5:].strip().decode("utf-8", "replace"))
    return Verdict("unknown")


_ACKED: Final = Verdict("ack")


class _NakOptions(msgspec.Struct):
    delay: int = 0


_read_options: Final = StructReader(_NakOptions)


def _delay(text: bytes) -> int:
    """Return nanoseconds: JSON holds them, other text is a Go duration; 0 for what is neither, as on NATS."""
    if text.startswith(b"{"):
        try:
            return max(_read_options(text).delay, 0)
        except GoJsonError:
            return 0
    try:
        return max(parse_duration(text.decode()), 0) if text else 0
    except ValueError:
        return 0


def _where(reply: str) -> Sequence[str]:
    tokens = reply.split(".")
    if reply.startswith(ACK_PREFIX) and "" not in tokens:
        if len(tokens) == _SHORT:
            return tokens[2:]
        if len(tokens) >= _LONG:
            return tokens[4:11]
    raise ConfigError(f"{reply!r} names no delivery: the message does not come from a consumer")
