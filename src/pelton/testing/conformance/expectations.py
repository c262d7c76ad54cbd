"""What a publisher may expect of the stream; where it does not hold, nothing is stored."""

from __future__ import annotations

from pelton.api import ExpectationError, WrongLastSequenceError
from pelton.connect import Jet
from pelton.testing.conformance.table import case, refused


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
