"""Publishing, and reading back the stored messages."""

from __future__ import annotations

from pelton.api import ConfigError, MessageNotFoundError, NoStreamForSubjectError, headers, parse_rfc3339
from pelton.connect import Jet
from tests.conformance.cases.table import case, fails, refused


@case
async def sequences_count_from_one(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    acks = [await jet.publish("s.a", b"x") for _ in range(3)]
    assert [(ack.stream, ack.seq, ack.duplicate) for ack in acks] == [("S", n, False) for n in (1, 2, 3)]


@case
async def a_subject_that_no_stream_takes(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"])
    for subject in ("t", "s", "s.a.b"):
        error = await fails(NoStreamForSubjectError, jet.publish(subject))
        assert (error.subject, error.code) == (subject, 503)


@case
async def a_malformed_subject_is_refused(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    for subject in ("", "s..a", "s.", ".s", "s.*", "s.>", "s. a", "s.\v", "s.\0", "s.\ud800", "s." + 3071 * "a"):
        await fails(ConfigError, jet.publish(subject))
        await fails(ConfigError, jet.publish_batch([("s.a", b""), (subject, b""), ("s.a", b"")]))
    assert {(await stream.get_message(seq)).subject for seq in range(1, 12)} == {"s.a"}
    assert (await jet.publish("s." + 3070 * "a")).seq == 12


@case
async def a_batch_keeps_its_order(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    acks = await jet.publish_batch([(f"s.{n % 3}", b"%d" % n) for n in range(200)])
    assert [ack.seq for ack in acks] == list(range(1, 201))
    assert [(await stream.get_message(seq)).data for seq in (1, 77, 200)] == [b"0", b"76", b"199"]


@case
async def an_empty_batch_is_nothing(jet: Jet) -> None:
    assert await jet.publish_batch([]) == []


@case
async def what_stands_before_a_refused_message_of_a_batch_is_stored(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_msg_size=3)
    await refused(10054, jet.publish_batch([("s", b"1"), ("s", b"2"), ("s", b"1234")]))
    assert (await stream.info()).state.messages == 2


@case
async def a_message_is_read_as_it_was_stored(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", bytes(range(256)), headers={"One": "1", "Two": ["a", "b"]})
    stored = await stream.get_message(1)
    assert (stored.subject, stored.seq, stored.data) == ("s.a", 1, bytes(range(256)))
    decoded = headers.decode(stored.hdrs)
    assert (decoded["One"], decoded.get_all("Two")) == ("1", ["a", "b"])
    assert abs(parse_rfc3339(stored.time) - jet.runtime.clock.now()) < 60 * 10**9


@case
async def an_empty_message_is_a_message(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s")
    stored = await stream.get_message(1)
    assert (stored.data, stored.hdrs) == (b"", b"")


@case
async def the_last_of_a_subject(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b"1"), ("s.b", b"2"), ("s.a", b"3"), ("s.b", b"4")])
    assert (await stream.get_last_message("s.a")).seq == 3
    assert (await stream.get_last_message("s.*")).seq == 4
    await refused(10037, stream.get_last_message("s.c"))


@case
async def the_next_of_a_subject(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b"1"), ("s.b", b"2"), ("s.a", b"3")])
    assert [(await stream.get_next_message("s.a", seq)).seq for seq in (1, 2, 3)] == [1, 3, 3]
    assert (await stream.get_next_message("s.*", 2)).seq == 2
    await refused(10037, stream.get_next_message("s.b", 3))


@case
async def a_sequence_that_is_not_there(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s")
    assert isinstance(await refused(10037, stream.get_message(2)), MessageNotFoundError)


@case
async def a_deleted_message_is_gone(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"1"), ("s", b"2"), ("s", b"3")])
    await stream.delete_message(2)
    await refused(10037, stream.get_message(2))
    state = (await stream.info()).state
    assert (state.messages, state.num_deleted, state.last_seq) == (2, 1, 3)


@case
async def deleting_the_first_moves_the_beginning(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"")] * 4)
    await stream.delete_message(2)
    await stream.delete_message(1)
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.num_deleted) == (2, 3, 0)


@case
async def what_is_not_there_cannot_be_deleted(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s")
    await refused(10057, stream.delete_message(2))
    await stream.delete_message(1)
    await refused(10057, stream.delete_message(1))


@case
async def the_sequence_goes_on_after_the_last_was_deleted(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s")
    await stream.delete_message(1)
    assert (await jet.publish("s")).seq == 2


@case
async def unicode_travels(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["grüße.>"])
    await jet.publish("grüße.ñ", "räder".encode(), headers={"Farbe": "grün"})
    stored = await stream.get_last_message("grüße.ñ")
    assert stored.subject == "grüße.ñ"
    assert headers.decode(stored.hdrs)["Farbe"] == "grün"
