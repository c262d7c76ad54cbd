"""Batches that are stored together or not at all, in one call (ADR-50); ``batch_parts.py`` publishes them in parts."""

from __future__ import annotations

from typing import Any, Final

from pelton.api import ConfigError, LimitError, NoStreamForSubjectError, WrongLastSequenceError
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import left, taken
from tests.conformance.cases.table import case, fails, only, refused

_LAST: Final = "Nats-Expected-Last-Sequence"
_OF_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence"
_FILTER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_MSG_ID: Final = "Nats-Msg-Id"
_INCR: Final = "Nats-Incr"

Message = tuple[str, bytes] | tuple[str, bytes, dict[str, str]]
Batches = tuple[list[Message], ...]


async def _stream(jet: Jet, **config: Any) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"], **{"allow_atomic": True, **config})


async def _last(stream: Stream) -> int:
    return (await stream.info()).state.last_seq


@case
async def all_messages_are_stored(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish("s.a")
    ack = await jet.publish_atomic([("s.a", b"1"), ("s.b", b"2", {"A": "b"}), ("s.c", b"3")])
    assert (ack.stream, ack.seq, ack.count, ack.duplicate) == ("S", 4, 3, False)
    assert ack.batch
    assert [(await stream.get_message(seq)).data for seq in (2, 3, 4)] == [b"1", b"2", b"3"]
    assert b"A: b\r\n" in (await stream.get_message(3)).hdrs


@case
async def one_message_is_a_batch(jet: Jet) -> None:
    await _stream(jet)
    ack = await jet.publish_atomic([("s.a", b"")])
    assert (ack.seq, ack.count) == (1, 1)


@case
async def a_thousand_messages_and_no_more(jet: Jet) -> None:
    stream = await _stream(jet)
    assert (await jet.publish_atomic([("s.a", b"")] * 1000)).count == 1000
    await fails(ConfigError, jet.publish_atomic([("s.a", b"")] * 1001))
    await fails(ConfigError, jet.publish_atomic([]))
    assert await _last(stream) == 1000


@case
async def a_stream_must_allow_it(jet: Jet) -> None:
    stream = await _stream(jet, allow_atomic=False)
    await refused(10174, jet.publish_atomic([("s.a", b""), ("s.b", b"")]))
    assert await _last(stream) == 0
    await jet.update_stream("S", allow_atomic=True)
    assert (await jet.publish_atomic([("s.a", b""), ("s.b", b"")])).seq == 2
    await jet.update_stream("S", allow_atomic=False)
    await refused(10174, jet.publish_atomic([("s.a", b"")]))


@case
async def asynchronous_persistence_cannot(jet: Jet) -> None:
    await refused(10052, _stream(jet, persist_mode="async"))


@case
async def a_refused_message_refuses_all(jet: Jet) -> None:
    stream = await _stream(jet, max_msg_size=300)
    good = ("s.a", b"", {_MSG_ID: "x"})
    for position in range(3):
        messages: list[Message] = [good, ("s.b", b""), ("s.c", b"")]
        messages.insert(position, ("s.d", b"x" * 400))
        await refused(10054, jet.publish_atomic(messages))
    assert await _last(stream) == 0
    assert (await jet.publish_atomic([good])).seq == 1


@case
async def a_batch_is_for_one_stream(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.create_stream("T", subjects=["t.>"], allow_atomic=True)
    for messages in ([("s.a", b""), ("t.a", b"")], [("s.a", b""), ("t.a", b""), ("s.a", b"")]):
        await refused(10176, jet.publish_atomic(messages))
    for messages in ([("s.a", b""), ("u.a", b"")], [("u.a", b""), ("s.a", b"")]):
        await fails(NoStreamForSubjectError, jet.publish_atomic(messages))
    assert await _last(stream) == 0


@case
async def the_batch_headers_are_made_by_the_call(jet: Jet) -> None:
    await _stream(jet)
    for name in ("Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"):
        await fails(ConfigError, jet.publish_atomic([("s.a", b"", {name: "1"})]))


@case
async def consumers_get_its_messages(jet: Jet) -> None:
    stream = await _stream(jet, retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_atomic([("s.a", b"1"), ("s.b", b"2")])
    found = await taken(consumer, 2)
    assert [(message.subject, message.data) for message in found] == [("s.a", b"1"), ("s.b", b"2")]
    await consumer.ack(found)
    await left(stream, 0)


@case
async def nothing_is_kept_that_nobody_wants(jet: Jet) -> None:
    stream = await _stream(jet, retention="interest")
    await jet.publish("s.a")
    assert (await jet.publish_atomic([("s.a", b""), ("s.b", b"")])).seq == 3
    assert (await stream.info()).state.messages == 0


# --- conditions


@case
async def the_first_message_may_expect_the_last_sequence(jet: Jet) -> None:
    await _stream(jet)
    await jet.publish("s.a")
    error = await refused(10071, jet.publish_atomic([("s.a", b"", {_LAST: "0"}), ("s.b", b"")]))
    assert error.seq == 1
    assert isinstance(error, WrongLastSequenceError)
    assert (await jet.publish_atomic([("s.a", b"", {_LAST: "1"}), ("s.b", b"")])).seq == 3
    error = await refused(10071, jet.publish_atomic([("s.a", b""), ("s.b", b"", {_LAST: "3"})]))
    assert error.seq == 4
    await refused(10164, jet.publish_atomic([("s.a", b""), ("s.b", b"", {_LAST: "4"})]))


@case
async def subjects_are_expected_as_before_the_batch(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish_batch([("s.a", b""), ("s.b", b"")])
    no_subject = {_OF_SUBJECT: "0"}
    refusals: tuple[tuple[list[Message], int], ...] = (
        ([("s.a", b""), ("s.new", b"", {_OF_SUBJECT: "1"})], 10071),
        ([("s.a", b""), ("s.a", b"", {_OF_SUBJECT: "1"})], 10164),
        ([("s.a", b""), ("s.new", b"", {_OF_SUBJECT: "1", _FILTER: "s.a"})], 10164),
        ([("s.new", b"", no_subject), ("s.new", b"", no_subject)], 10164),
        ([("s.a", b""), ("s.new", b"", {_OF_SUBJECT: "3", _FILTER: "s.*"})], 10071),
        ([("s.a", b""), ("s.b", b"", {_FILTER: "s.x"})], 10193),
        ([("s.a", b"", {**no_subject, _FILTER: "q"}), ("s.b", b"", {_OF_SUBJECT: "1", _FILTER: "q"})], 10071),
    )
    for messages, err_code in refusals:
        await refused(err_code, jet.publish_atomic(messages))
    assert await _last(stream) == 2
    taken: Batches = (
        [("s.a", b"", {_OF_SUBJECT: "1"}), ("s.b", b"", {_OF_SUBJECT: "2"}), ("s.new", b"", no_subject)],
        [("s.a", b""), ("s.new", b"", {_OF_SUBJECT: "5", _FILTER: "s.*"})],
        [("s.c", b"", {**no_subject, _FILTER: "q"}), ("s.d", b"", {**no_subject, _FILTER: "q"})],
        [("s.e", b"", {**no_subject, _FILTER: "s.f"}), ("s.f", b"")],
    )
    for messages in taken:
        await jet.publish_atomic(messages)
    assert await _last(stream) == 11


@case
async def the_stream_may_be_expected_and_the_last_id_not(jet: Jet) -> None:
    await _stream(jet)
    right = {"Nats-Expected-Stream": "S"}
    await jet.publish_atomic([("s.a", b"", right), ("s.b", b"", right)])
    await refused(10060, jet.publish_atomic([("s.a", b"", right), ("s.b", b"", {"Nats-Expected-Stream": "T"})]))
    named = {"Nats-Expected-Last-Msg-Id": "x"}
    both: Batches = ([("s.a", b"", named), ("s.b", b"")], [("s.a", b""), ("s.b", b"", named)])
    for messages in both:
        error = await refused(10177, jet.publish_atomic(messages))
        assert error.description.endswith("Nats-Expected-Last-Msg-Id")
    await refused(10177, jet.publish_atomic([("s.a", b"", {**named, "Nats-Expected-Stream": "T"})]))


@case
async def known_ids_refuse_a_batch(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish_atomic([("s.a", b"", {_MSG_ID: "1"}), ("s.b", b"", {_MSG_ID: "2"})])
    await refused(10201, jet.publish_atomic([("s.a", b"", {_MSG_ID: "3"}), ("s.b", b"", {_MSG_ID: "2"})]))
    await refused(10201, jet.publish_atomic([("s.a", b"", {_MSG_ID: "4"}), ("s.b", b"", {_MSG_ID: "4"})]))
    await refused(10201, jet.publish_atomic([("s.a", b"", {_MSG_ID: "1", _LAST: "77"})]))
    await refused(10060, jet.publish_atomic([("s.a", b"", {_MSG_ID: "1", "Nats-Expected-Stream": "T"})]))
    assert await _last(stream) == 2
    for msg_id in ("3", "4"):
        assert not (await jet.publish("s.a", msg_id=msg_id)).duplicate
    assert (await jet.publish("s.a", msg_id="2")).seq == 2


@case
async def the_first_message_that_is_refused_tells_why(jet: Jet) -> None:
    await _stream(jet)
    await jet.publish("s.a", msg_id="x")
    wrong, known = {_OF_SUBJECT: "99"}, {_MSG_ID: "x"}
    for first, second, err_code in ((wrong, known, 10071), (known, wrong, 10201)):
        await refused(err_code, jet.publish_atomic([("s.a", b"", first), ("s.b", b"", second)]))


@case
async def headers_of_a_batch_are_at_most_64_kilobytes(jet: Jet) -> None:
    stream = await _stream(jet)
    large = {"A": "x" * 70_000}
    both: Batches = ([("s.a", b"", large), ("s.b", b"")], [("s.a", b""), ("s.b", b"", large)])
    for messages in both:
        await refused(10097, jet.publish_atomic(messages))
    assert await _last(stream) == 0


# --- limits


@case
async def a_batch_larger_than_the_stream_leaves_its_end(jet: Jet) -> None:
    stream = await _stream(jet, max_msgs=3)
    await jet.publish_atomic([("s.a", b"")] * 5)
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (3, 3, 5)


@case
async def limits_per_subject_apply(jet: Jet) -> None:
    stream = await _stream(jet, max_msgs_per_subject=1)
    await jet.publish_atomic([("s.a", b""), ("s.a", b""), ("s.b", b"")])
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (2, 2, 3)


@case
async def a_full_stream_refuses_all(jet: Jet) -> None:
    stream = await _stream(jet, max_msgs=3, discard="new")
    assert isinstance(await refused(10077, jet.publish_atomic([("s.a", b"")] * 4)), LimitError)
    assert await _last(stream) == 0
    await jet.publish_atomic([("s.a", b"")] * 3)
    await refused(10077, jet.publish_atomic([("s.a", b"")]))


@case
async def a_full_subject_refuses_all(jet: Jet) -> None:
    stream = await _stream(jet, max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    error = await refused(10077, jet.publish_atomic([("s.a", b""), ("s.b", b""), ("s.a", b"")]))
    assert error.description == "maximum messages per subject exceeded"
    await jet.publish_atomic([("s.a", b""), ("s.b", b"")])
    await refused(10077, jet.publish_atomic([("s.c", b""), ("s.b", b"")]))
    assert await _last(stream) == 2


@only("engine", "a batch finds the room that single publishes would; NATS counts its messages before any makes room")
async def what_replaces_others_finds_room(jet: Jet) -> None:
    stream = await _stream(jet, max_msgs_per_subject=1, max_msgs=3, discard="new")
    for _ in range(2):
        await jet.publish_atomic([("s.a", b""), ("s.b", b""), ("s.c", b""), ("s.a", b"")])
    state = (await stream.info()).state
    assert (state.messages, state.last_seq) == (3, 8)


@case
async def counters_count_in_batches(jet: Jet) -> None:
    stream = await _stream(jet, allow_msg_counter=True)
    await jet.add("s.a", 10)
    ack = await jet.publish_atomic([("s.a", b"", {_INCR: "1"}), ("s.b", b"", {_INCR: "5"}), ("s.a", b"", {_INCR: "2"})])
    assert (ack.seq, ack.val) == (4, "")
    assert [(await stream.get_message(seq)).data for seq in (2, 3, 4)] == [
        b'{"val":"11"}',
        b'{"val":"5"}',
        b'{"val":"13"}',
    ]
    refusals: tuple[tuple[dict[str, str], int], ...] = (
        ({}, 10169),
        ({_INCR: "x"}, 10171),
        ({_INCR: "1", _LAST: "4"}, 10171),
    )
    for wrong, err_code in refusals:
        await refused(err_code, jet.publish_atomic([("s.a", b"", {_INCR: "1"}), ("s.b", b"", wrong)]))
    await refused(10170, jet.publish_atomic([("s.a", b"", {_INCR: "1"}), ("s.b", b"x", {_INCR: "1"})]))
    assert (await stream.counter("s.a"), await jet.add("s.b", 0)) == (13, 5)


@case
async def a_roll_up_spares_its_own_batch(jet: Jet) -> None:
    stream = await _stream(jet, allow_rollup_hdrs=True)
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b"")])
    every, mine = {"Nats-Rollup": "all"}, {"Nats-Rollup": "sub"}
    both: Batches = ([("s.a", b""), ("s.a", b"", mine)], [("s.a", b""), ("s.b", b"", every)])
    for messages in both:
        await refused(10111, jet.publish_atomic(messages))
    assert (await stream.info()).state.messages == 3
    await jet.publish_atomic([("s.c", b"", every), ("s.b", b"", mine)])
    state = (await stream.info()).state
    assert (state.messages, state.first_seq) == (2, 4)


@case
async def too_large_is_told_before_that_none_is_allowed(jet: Jet) -> None:
    stream = await _stream(jet, allow_atomic=False, max_msg_size=10)
    await refused(10054, jet.publish_atomic([("s.a", b"x" * 100), ("s.b", b"")]))
    assert await _last(stream) == 0
