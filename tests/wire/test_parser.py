"""The parser is fed whole, byte by byte, in odd portions and with nonsense."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.wire import (
    AckRun,
    Connect,
    Hpub,
    Parser,
    Ping,
    Pong,
    Pub,
    PubRun,
    Sub,
    Unsub,
    Violation,
    WireLimits,
    encode_err,
    encode_msg,
)
from pelton.wire.protocol import MALFORMED, TOO_LARGE, TOO_LONG, UNKNOWN, Command
from tests.kit.wire_client import ClientParser, ErrLine, InfoLine, Msg, OkLine, encode_pub, encode_sub, encode_unsub

SESSION = (
    b'CONNECT {"verbose":false}\r\n'
    b"PING\r\nPONG\r\n"
    b"PUB a.b 5\r\nhello\r\n"
    b"PUB a.b 5\r\nhel\n\r\r\n"
    b"PUB a.b _INBOX.1 0\r\n\r\n"
    b"PUB a.b 5\r\nagain\r\n"
    b"HPUB a.b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"HPUB a.b r 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    b"SUB a.> 1\r\nsub a.* workers 2\r\nUNSUB 1\r\nUNSUB 2 5\r\n"
)
COMMANDS: list[Command] = [
    Connect(b'{"verbose":false}'),
    Ping(),
    Pong(),
    Pub("a.b", "", b"hello"),
    Pub("a.b", "", b"hel\n\r"),
    Pub("a.b", "_INBOX.1", b""),
    Pub("a.b", "", b"again"),
    Hpub("a.b", "", b"NATS/1.0\r\n\r\n", b"hi"),
    Hpub("a.b", "r", b"NATS/1.0\r\n\r\n", b""),
    Sub("a.>", "", b"1"),
    Sub("a.*", "workers", b"2"),
    Unsub(b"1", 0),
    Unsub(b"2", 5),
]
FROM_SERVER = (
    b'INFO {"server_id":"x"}\r\n+OK\r\n'
    b"-ERR 'Unknown Protocol Operation'\r\n"
    b"MSG a 1 2\r\nhi\r\nMSG a 1 r 0\r\n\r\nHMSG a 9 12 13\r\nNATS/1.0\r\n\r\n!\r\n"
    b"HMSG a 9 r 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    b"PING\r\nPONG\r\n"
)
SERVER_COMMANDS: list[Command] = [
    InfoLine(b'{"server_id":"x"}'),
    OkLine(),
    ErrLine("Unknown Protocol Operation"),
    Msg("a", b"1", "", None, b"hi"),
    Msg("a", b"1", "r", None, b""),
    Msg("a", b"9", "", b"NATS/1.0\r\n\r\n", b"!"),
    Msg("a", b"9", "r", b"NATS/1.0\r\n\r\n", b""),
    Ping(),
    Pong(),
]


def fed(parser: Parser, *portions: bytes) -> list[Command]:
    return [command for portion in portions for command in all_of(parser, portion)]


def all_of(parser: Parser, portion: bytes) -> list[Command]:
    found = parser.feed(portion)
    while parser.is_paused:
        found += parser.go_on()
    return [
        one for command in found for one in (command.messages if isinstance(command, AckRun | PubRun) else [command])
    ]


def test_whole() -> None:
    assert fed(Parser(), SESSION) == COMMANDS


def test_byte_by_byte() -> None:
    assert fed(Parser(), *(SESSION[at : at + 1] for at in range(len(SESSION)))) == COMMANDS


@pytest.mark.parametrize("size", [2, 3, 7, 13, 64])
def test_in_portions_repeated(size: int) -> None:
    # Three times, so that known lines are met as well.
    whole = SESSION * 3
    assert fed(Parser(), *(whole[at : at + size] for at in range(0, len(whole), size))) == COMMANDS * 3


def test_trailing_bytes_wait() -> None:
    parser = Parser()
    assert all_of(parser, SESSION + b"PI") == COMMANDS
    assert parser.feed(b"NG\r\n") == [Ping()]


@pytest.mark.parametrize(("limits", "text"), [(WireLimits(payload=3), TOO_LARGE), (WireLimits(line=20), TOO_LONG)])
def test_limits_are_for_acks_too(limits: WireLimits, text: str) -> None:
    assert fed(Parser(limits), b"PUB $JS.ACK.S.c.1.2.3.4.5.6.7.8.9.10 4\r\n+ACK\r\n" * 9) == [Violation(text)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_client_of_the_tests_reads_what_a_server_sends(size: int) -> None:
    parser = ClientParser()
    portions = [FROM_SERVER[at : at + size] for at in range(0, len(FROM_SERVER), size)]
    assert [command for portion in portions for command in parser.feed(portion)] == SERVER_COMMANDS


def test_white_space_and_case_as_on_nats() -> None:
    sent = b"pub\ta\t 2 \r\nhi\r\nPING\r\nPiNgx y\nSUB  a   1\r\nSUB b\r x\r2\r\nPUB a\r 0\r\n\r\nUNSUB 1 x\r\n"
    read = [Pub("a", "", b"hi"), Ping(), Ping(), Sub("a", "", b"1"), Sub("b", "x", b"2"), Pub("a\r", "", b"")]
    assert fed(Parser(), sent) == [*read, Unsub(b"1", 0)]


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"HELLO\r\n", UNKNOWN),
        (b"\r\n", UNKNOWN),
        (b"MSG a 1 0\r\n\r\n", UNKNOWN),
        (b"PUB a\r\n", MALFORMED),
        (b"PUB a b c 1\r\n", MALFORMED),
        (b"PUB a -1\r\n", MALFORMED),
        (b"PUB a 1x\r\n", MALFORMED),
        (b"PUB a 99999999999999999999\r\n", MALFORMED),
        (b"PUB \xff\xfe 1\r\n", MALFORMED),
        (b"PUB a 1\r\nxyz\r\n", UNKNOWN),
        (b"HPUB a 5 4\r\n", MALFORMED),
        (b"HPUB a 5\r\n", MALFORMED),
        (b"SUB a\r\n", MALFORMED),
        (b"SUB a b c d\r\n", MALFORMED),
        (b"UNSUB\r\n", MALFORMED),
        (b"PUB a 1\r\r\nx\r\n", MALFORMED),
        (b" PING\r\n", UNKNOWN),
        (b"PUB a 101\r\n", TOO_LARGE),
        (b"PUB " + b"a" * 300, TOO_LONG),
        (b"PUB " + b"a" * 300 + b" 1\r\n", TOO_LONG),
    ],
)
def test_what_breaks_the_protocol_ends_it(sent: bytes, text: str) -> None:
    parser = Parser(WireLimits(line=256, payload=100))
    assert parser.feed(b"PING\r\n" + sent + b"PING\r\n") == [Ping(), Violation(text)]
    assert parser.feed(b"PING\r\n") == []


@pytest.mark.parametrize(
    "sent",
    [
        b"PUB a.b r 5\r\nhello\r\n",
        b"PUB a.b r 0\r\n\r\n",
        b"PUB a.b r 5\r\nhello\n\n",
        b"PUB a.b r 5\r\nhel",
        b"PUB a.b r 12\r\ntwelve bytes\r\n",
        b"PUB a.b.of.a.line r 5\r\nhello\r\n",
        b"PUB a.b r 5\r\nhello\r\nPING\r\n",
    ],
)
def test_a_message_that_comes_alone_is_read_as_one_behind_another_command(sent: bytes) -> None:
    limits = WireLimits(line=14, payload=10)
    assert fed(Parser(limits), b"PING\r\n" + sent) == [Ping(), *fed(Parser(limits), sent)]
    waits = Parser(limits)
    waits.awaits_connect = True
    assert [type(command) for command in fed(waits, sent)] == [Violation]


def test_a_large_message_is_joined_once() -> None:
    parser = Parser(WireLimits(payload=1 << 20))
    data = bytes(1 << 20)
    sent = encode_pub("big", "", None, data) + b"PING\r\n"
    assert fed(parser, *(sent[at : at + 1000] for at in range(0, len(sent), 1000))) == [Pub("big", "", data), Ping()]


_TOKENS = st.text("abcXYZ09_-$*>é", min_size=1, max_size=6)
_NAMES = st.lists(_TOKENS, min_size=1, max_size=4).map(".".join)
_BLOCKS = st.binary(max_size=30).map(lambda data: b"NATS/1.0\r\nx: " + data + b"\r\n\r\n")
_ACKS = st.sampled_from(
    ["$JS.ACK.S.c.1.2.3.4.5", "$JS.ACK.S.c.1.3.4.5.4", "$JS.ACK.é.c.1", f"$JS.ACK.{'x' * 300}", "$JS.ACK."]
)
_CLIENT = st.one_of(
    st.builds(
        Pub, _ACKS, st.just("") | st.just("r"), st.sampled_from([b"+ACK", b"+ACK", b"+ACK", b"", b"+WPI", b"+ACK\r\n"])
    ),
    st.builds(Pub, _NAMES, st.just("") | _NAMES, st.binary(max_size=50)),
    st.builds(Hpub, _NAMES, st.just("") | _NAMES, _BLOCKS, st.binary(max_size=50)),
    st.builds(Sub, _NAMES, st.just("") | _TOKENS, st.just(b"12")),
    st.builds(Unsub, st.just(b"12"), st.integers(0, 9)),
)


def _encoded(command: Command) -> bytes:
    match command:
        case Pub(subject, reply, data):
            return encode_pub(subject, reply, None, data)
        case Hpub(subject, reply, block, data):
            return encode_pub(subject, reply, block, data)
        case Sub(subject, queue, sid):
            return encode_sub(subject, sid, queue)
        case Unsub(sid, limit):
            return encode_unsub(sid, limit)
        case Msg(subject, sid, reply, block, data):
            return encode_msg(subject, sid, reply, block, data)
        case ErrLine(text):
            return encode_err(text)
    raise AssertionError(command)


@given(st.lists(_CLIENT, max_size=8), st.lists(st.integers(0, 200), max_size=6))
def test_what_is_encoded_is_parsed(commands: list[Command], cuts: list[int]) -> None:
    sent = b"".join(map(_encoded, commands))
    marks = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    assert fed(Parser(), *(sent[a:b] for a, b in pairwise(marks))) == commands


_BODIES = st.sampled_from([b"abcd", b"\r\nPU", b"+ACK", b"", b"abc"])
_REPLIES = st.sampled_from(["_INBOX.x.1", "_INBOX.x.2", "r", "", "é", "_" * 130])
_SUBJECTS = st.sampled_from(["a.b", "a.b", "a.b", "a.c", "$JS.ACK.S.c.1.2.3.4.5"])
_ALIKE = st.builds(Pub, _SUBJECTS, _REPLIES, _BODIES).flatmap(
    lambda one: st.integers(1, 20).map(lambda count: [Pub(one.subject, one.reply, one.data)] * count)
)


@given(
    st.lists(_ALIKE | _CLIENT.map(lambda one: [one]), max_size=12),
    st.lists(st.integers(0, 3000), max_size=6),
    st.sampled_from([64, 255, 4096]),
)
def test_messages_that_are_read_together_are_what_each_would_be(
    groups: list[list[Command]], cuts: list[int], line: int
) -> None:
    commands = [Pub("a.b", f"_INBOX.{number}", b"abcd") for number in range(70)] + [
        one for some in groups for one in some
    ]
    sent = b"".join(map(_encoded, commands))
    marks = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    whole = fed(Parser(WireLimits(line=line)), *(sent[a:b] for a, b in pairwise(marks)))
    one_by_one = [each for command in commands for each in fed(Parser(WireLimits(line=line)), _encoded(command))]
    end = next((at for at, each in enumerate(one_by_one) if isinstance(each, Violation)), len(one_by_one))
    assert whole == one_by_one[: end + 1]


def test_messages_with_replies_become_runs_once_many_have_followed_each_other() -> None:
    sent = [Pub("a.b", f"_INBOX.x.{number}", b"\r\nPUB") for number in range(100)]
    found = Parser().feed(b"".join(map(_encoded, sent)))
    assert isinstance(found[-1], PubRun)
    assert found[:-1] + list(found[-1].messages) == sent
    assert len(found) < len(sent)


@given(st.builds(Msg, _NAMES, st.just(b"3"), st.just("") | _NAMES, st.none() | _BLOCKS, st.binary(max_size=50)))
def test_what_a_server_delivers_is_parsed(message: Msg) -> None:
    assert ClientParser().feed(_encoded(message) + encode_err("no")) == [message, ErrLine("no")]


_WORDS = b"PUB |HPUB |SUB |UNSUB |CONNECT |MSG |-ERR|\r\n|\n| |1|12|a.b|NATS/1.0\r\n\r\n|{}|PING\r\n|\xff".split(b"|")
_NONSENSE = st.lists(st.sampled_from(_WORDS) | st.binary(max_size=8), max_size=30)


@given(_NONSENSE)
def test_nonsense_never_raises_and_portions_do_not_matter(words: list[bytes]) -> None:
    sent = b"".join(words)
    limits = WireLimits(line=64, payload=64)
    whole = fed(Parser(limits), sent)
    apart = fed(Parser(limits), *(sent[at : at + 1] for at in range(len(sent))))
    assert apart[: len(whole)] == whole or whole == apart
    assert sum(isinstance(command, Violation) for command in whole) <= 1
