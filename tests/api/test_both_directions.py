"""What a client encodes a server decodes, and the other way round: the mappings that both sides share."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import (
    AckOp,
    ApiError,
    BadRequestError,
    Delivered,
    DirectGet,
    DirectReply,
    Incoming,
    PubAck,
    PullRequest,
    StoredMessage,
)
from pelton.api.direct import (
    WireGet,
    direct_frames,
    direct_question,
    direct_refusal,
    direct_request,
    is_batched,
    note_end,
    stored_in,
)
from pelton.api.errors import api_error
from pelton.api.message import (
    AckTarget,
    NextRequest,
    ack_payload,
    ack_subject,
    ack_target,
    ack_verdict,
    decode_next,
    decode_pub_ack,
    delivery_of,
    encode_next,
    encode_pub_ack,
    encode_pub_error,
    long_ack_prefix,
    next_request,
    plain_acks,
    replies_of,
)

NAMES = st.text("abcXYZ-_0", min_size=1, max_size=6)
NUMBERS = st.integers(0, 1 << 40)
BLOCKS = st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nNats-Stream: other\r\n\r\n"])


# --- acks


@given(
    NAMES,
    NAMES,
    st.builds(
        AckOp,
        kind=st.sampled_from(["ack", "nak", "progress", "term"]),
        seq=NUMBERS,
        consumer_seq=NUMBERS,
        num_delivered=NUMBERS,
    ),
    NUMBERS,
    st.text("abc ", max_size=5).map(str.strip),
)
def test_acks(stream: str, consumer: str, ack: AckOp, delay: int, reason: str) -> None:
    fields = {"delay_ns": delay} if ack.kind == "nak" else {"reason": reason} if ack.kind == "term" else {}
    delivery = {"seq": ack.seq, "consumer_seq": ack.consumer_seq, "num_delivered": ack.num_delivered}
    ack = AckOp(kind=ack.kind, **delivery, **fields, is_of_any=True)
    target = ack_target(ack_subject(stream, consumer, ack), "")
    assert target is not None
    assert (target.stream, target.consumer) == (stream, consumer)
    assert ack_verdict(ack_payload(ack)).of(target) == ack


_ACK_SUBJECTS = st.tuples(st.just("$JS.ACK"), NAMES, NAMES, *[NUMBERS] * 5).map(lambda each: ".".join(map(str, each)))
_ODD_SUBJECTS = st.sampled_from(["$JS.ACK.a.b.1.2.3.4", "$JS.ACK._.h.a.b.1.2.3.4.5.r", "$JS.ACK.a.b.x.2.3.4.5", "a\n"])


@given(st.lists(_ACK_SUBJECTS, max_size=6), st.lists(_ODD_SUBJECTS, max_size=1))
def test_acks_that_are_read_together_are_what_each_would_be(usual: list[str], odd: list[str]) -> None:
    alone = [target for subject in usual if (target := ack_target(subject, "")) is not None]
    wanted: dict[tuple[str, str], list[AckOp | None]] = {}
    for target in alone:
        wanted.setdefault((target.stream, target.consumer), []).append(ack_verdict(b"+ACK").of(target))
    assert plain_acks([*odd, *usual]) == (None if odd else wanted)


_DELIVERIES = st.builds(
    Delivered, NAMES, NUMBERS, NUMBERS, st.none(), st.binary(max_size=3), NUMBERS, NUMBERS, NUMBERS,
    st.sampled_from(["S", "S", "T"]), st.just("c") | st.just("d"),
)  # fmt: skip


@given(
    st.lists(
        _DELIVERIES
        | st.builds(Incoming, NAMES, st.just(b""), reply_to=NAMES)
        | st.builds(Incoming, NAMES, st.just(b""), delivered=_DELIVERIES),
        max_size=5,
    )
)
def test_replies_of_many_are_those_of_each(messages: list[Delivered | Incoming]) -> None:
    assert replies_of(messages) == [one.reply for one in messages]


@pytest.mark.parametrize(
    ("payload", "kind", "delay"),
    [
        (b"", "ack", 0),
        (b"+OK", "ack", 0),
        (b"-NAK 1m30s", "nak", 90 * 10**9),
        (b"-NAK 5", "nak", 0),
        (b"-NAK {", "nak", 0),
        (b'-NAK {"delay":-3}', "nak", 0),
        (b"+WPIx", "unknown", 0),
        (b"hello", "unknown", 0),
    ],
)
def test_forms_of_acks(payload: bytes, kind: str, delay: int) -> None:
    verdict = ack_verdict(payload)
    assert (verdict.kind, verdict.delay_ns) == (kind, delay)


def test_an_ack_that_asks_for_more() -> None:
    assert ack_verdict(b'+NXT {"batch":5,"no_wait":true}').following == NextRequest(batch=5, no_wait=True)
    assert ack_verdict(b"+NXT 3").following == NextRequest(batch=3)
    with pytest.raises(BadRequestError):
        ack_verdict(b"+NXT {")


def test_both_forms_of_reply_subjects() -> None:
    delivered = Delivered("s", 7, 99, None, b"", 8, 2, 3, "S", "c", 8)
    assert delivery_of("s", delivered.reply, None, b"") == delivered
    assert long_ack_prefix("A") == "$JS.ACK._.NUmM6cRx."  # as nats-server 2.15 names account A
    ours = long_ack_prefix("A", "hub")
    for tail in ("", ".random", ".random.more"):
        assert ack_target(f"{ours}S.c.2.7.8.99.3{tail}", ours) == ack_target(delivered.reply, ours)
    others = ("$JS.ACK._.NUmM6cRx.S.c.2.7.8.99.3", "$JS.ACK.hub.x.S.c.2.7.8.99.3.t", "$JS.ACK.S.c.2.7.8.99.3.4.5")
    empty = ("$JS.ACK.S.c.1..1.1.1", "$JS.ACK.S.c.1.1.1..1", f"{ours}S.c.2.7.8.99.3.")
    for subject in (*others, *empty, "$JS.ACK.S.c", "other"):
        assert ack_target(subject, ours) is None


@pytest.mark.parametrize("text", ["+1", "-0", "1_0", "0x1", "\u0661", "\u00b2", "x", str(1 << 63), "1" * 5000])
def test_what_is_no_number_in_an_ack_is_larger_than_any(text: str) -> None:
    most = (1 << 63) - 1
    assert ack_target(f"$JS.ACK.S.c.{text}.{text}.{text}.1.1", "") == AckTarget("S", "c", most, most, most)


def test_the_numbers_of_an_ack_overflow_as_on_nats() -> None:
    assert ack_target(f"$JS.ACK.S.c.01.{(1 << 64) + 7}.{1 << 64}.1.1", "") == AckTarget("S", "c", 1, 7, 0)


# --- pulls


PULLS = st.builds(
    PullRequest,
    batch=st.integers(1, 500),
    max_bytes=NUMBERS,
    group=st.just("") | NAMES,
    priority=st.integers(0, 9),
)


@given(PULLS, st.integers(4, 1 << 40))
def test_pulls(request: PullRequest, expires: int) -> None:
    asked = next_request(request, expires_ns=expires, no_wait=False, batch=request.batch, heartbeat_ns=expires // 4)
    found = decode_next(encode_next(asked))
    assert found == asked
    assert found.request == msgspec.structs.replace(request, expires_ns=expires)


def test_forms_of_pulls() -> None:
    assert decode_next(b"").request == PullRequest(batch=1)
    assert decode_next(b" 7 ").request == PullRequest(batch=7)
    assert decode_next(b'{"batch":-1,"unknown":true}').request == PullRequest(batch=1)
    assert decode_next(b"[]").request == PullRequest(batch=1)
    for body in (b"{", b'{"batch":"x"}', b'{"expires":9,"idle_heartbeat":5}'):
        with pytest.raises(BadRequestError):
            decode_next(body)


# --- publish acks


@given(st.builds(PubAck, stream=NAMES, seq=NUMBERS, duplicate=st.booleans(), val=st.just("") | NAMES, count=NUMBERS))
def test_publish_acks(ack: PubAck) -> None:
    assert decode_pub_ack(encode_pub_ack(ack)) == ack


def test_publishes_that_are_refused_or_not_committed() -> None:
    error = api_error("JSStreamWrongLastSequenceErrF", stream="S", seq=5)
    found = decode_pub_ack(encode_pub_error(error, "S"))
    assert isinstance(found, ApiError)
    assert (type(found), found.err_code, found.description) == (type(error), error.err_code, error.description)
    assert encode_pub_ack(PubAck("", 0)) == b""
    assert decode_pub_ack(b"") == PubAck("", 0)


# --- direct gets


def wire_get(request: DirectGet) -> WireGet:
    return WireGet(**msgspec.structs.asdict(request))


@pytest.mark.parametrize(
    "request_", [DirectGet(last_by_subj="a.b"), DirectGet(seq=3), DirectGet(next_by_subj="a.>", seq=1, batch=5)]
)
def test_direct_requests(request_: DirectGet) -> None:
    subject, body = direct_question("$JS.API.DIRECT.GET.S", request_)
    assert direct_request(subject.removeprefix("$JS.API.DIRECT.GET.S").removeprefix("."), body) == wire_get(request_)


@given(st.lists(st.builds(StoredMessage, NAMES, st.integers(1, 1 << 40), st.integers(0, 1 << 60), BLOCKS, st.binary())))
def test_direct_replies(messages: list[StoredMessage]) -> None:
    reply = DirectReply(messages, num_pending=4, last_seq=9, up_to_seq=12)
    *frames, end = direct_frames("S", WireGet(seq=1, batch=10), reply)
    assert [stored_in(frame) for frame in frames] == messages
    assert all(is_batched(frame.block) for frame in frames)
    read = DirectReply([])
    note_end(read, end.block)
    assert (read.num_pending, read.last_seq, read.up_to_seq) == (4, 9, 12)


def test_direct_requests_that_are_refused() -> None:
    for body in (b"", b"{", b"[]"):
        with pytest.raises(BadRequestError):
            direct_request("", body)
    assert (
        direct_refusal(api_error("JSNoMessageFoundErr", stream="S")).block == b"NATS/1.0 404 Message Not Found\r\n\r\n"
    )
