"""What a hub sends becomes commands, in whatever portions it comes, and messages come out as they went in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.wire import Command, Ping, Pong, Violation
from pelton.wire.leaf_protocol import (
    CrossingRules,
    Hello,
    HubRefusal,
    LeafMessage,
    LeafParser,
    LeafSub,
    LeafUnsub,
    encode_interest,
    encode_leaf_message,
)

# As nats-server 2.15.1 has sent it.
SENT = (
    b'INFO {"server_id":"NA","server_name":"hub","version":"2.15.1","proto":3,"headers":true,"tls_required":false,'
    b'"max_payload":1048576,"client_id":7,"nonce":"Nps2","domain":"hub","compression":"s2_auto","api_lvl":5,'
    b'"connect_info":true,"remote_account":"$G","export":{"deny":["a.>"]},"leafnode_urls":["127.0.0.1:7422"]} \r\n'
    b"LS+ $LDS.x\r\nLS+ foo q 2\r\nPING\r\nLS- foo\r\nLS- foo q\r\n+OK\r\nPONG\r\n"
    b"LMSG foo 1\r\nx\r\nLMSG foo rr 0\r\n\r\nHMSG foo 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
    b"LMSG bar | q1 q2 1\r\nx\r\nHMSG bar + rr q1 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
    b"LMSG _INBOX.1 $JS.ACK.S.d.1.1.1.1795836639780611717.0@s.1 5\r\nhello\r\n-ERR 'Stale Connection'\r\n"
)
BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"


def read(*portions: bytes) -> list[Command]:
    parser = LeafParser()
    return [command for portion in portions for command in parser.feed(portion)]


def test_what_a_hub_sends() -> None:
    hello, *rest = read(SENT)
    assert isinstance(hello, Hello)
    assert (hello.hub.server_name, hello.hub.domain, hello.hub.is_last) == ("hub", "hub", True)
    assert hello.hub.export == CrossingRules(deny=("a.>",))
    assert rest == [
        LeafSub("$LDS.x", "", 0),
        LeafSub("foo", "q", 2),
        Ping(),
        LeafUnsub("foo", ""),
        LeafUnsub("foo", "q"),
        Pong(),
        LeafMessage("foo", "foo", "", (), None, b"x"),
        LeafMessage("foo", "foo", "rr", (), None, b""),
        LeafMessage("foo", "foo", "", (), BLOCK, b"x"),
        LeafMessage("bar", "bar", "", ("q1", "q2"), None, b"x"),
        LeafMessage("bar", "bar", "rr", ("q1",), BLOCK, b"x"),
        LeafMessage("_INBOX.1", "s.1", "$JS.ACK.S.d.1.1.1.1795836639780611717.0", (), None, b"hello"),
        HubRefusal("Stale Connection"),
    ]


@given(cuts=st.lists(st.integers(0, len(SENT)), max_size=8))
def test_in_any_portions(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(SENT)]
    assert read(*(SENT[one:two] for one, two in pairwise(at))) == read(SENT)
    assert read(*(SENT[index : index + 1] for index in range(len(SENT)))) == read(SENT)


_TOKENS = st.sampled_from(["a", "a.b", "$JS.ACK.S.d.1", "_INBOX.1", "é"])


@given(
    route=_TOKENS,
    reply=st.just("") | _TOKENS,
    queues=st.lists(_TOKENS, max_size=3).map(tuple),
    block=st.none() | st.just(BLOCK),
    data=st.binary(max_size=50),
)
def test_a_message_comes_out_as_it_went_in(
    route: str, reply: str, queues: Sequence[str], block: bytes | None, data: bytes
) -> None:
    sent = encode_leaf_message(route, route, reply, queues, block, data)
    assert read(sent) == [LeafMessage(route, route, reply, tuple(queues), block, data)]


def test_what_a_stream_delivers_keeps_its_subject() -> None:
    sent = encode_leaf_message("_INBOX.1", "s.1", "$JS.ACK.S.d.1", (), None, b"x")
    assert read(sent) == [LeafMessage("_INBOX.1", "s.1", "$JS.ACK.S.d.1", (), None, b"x")]


def test_interest() -> None:
    told = [("a", "", 1), ("a", "q", 3), ("a", "", 0), ("a", "q", 0)]
    assert [encode_interest(*each) for each in told] == [b"LS+ a\r\n", b"LS+ a q 3\r\n", b"LS- a\r\n", b"LS- a q\r\n"]


@pytest.mark.parametrize(
    "odd",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"LMSG a\r\n",
        b"LMSG a x\r\n",
        b"LMSG a -1\r\n",
        b"LMSG a 9999999999\r\n",
        b"LMSG a 999999999\r\n",
        b"LMSG a 1\r\nxyz",
        b"LMSG a b c d 1\r\nx\r\n",
        b"HMSG a 5 1\r\nx\r\n",
        b"HMSG a 1\r\nx\r\n",
        b"LMSG \xff 1\r\nx\r\n",
        b"LS+ a q x\r\n",
        b"LS+\r\n",
        b"INFO {\r\n",
        b'INFO {"server_id": 1}\r\n',
        b"\r\n",
        b"x" * (2 << 20),
    ],
)
def test_what_breaks_the_protocol_is_the_end(odd: bytes) -> None:
    parser = LeafParser()
    assert [type(command) for command in parser.feed(odd)] == [Violation]
    assert parser.feed(SENT) == []


@given(odd=st.binary(max_size=200), at=st.integers(0, len(SENT)))
def test_odd_bytes_raise_nothing(odd: bytes, at: int) -> None:
    read(SENT[:at] + odd + SENT[at:])
