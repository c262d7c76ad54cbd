"""Messages: the light structs of the hot path, and pulls, deliveries, acks and answers to publishes as they travel.

**Pull requests and their answers as they travel (ADR-13): the JSON of a request, and the statuses that end one.** A
server decodes what a client encodes; both are here.

**Deliveries and their acks as they travel (ADR-13, ADR-15): the reply subject of a delivery names it in its ack.**
``$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>``; servers in a domain put domain and
account hash before the stream, and a random token at the end. The payload of an ack says what became of the message.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec

from pelton.api.errors import ApiError, ConfigError, PeltonError, from_reply
from pelton.api.info import ErrorBody, PubAck
from pelton.api.json_values import GoJsonError, StructReader
from pelton.api.times import parse_duration

AckKind = Literal["ack", "nak", "progress", "term"]
ACK_PREFIX: Final = "$JS.ACK."


class Delivered(msgspec.Struct, gc=False):
    """One delivery of a stored message to one consumer.

    `time_ns` is when the message was stored, `headers` its encoded block or None. `consumer_seq` numbers this
    delivery and names it in an `AckOp`; `num_delivered` counts the deliveries of this message, this one
    included; `num_pending` messages were still undelivered after it. `token`, the fencing token, grows with every
    delivery of the consumer: an external system that remembers the largest can refuse a holder that was replaced.
    `jumped_ns` is by how much a store's wall clock has jumped since, if ages matter in the stream.
    """

    subject: str
    seq: int
    time_ns: int
    headers: bytes | None
    data: bytes
    consumer_seq: int
    num_delivered: int
    num_pending: int
    stream: str
    consumer: str
    token: int = 0
    jumped_ns: int = 0

    @property
    def reply(self) -> str:
        """The subject on which this delivery is acknowledged (ADR-15)."""
        return (
            f"{ACK_PREFIX}{self.stream}.{self.consumer}.{self.num_delivered}.{self.seq}.{self.consumer_seq}."
            f"{self.time_ns}.{self.num_pending}"
        )


class PullRequest(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """How much one pull requests, and how long it waits (ADR-13).

    `max_bytes` 0 is no limit. `expires_ns` None waits until a message comes; `no_wait` does not wait at all.

    On a consumer with priority groups (ADR-42) `group` names one, and by its policy: `pin_id` is the id of this
    client's pin; `priority` is 0 (first) to 9; with `min_pending` or `min_ack_pending` messages come only while at
    least that many are pending, or await acks; with `failover_ns` only when no preferred client (one without, or with
    shorter `failover_ns`) has pulled for that time. A waiting pull is renewed every `renew_ns` (0: never), if waiting
    alone does not show that the client lives.
    """

    batch: int = 1
    max_bytes: int = 0
    expires_ns: int | None = None
    no_wait: bool = False
    group: str = ""
    pin_id: str = ""
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0
    failover_ns: int = 0
    renew_ns: int = 0


class AckOp(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """The ack of one delivery: done, redeliver (after `delay_ns`), still working, or never again.

    `num_delivered` identifies nothing: a server repeats it in its advisories about the ack. `token` is the delivery's,
    or 0: with it an ack never settles the delivery of another consumer that was created under the same name. `cause`,
    a number of the caller's own, is kept with a message that is given back, and shown among the unsettled; servers
    ignore it. `is_of_any` settles the message whichever delivery of it is held now, as a NATS server does.
    """

    kind: AckKind = "ack"
    seq: int
    consumer_seq: int
    delay_ns: int = 0
    reason: str = ""
    num_delivered: int = 1
    token: int = 0
    cause: int = 0
    is_of_any: bool = False


class Incoming(msgspec.Struct, gc=False):
    """A message as its subscribers receive it: at most once, never stored for them, never redelivered.

    `headers` is the encoded block or None; `reply_to` is where the publisher awaits an answer, or empty. `delivered`
    is its delivery, if a push consumer of this process sent it.
    """

    subject: str
    data: bytes
    headers: bytes | None = None
    reply_to: str = ""
    delivered: Delivered | None = None

    @property
    def reply(self) -> str:
        """The subject on which an answer, or an ack, is awaited; or empty."""
        return self.delivered.reply if self.delivered is not None else self.reply_to


def replies_of(messages: Sequence[Delivered | Incoming]) -> list[str]:
    """Return the ``reply`` of each message: with few calls if all are deliveries of one consumer."""
    deliveries = [one.delivered if isinstance(one, Incoming) else one for one in messages]
    first = deliveries[0] if deliveries else None
    if first is None:
        return [one.reply for one in messages]
    stream, consumer, prefix = first.stream, first.consumer, f"{ACK_PREFIX}{first.stream}.{first.consumer}."
    replies = [
        f"{prefix}{one.num_delivered}.{one.seq}.{one.consumer_seq}.{one.time_ns}.{one.num_pending}"
        for one in deliveries
        if one is not None and one.consumer == consumer and one.stream == stream
    ]
    return replies if len(replies) == len(messages) else [one.reply for one in messages]


class PullStatus(msgspec.Struct, frozen=True):
    """How a pull ended, or why it was refused."""

    code: int
    text: str


NO_MESSAGES: Final = PullStatus(404, "No Messages")
EXPIRED: Final = PullStatus(408, "Request Timeout")
REQUESTS_PENDING: Final = PullStatus(408, "Requests Pending")
TOO_LARGE: Final = PullStatus(409, "Message Size Exceeds MaxBytes")
BATCH_COMPLETED: Final = PullStatus(409, "Batch Completed")
MAX_WAITING: Final = PullStatus(409, "Exceeded MaxWaiting")
CONSUMER_DELETED: Final = PullStatus(409, "Consumer Deleted")
LEADERSHIP_CHANGE: Final = PullStatus(409, "Leadership Change")
SHUTDOWN: Final = PullStatus(409, "Server Shutdown")
PIN_TAKEN: Final = PullStatus(423, "Nats-Wrong-Pin-Id")

HEARTBEAT: Final = PullStatus(100, "Idle Heartbeat")


class NextRequest(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The JSON of a pull; `expires` and `idle_heartbeat` in nanoseconds, 0 for none."""

    batch: int = 0
    expires: int = 0
    max_bytes: int = 0
    no_wait: bool = False
    idle_heartbeat: int = 0
    group: str = ""
    id: str = ""
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0

    @property
    def request(self) -> PullRequest:
        """The pull as a backend takes it."""
        return PullRequest(
            batch=max(self.batch, 1),
            max_bytes=max(self.max_bytes, 0),
            expires_ns=self.expires if self.expires > 0 else None,
            no_wait=self.no_wait,
            group=self.group,
            pin_id=self.id,
            priority=self.priority,
            min_pending=self.min_pending,
            min_ack_pending=self.min_ack_pending,
        )


_read: Final = StructReader(NextRequest)
_HALF: Final = 1 << 63
_encode: Final = msgspec.json.Encoder().encode


def encode_next(request: NextRequest) -> bytes:
    """Return the body of a pull."""
    return _encode(request)


def decode_next(body: bytes) -> NextRequest:
    """Return a pull from its body: JSON, a number of messages, or anything else for one. Raises BadRequestError."""
    text = body.strip()
    if not text.startswith(b"{"):
        return NextRequest(batch=int(text) if text.isdigit() and len(text) < 10 else 1)
    try:
        found = _read(text)
    except GoJsonError as error:
        raise from_reply(400, 0, f"Bad Request - {error}") from None
    # Twice the largest ones is less than nothing, to a server.
    if found.idle_heartbeat > 0 and (2 * found.idle_heartbeat + _HALF) % (2 * _HALF) - _HALF > found.expires:
        raise from_reply(400, 0, "Bad Request - heartbeat value too large")
    return found


def next_request(request: PullRequest, *, expires_ns: int, no_wait: bool, batch: int, heartbeat_ns: int) -> NextRequest:
    """Return a pull as it is sent, with its own `batch`, time and heartbeat."""
    fields: dict[str, Any] = {
        "max_bytes": request.max_bytes,
        "group": request.group,
        "id": request.pin_id,
        "priority": request.priority,
        "min_pending": request.min_pending,
        "min_ack_pending": request.min_ack_pending,
    }
    return NextRequest(batch=batch, expires=expires_ns, no_wait=no_wait, idle_heartbeat=heartbeat_ns, **fields)


_SHORT: Final = 9
_LONG: Final = 11
_LARGEST: Final = (1 << 63) - 1
# The shorter form; so many digits are less than the largest number.
_USUAL_FORM: Final = (
    rf"{re.escape(ACK_PREFIX)}([^.\n]+)\.([^.\n]+)\.(\d{{1,18}})\.(\d{{1,18}})\.(\d{{1,18}})\.[^.\n]+\.[^.\n]+"
)
_USUAL: Final = re.compile(_USUAL_FORM, re.ASCII).fullmatch
_USUAL_LINES: Final = re.compile(f"^{_USUAL_FORM}$", re.ASCII | re.MULTILINE).findall
_CONSUMER: Final = itemgetter(0, 1)
# Python refuses to read numbers of some thousand digits.
_READABLE: Final = 1000
# As nats-server's getHash: this many bytes of the SHA-256, each as one of these signs.
_HASHED: Final = 8
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WORDS: Final = {"ack": b"+ACK", "nak": b"-NAK", "progress": b"+WPI", "term": b"+TERM"}


class AckTarget(msgspec.Struct, frozen=True, gc=False):
    """The delivery that an ack names."""

    stream: str
    consumer: str
    num_delivered: int
    seq: int
    consumer_seq: int


class Verdict(msgspec.Struct, frozen=True):
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
    usual = _USUAL(subject)
    if usual is not None:
        stream, consumer, number, seq, consumer_seq = usual.groups()
        return AckTarget(stream, consumer, int(number), int(seq), int(consumer_seq))
    if subject.count(".") >= _LONG - 1 and not subject.startswith(long_prefix):
        return None
    try:
        stream, consumer, *numbers = _where(subject)
    except ConfigError:
        return None
    deliveries, seq, consumer_seq = map(_number, numbers[:3])
    return AckTarget(stream, consumer, deliveries, seq, consumer_seq)


def plain_acks(subjects: Sequence[str]) -> dict[tuple[str, str], list[AckOp]] | None:
    """Return the plain acks that subjects of one line each name, by stream and consumer, with few calls.

    None if any of them is not in its usual form.
    """
    found: list[tuple[str, str, str, str, str]] = _USUAL_LINES("\n".join(subjects))
    if len(found) < len(subjects):
        return None
    acks: dict[tuple[str, str], list[AckOp]] = {}
    for (stream, consumer), group in groupby(found, _CONSUMER):
        acks.setdefault((stream, consumer), []).extend(
            [
                AckOp(seq=int(seq), consumer_seq=int(consumer_seq), num_delivered=int(number), is_of_any=True)
                for _, _, number, seq, consumer_seq in group
            ]
        )
    return acks


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


# --- the answer to a publish as it travels: a stream and a sequence, or an error


class PubReply(msgspec.Struct):
    """The JSON of an answer. A message of a batch that is not committed yet is answered without any."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    domain: str = ""
    val: str = ""
    batch: str = ""
    count: int = 0
    error: ErrorBody | None = None


_decode: Final = msgspec.json.Decoder(PubReply).decode
_UNEXPECTED: Final = ErrorBody(code=500, err_code=10077, description="")


def decode_pub_ack(data: bytes) -> PubAck | ApiError:
    """Return the acknowledgement, or the error, that an answer holds."""
    if not data:
        # A message of a batch that is not committed yet.
        return PubAck("", 0)
    found = _decode(data)
    if found.error is not None:
        return from_reply(found.error.code, found.error.err_code, found.error.description, stream=found.stream)
    return PubAck(found.stream, found.seq, found.duplicate, found.domain, found.val, found.batch, found.count)


def encode_pub_ack(ack: PubAck, domain: str = "") -> bytes:
    """Return the answer to a publish that was stored, or kept for its batch, by a server in a JetStream domain."""
    if domain:
        ack = msgspec.structs.replace(ack, domain=domain)
    return _encode(ack) if ack.stream else b""


def encode_pub_error(error: PeltonError, stream: str) -> bytes:
    """Return the answer to a publish that was refused, or failed."""
    if isinstance(error, ApiError):
        body = ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
    else:
        body = msgspec.structs.replace(_UNEXPECTED, description=str(error))
    return _encode({"error": body, "stream": stream, "seq": 0})
