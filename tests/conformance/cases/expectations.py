"""What a publish may expect of the stream; if an expectation fails, nothing is stored."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from pelton.api import ExpectationError, WrongLastSequenceError
from pelton.connect import Jet
from tests.conformance.cases.table import case, only, refused

_STREAM: Final = "Nats-Expected-Stream"
_LAST: Final = "Nats-Expected-Last-Sequence"
_OF_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence"
_FILTER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_LAST_ID: Final = "Nats-Expected-Last-Msg-Id"
# In the order in which they are checked: a header that fails, and its error.
_BROKEN: Final = (
    (_STREAM, "T", 10060, "expected stream does not match"),
    (_FILTER, "s.*", 10193, "missing sequence for expected last sequence per subject"),
    (_OF_SUBJECT, "7", 10071, "wrong last sequence: 1"),
    (_LAST, "9", 10071, "wrong last sequence: 2"),
    (_LAST_ID, "x", 10070, "wrong last msg ID: y"),
)


@case
async def the_last_sequence(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", expected_last_seq=0)
    await jet.publish("s", expected_last_seq=1)
    error = await refused(10071, jet.publish("s", expected_last_seq=1))
    assert isinstance(error, WrongLastSequenceError)
    assert error.seq == 2
    assert (await stream.info()).state.messages == 2


@case
async def the_last_sequence_of_the_subject(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", expected_last_subject_seq=0)
    await jet.publish("s.b")
    await jet.publish("s.a", expected_last_subject_seq=1)
    error = await refused(10071, jet.publish("s.a", expected_last_subject_seq=2))
    assert isinstance(error, WrongLastSequenceError)
    assert error.seq == 3
    error = await refused(10071, jet.publish("s.c", expected_last_subject_seq=3))
    assert error.seq == 0


@case
async def the_last_sequence_of_a_filter(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a.1", b""), ("s.a.2", b""), ("s.b.1", b"")])
    ask = {"expected_last_subject_seq_subject": "s.a.*"}
    await refused(10071, jet.publish("s.a.1", expected_last_subject_seq=1, **ask))  # type: ignore[arg-type]  # one str
    await jet.publish("s.a.1", expected_last_subject_seq=2, **ask)  # type: ignore[arg-type]  # one str


@case
async def a_filter_needs_its_sequence(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await refused(10193, jet.publish("s.a", expected_last_subject_seq_subject="s.*"))


@case
async def the_stream(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", expected_stream="S")
    assert isinstance(await refused(10060, jet.publish("s", expected_stream="T")), ExpectationError)


@case
async def the_last_message_id(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", msg_id="x")
    await jet.publish("s", msg_id="y", expected_last_msg_id="x")
    assert isinstance(await refused(10070, jet.publish("s", expected_last_msg_id="x")), ExpectationError)
    await jet.publish("s")
    await refused(10070, jet.publish("s", expected_last_msg_id="y"))


@case
async def a_deleted_message_does_not_count_as_the_last_of_its_subject(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b""), ("s.a", b"")])
    await stream.delete_message(2)
    await jet.publish("s.a", expected_last_subject_seq=1)


@case
async def a_purge_leaves_the_last_sequence(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"")] * 3)
    await stream.purge()
    await jet.publish("s", expected_last_seq=3)


@case
async def no_number_is_expected_as_zero(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish("s")
    await refused(10071, jet.publish("s", headers={"Nats-Expected-Last-Sequence": "many"}))


async def _two(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", msg_id="x")
    await jet.publish("s.b", msg_id="y")


@case
async def of_several_that_do_not_hold_the_first_is_told(jet: Jet) -> None:
    await _two(jet)
    for count in range(1, len(_BROKEN) + 1):
        for chosen in combinations(_BROKEN, count):
            asked = {name: value for name, value, _, _ in chosen}
            if _OF_SUBJECT in asked and _FILTER in asked:
                # Together they are one condition.
                continue
            error = await refused(chosen[0][2], jet.publish("s.a", headers=asked))
            assert error.description == chosen[0][3]
    assert (await jet.publish("s.c")).seq == 3


@case
async def what_is_no_sequence_equals_none(jet: Jet) -> None:
    await _two(jet)
    for text in ("many", "-1", "-2", "+2", "2x", "x2", "2.0", "0x2", "9" * 19, "9" * 5000):
        for name in (_LAST, _OF_SUBJECT):
            error = await refused(10071, jet.publish("s.b", headers={name: text}))
            assert error.seq == 2


@case
async def a_sequence_may_be_written_with_spaces_and_zeros(jet: Jet) -> None:
    await _two(jet)
    for last, form in enumerate(("{} ", " {}", "0{}", "000{}"), start=2):
        text = form.format(last)
        await jet.publish("s.c", headers={_LAST: text, _OF_SUBJECT: text, _FILTER: "s.>"})


@case
async def a_header_without_a_value_asks_for_nothing(jet: Jet) -> None:
    await _two(jet)
    for name in (_STREAM, _FILTER, _OF_SUBJECT, _LAST, _LAST_ID, "Nats-Msg-Id"):
        assert not (await jet.publish("s.c", headers={name: ""})).duplicate


@case
async def names_of_headers_are_compared_exactly(jet: Jet) -> None:
    await _two(jet)
    await jet.publish("s.c", headers={_STREAM.lower(): "T", _LAST.upper(): "9", "X-" + _STREAM: "T"})


@case
async def a_filter_of_the_last_sequence_takes_wildcards(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>", "t.*"])
    await jet.publish_batch([("s.a.x", b""), ("s.b.x", b""), ("t.x", b"")])
    real = {
        "s.a.x": 1,
        "s.*.x": 2,
        "s.>": 2,
        ">": 3,
        "t.*": 3,
        "*.*.x": 2,
        "u": 0,
        "u.>": 0,
        "s..a": 0,
        "s.": 0,
        "*": 0,
        "S.a.x": 0,
        "s.>.x": 0,
        "s.a x": 0,
    }
    for text, last in real.items():
        error = await refused(10071, jet.publish("s.q.q", headers={_FILTER: text, _OF_SUBJECT: "4"}))
        assert error.seq == last, text
    holds = {_FILTER: "*.*.x", _OF_SUBJECT: "2", _LAST: "3", _STREAM: "S"}
    assert (await jet.publish("t.y", headers=holds)).seq == 4


@case
async def the_size_is_looked_at_before_any_condition(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"], max_msg_size=60)
    for name, value, _, _ in _BROKEN:
        await refused(10054, jet.publish("s.a", b"x" * 100, headers={name: value}))


@case
async def conditions_are_looked_at_before_there_is_room(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"], max_msgs=2, discard="new")
    await jet.publish("s.a", msg_id="x")
    await jet.publish("s.b", msg_id="y")
    for name, value, err_code, _ in _BROKEN:
        await refused(err_code, jet.publish("s.a", headers={name: value}))
    for asked in ({}, {_LAST: "2"}, {_OF_SUBJECT: "1"}, {_LAST_ID: "y"}, {_STREAM: "S"}):
        await refused(10077, jet.publish("s.a", headers=asked))
    assert (await jet.publish("s.b", msg_id="x")).duplicate


@case
async def a_duplicate_is_told_before_the_last_id_it_expects(jet: Jet) -> None:
    await _two(jet)
    assert (await jet.publish("s.a", msg_id="x", expected_last_msg_id="never")).duplicate
    await refused(10060, jet.publish("s.a", msg_id="x", expected_stream="T"))
    await refused(10193, jet.publish("s.a", msg_id="x", expected_last_subject_seq_subject="s.*"))


@case
async def an_unmet_condition_leaves_no_id(jet: Jet) -> None:
    await _two(jet)
    await refused(10071, jet.publish("s.a", msg_id="z", expected_last_seq=9))
    assert not (await jet.publish("s.a", msg_id="z")).duplicate


@case
async def the_last_id_is_that_of_the_last_message(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    error = await refused(10070, jet.publish("s", expected_last_msg_id="x"))
    assert error.description == "wrong last msg ID: "
    await jet.publish("s", msg_id="x")
    await jet.publish("s", msg_id="y", expected_last_msg_id="x")
    await jet.publish("s")
    error = await refused(10070, jet.publish("s", expected_last_msg_id="y"))
    assert error.description == "wrong last msg ID: "


@case
async def headers_are_at_most_64_kilobytes(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    room = 65_535 - len(b"NATS/1.0\r\nA: \r\n\r\n")
    await jet.publish("s", headers={"A": "x" * room})
    await refused(10097, jet.publish("s", headers={"A": "x" * (room + 1)}))


@case
async def a_publisher_is_no_stream(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await refused(10227, jet.publish("s", headers={"Nats-Stream-Source": "T 1 > > s"}))


@only("engine", "a number too large for a sequence equals none; NATS counts it modulo 2**64, so 2**64 means 0")
async def a_number_too_large_equals_no_sequence(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await refused(10071, jet.publish("s", headers={_LAST: str(2**64)}))
    await refused(10071, jet.publish("s", headers={_OF_SUBJECT: str(2**64)}))
