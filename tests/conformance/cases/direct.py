"""Direct get (ADR-31): one message or many, by sequence, subject and time, and the last per subject."""

from __future__ import annotations

from typing import Any

from pelton.api import (
    BadRequestError,
    DirectGet,
    DirectGetDisabledError,
    DirectReply,
    MessageNotFoundError,
    StreamNotFoundError,
    TooManyResultsError,
)
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.table import case, fails, lagging

_LATE = "2100-01-01T00:00:00Z"
_EARLY = "1999-01-01T00:00:00Z"


async def _ten(jet: Jet) -> Stream:
    """Return a stream of ten messages, of ``s.1``, ``s.2``, ``s.0`` in turn; the fifth is deleted."""
    stream = await jet.create_stream("S", subjects=["s.>"], allow_direct=True)
    for number in range(1, 11):
        await jet.publish(f"s.{number % 3}", b"%d" % number, headers={"A": "b"} if number == 2 else None)
    await stream.delete_message(5)
    return stream


async def _get(jet: Jet, **request: Any) -> DirectReply:
    return await jet.backend.direct_get("S", DirectGet(**request))


async def _sequences(jet: Jet, **request: Any) -> list[int]:
    return [message.seq for message in (await _get(jet, **request)).messages]


async def _told(jet: Jet, **request: Any) -> tuple[list[int], int, int]:
    """Sequences read, how many are pending after the last, and the last sequence."""
    reply = await _get(jet, **request)
    return [message.seq for message in reply.messages], reply.num_pending, reply.last_seq


async def _missing(jet: Jet, **request: Any) -> None:
    error = await fails(MessageNotFoundError, _get(jet, **request))
    assert (error.code, error.err_code, error.stream) == (404, 10037, "S")


async def _bad(jet: Jet, text: str, **request: Any) -> None:
    error = await fails(BadRequestError, _get(jet, **request))
    assert (error.code, error.err_code, error.description, error.stream) == (408, 10003, text, "S")


# --- one message


@case
async def a_message_by_sequence(jet: Jet) -> None:
    stream = await _ten(jet)
    reply = await _get(jet, seq=2)
    (message,) = reply.messages
    assert (message.subject, message.seq, message.data) == ("s.2", 2, b"2")
    assert message.hdrs == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert dict(message.headers) == {"A": "b"}
    assert (reply.num_pending, reply.last_seq, reply.up_to_seq) == (0, 0, 0)
    (bare,) = (await _get(jet, seq=3)).messages
    assert (bare.subject, bare.hdrs, dict(bare.headers), bare.data) == ("s.0", b"", {}, b"3")
    assert message.time_ns < bare.time_ns
    assert (await stream.info()).state.first_ts == (await _get(jet, seq=1)).messages[0].time


@lagging("a message is read where it lies: a replica may not have it yet")
async def empty_payloads_and_large_ones(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_direct=True)
    large = bytes(range(256)) * 2000
    await jet.publish("s", b"", headers={"Only": "headers"})
    await jet.publish("s", large)
    assert (await stream.get_message(1)).data == b""
    assert (await stream.get_message(2)).data == large
    assert [len(message.data) for message in await stream.get_messages()] == [0, len(large)]


@case
async def headers_named_as_those_of_the_answer(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_direct=True)
    given = {"Nats-Stream": "other", "Nats-Sequence": "77", "Nats-Subject": "t", "Last": "one"}
    await jet.publish("s", b"x", headers=given)
    message = await stream.get_message(1)
    assert (message.subject, message.seq, dict(message.headers)) == ("s", 1, given)


@case
async def a_sequence_that_is_not_there(jet: Jet) -> None:
    await _ten(jet)
    await _missing(jet, seq=5)
    await _missing(jet, seq=11)
    await _missing(jet, seq=1 << 62)


@case
async def the_last_of_a_subject(jet: Jet) -> None:
    await _ten(jet)
    assert await _sequences(jet, last_by_subj="s.2") == [8]
    assert await _sequences(jet, last_by_subj="s.*") == [10]
    assert await _sequences(jet, last_by_subj=">") == [10]
    await _missing(jet, last_by_subj="s.9")
    await _missing(jet, last_by_subj="s..1")


@case
async def whether_there_is_a_message(jet: Jet) -> None:
    stream = await _ten(jet)
    assert [await jet.backend.has_message("S", one) for one in ("s.2", "s.*", ">")] == [True] * 3
    assert not await jet.backend.has_message("S", "s.9")
    await stream.purge(filter="s.2")
    assert not await jet.backend.has_message("S", "s.2")
    await jet.publish("s.2", b"again")
    assert await jet.backend.has_message("S", "s.2")
    await fails(StreamNotFoundError, jet.backend.has_message("T", "s.2"))


@case
async def the_last_of_a_subject_that_was_deleted(jet: Jet) -> None:
    stream = await _ten(jet)
    await stream.delete_message(8)
    assert await _sequences(jet, last_by_subj="s.2") == [2]
    await stream.delete_message(2)
    await _missing(jet, last_by_subj="s.2")
    ack = await jet.publish("s.2", b"again")
    assert await _sequences(jet, last_by_subj="s.2") == [ack.seq]


@case
async def the_next_of_a_subject(jet: Jet) -> None:
    await _ten(jet)
    assert await _sequences(jet, next_by_subj="s.1") == [1]
    assert await _sequences(jet, next_by_subj="s.1", seq=5) == [7]
    assert await _sequences(jet, next_by_subj="s.*", seq=5) == [6]
    assert await _sequences(jet, next_by_subj=">", seq=5) == [6]
    await _missing(jet, next_by_subj="s.1", seq=11)
    await _missing(jet, next_by_subj="s.2", seq=9)
    await _missing(jet, next_by_subj="t.>")


@case
async def the_first_from_a_time_on(jet: Jet) -> None:
    stream = await _ten(jet)
    seventh = (await stream.get_message(7)).time
    assert await _sequences(jet, start_time=seventh) == [7]
    assert await _sequences(jet, start_time=seventh, next_by_subj="s.0") == [9]
    assert await _sequences(jet, start_time=_EARLY) == [1]
    await _missing(jet, start_time=_LATE)
    await _missing(jet, start_time=_LATE, next_by_subj="s.0")


@case
async def an_empty_stream(jet: Jet) -> None:
    stream = await _ten(jet)
    await stream.purge()
    for request in (
        {"seq": 1},
        {"seq": 1, "batch": 2},
        {"last_by_subj": "s.1"},
        {"next_by_subj": ">", "batch": 2},
        {"start_time": _EARLY},
        {"start_time": _EARLY, "batch": 2},
        {"multi_last": ("s.*",)},
        {"multi_last": ("s.*",), "up_to_seq": 3},
        {"multi_last": ("s.*",), "up_to_time": _LATE},
    ):
        await _missing(jet, **request)


# --- batches


@case
async def a_batch_by_sequence(jet: Jet) -> None:
    await _ten(jet)
    assert await _told(jet, seq=1, batch=3) == ([1, 2, 3], 6, 3)
    assert await _told(jet, seq=4, batch=3) == ([4, 6, 7], 3, 7)
    assert await _told(jet, seq=8, batch=1) == ([8], 2, 8)
    assert await _told(jet, seq=9, batch=3) == ([9, 10], 0, 10)
    await _missing(jet, seq=11, batch=3)


@case
async def a_batch_from_a_sequence_that_is_gone(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await _told(jet, seq=5, batch=2) == ([6, 7], 3, 7)
    await stream.purge(seq=3)
    assert await _told(jet, seq=1, batch=2) == ([3, 4], 5, 4)
    await _missing(jet, seq=1)


@case
async def a_batch_of_a_subject(jet: Jet) -> None:
    await _ten(jet)
    assert await _told(jet, next_by_subj="s.1", batch=3) == ([1, 4, 7], 1, 7)
    assert await _told(jet, next_by_subj="s.1", seq=4, batch=3) == ([4, 7, 10], 0, 10)
    assert await _told(jet, next_by_subj="s.*", seq=4, batch=3) == ([4, 6, 7], 3, 7)
    assert await _told(jet, next_by_subj=">", seq=5, batch=9) == ([6, 7, 8, 9, 10], 0, 10)
    await _missing(jet, next_by_subj="s.9", batch=3)
    await _missing(jet, next_by_subj="s.2", seq=9, batch=3)


@case
async def a_batch_from_a_time_on(jet: Jet) -> None:
    stream = await _ten(jet)
    seventh = (await stream.get_message(7)).time
    assert await _told(jet, start_time=seventh, batch=2) == ([7, 8], 2, 8)
    assert await _told(jet, start_time=seventh, next_by_subj="s.0", batch=2) == ([9], 0, 9)
    await _missing(jet, start_time=_LATE, batch=2)


@case
async def a_batch_ends_with_the_message_that_reaches_its_bytes(jet: Jet) -> None:
    await _ten(jet)
    # "s.1" and a digit are 4 bytes; the second message has a header block of 18 more.
    assert await _told(jet, seq=1, batch=10, max_bytes=1) == ([1], 8, 1)
    assert await _told(jet, seq=1, batch=10, max_bytes=4) == ([1], 8, 1)
    assert await _told(jet, seq=1, batch=10, max_bytes=5) == ([1, 2], 7, 2)
    assert await _told(jet, seq=1, batch=10, max_bytes=26) == ([1, 2], 7, 2)
    assert await _told(jet, seq=1, batch=10, max_bytes=27) == ([1, 2, 3], 6, 3)
    assert await _sequences(jet, seq=2, max_bytes=1) == [2]


@case
async def what_is_pending_follows_the_stream(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await _told(jet, next_by_subj="s.1", batch=2) == ([1, 4], 2, 4)
    await jet.publish("s.1", b"11")
    await jet.publish("s.2", b"12")
    assert await _told(jet, next_by_subj="s.1", seq=5, batch=1) == ([7], 2, 7)
    await stream.delete_message(10)
    assert await _told(jet, next_by_subj="s.1", seq=8, batch=1) == ([11], 0, 11)
    assert await _told(jet, next_by_subj="s.1", seq=1, batch=1) == ([1], 3, 1)
    assert await _told(jet, next_by_subj=">", seq=3, batch=1) == ([3], 7, 3)
    await stream.purge(filter="s.1")
    assert await _told(jet, next_by_subj=">", seq=3, batch=1) == ([3], 4, 3)
    await _missing(jet, next_by_subj="s.1", batch=1)
    ack = await jet.publish("s.1", b"13")
    assert await _told(jet, next_by_subj="s.1", batch=1) == ([ack.seq], 0, ack.seq)


@case
async def a_stream_read_in_batches(jet: Jet) -> None:
    stream = await _ten(jet)
    read: list[int] = []
    while messages := await stream.get_messages(3, seq=read[-1] + 1 if read else 1):
        read += [message.seq for message in messages]
    assert read == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [message.data for message in await stream.get_messages(subject="s.2")] == [b"2", b"8"]
    assert await stream.get_messages(subject="t.*") == []
    sixth = (await stream.get_message(6)).time
    assert [message.seq for message in await stream.get_messages(2, start_time=sixth)] == [6, 7]


# --- the last of each subject


@case
async def the_last_of_each_subject(jet: Jet) -> None:
    await _ten(jet)
    assert await _told(jet, multi_last=("s.*",)) == ([8, 9, 10], 0, 10)
    assert await _told(jet, multi_last=(">",)) == ([8, 9, 10], 0, 10)
    assert await _told(jet, multi_last=("s.1", "s.2", "s.1", "s.9")) == ([8, 10], 0, 10)
    assert await _told(jet, multi_last=("s.2", "s.>")) == ([8, 9, 10], 0, 10)
    assert (await _get(jet, multi_last=("s.*",))).up_to_seq == 10
    await _missing(jet, multi_last=("s.9", "t.>"))


@case
async def the_last_of_each_subject_as_it_was(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await _told(jet, multi_last=("s.*",), up_to_seq=6) == ([2, 4, 6], 0, 6)
    assert await _told(jet, multi_last=("s.*",), up_to_seq=5) == ([2, 3, 4], 0, 4)
    assert (await _get(jet, multi_last=("s.*",), up_to_seq=5)).up_to_seq == 5
    assert await _sequences(jet, multi_last=("s.*",), up_to_seq=1) == [1]
    await _missing(jet, multi_last=("s.2",), up_to_seq=1)
    await stream.delete_message(2)
    assert await _sequences(jet, multi_last=("s.*",), up_to_seq=6) == [4, 6]
    await stream.purge(seq=4)
    await _missing(jet, multi_last=("s.*",), up_to_seq=3)


@case
async def the_last_of_each_subject_up_to_a_sequence_that_is_still_to_come(jet: Jet) -> None:
    """A file store finds nothing, though one in memory does."""
    stream = await _ten(jet)
    await _missing(jet, multi_last=("s.*",), up_to_seq=11)
    assert len(await stream.get_last_messages("s.*", up_to_seq=10)) == 3
    stream = await jet.create_stream("M", subjects=["m"], storage="memory", allow_direct=True)
    await jet.publish("m", b"")
    assert len(await stream.get_last_messages("m", up_to_seq=100)) == 1


@case
async def the_last_of_each_subject_before_a_time(jet: Jet) -> None:
    stream = await _ten(jet)
    seventh = (await stream.get_message(7)).time
    reply = await _get(jet, multi_last=("s.*",), up_to_time=seventh)
    assert ([message.seq for message in reply.messages], reply.up_to_seq) == ([2, 4, 6], 6)
    assert await _sequences(jet, multi_last=("s.*",), up_to_time=_LATE) == [8, 9, 10]
    await _missing(jet, multi_last=("s.*",), up_to_time=_EARLY)
    first = (await stream.get_message(1)).time
    await _missing(jet, multi_last=("s.*",), up_to_time=first)


@case
async def the_last_of_each_subject_in_parts(jet: Jet) -> None:
    await _ten(jet)
    assert await _told(jet, multi_last=("s.*",), batch=1) == ([8], 2, 8)
    assert await _told(jet, multi_last=("s.*",), batch=2, seq=9) == ([9, 10], 0, 10)
    assert await _told(jet, multi_last=("s.*",), batch=3) == ([8, 9, 10], 0, 10)
    assert await _told(jet, multi_last=("s.*",), max_bytes=1) == ([8], 2, 8)
    assert await _told(jet, multi_last=("s.*",), seq=11) == ([], 0, 0)


@case
async def the_last_of_each_subject_after_deletions(jet: Jet) -> None:
    stream = await _ten(jet)
    for seq in (8, 9, 10):
        await stream.delete_message(seq)
    assert await _sequences(jet, multi_last=("s.*",)) == [2, 6, 7]
    assert await _sequences(jet, multi_last=("s.*",), up_to_seq=6) == [2, 4, 6]


@case
async def last_messages_of_subjects(jet: Jet) -> None:
    stream = await _ten(jet)
    assert [message.data for message in await stream.get_last_messages("s.*")] == [b"8", b"9", b"10"]
    assert [message.seq for message in await stream.get_last_messages(["s.1", "s.2"], up_to_seq=6)] == [2, 4]
    sixth = (await stream.get_message(6)).time
    assert [message.seq for message in await stream.get_last_messages("s.*", up_to_time=sixth)] == [2, 3, 4]
    assert await stream.get_last_messages("t.>") == await stream.get_last_messages([]) == []


@lagging("a message is read where it lies: a replica may not have it yet")
async def more_subjects_than_one_answer_holds(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], allow_direct=True)
    await jet.publish_batch([(f"s.{number}", b"x") for number in range(1025)])
    error = await fails(TooManyResultsError, _get(jet, multi_last=("s.*",), batch=1))
    assert (error.code, error.description) == (413, "Too Many Results")
    await fails(TooManyResultsError, _get(jet, multi_last=tuple(f"s.{number}" for number in range(1025))))
    await fails(TooManyResultsError, stream.get_last_messages(["s.>"]))
    assert await _told(jet, multi_last=("s.*",), up_to_seq=1024, batch=1) == ([1], 1023, 1)
    named = tuple(f"s.{number}" for number in range(1024))
    assert await _told(jet, multi_last=named, batch=2) == ([1, 2], 1022, 2)
    assert len(await stream.get_last_messages(named)) == 1024
    await jet.publish_batch([(f"s.{number}", b"y") for number in range(1025)])
    assert len(await stream.get_last_messages("s.*", up_to_seq=1024)) == 1024
    await fails(TooManyResultsError, stream.get_last_messages("s.*", up_to_seq=1025))


# --- which requests are valid, and on which streams


@case
async def requests_that_ask_for_nothing(jet: Jet) -> None:
    await _ten(jet)
    for request in ({}, {"batch": 3}, {"max_bytes": 100}, {"up_to_seq": 3}):
        await _bad(jet, "Empty Request", **request)


@case
async def requests_that_contradict_themselves(jet: Jet) -> None:
    await _ten(jet)
    last: dict[str, Any] = {"last_by_subj": "s.1"}
    many: dict[str, Any] = {"multi_last": ("s.*",)}
    for request in (
        last | {"seq": 3},
        last | {"next_by_subj": "s.1"},
        last | {"start_time": _EARLY},
        last | {"batch": 2},
        last | many,
        {"seq": 2, "start_time": _EARLY},
        many | {"next_by_subj": "s.1"},
        many | {"up_to_seq": 3, "up_to_time": _LATE},
    ):
        await _bad(jet, "Bad Request", **request)


@case
async def requests_that_cannot_be_read(jet: Jet) -> None:
    await _ten(jet)
    for request in ({"seq": -1}, {"start_time": "soon"}, {"seq": 1, "up_to_time": "soon"}):
        await _bad(jet, "Malformed Request", **request)


@case
async def what_a_request_does_not_look_at(jet: Jet) -> None:
    await _ten(jet)
    assert await _sequences(jet, last_by_subj="s.1", up_to_seq=3, max_bytes=1) == [10]
    assert await _told(jet, seq=1, batch=2, up_to_seq=1) == ([1, 2], 7, 2)
    assert await _sequences(jet, multi_last=("s.*",), start_time=_LATE) == [8, 9, 10]


@lagging("a message is read where it lies: a replica may not have it yet")
async def a_stream_that_does_not_allow_it(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", b"1")
    error = await fails(DirectGetDisabledError, _get(jet, seq=1))
    assert (error.code, error.stream) == (503, "S")
    await fails(DirectGetDisabledError, stream.get_messages())
    await fails(DirectGetDisabledError, stream.get_last_messages("s"))
    assert (await stream.get_message(1)).data == (await stream.get_last_message("s")).data == b"1"


@lagging("a message is read where it lies: a replica may not have it yet")
async def a_stream_that_allows_it_later_and_no_longer(jet: Jet) -> None:
    before = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", b"1", headers={"A": "b"})
    allowed = await jet.update_stream("S", allow_direct=True)
    assert await before.get_messages() == [await allowed.get_message(1)] == [await before.get_message(1)]
    await jet.update_stream("S", allow_direct=False)
    await fails(DirectGetDisabledError, _get(jet, seq=1))
    # A handle that does not know yet uses the other request.
    assert await allowed.get_message(1) == await allowed.get_last_message("s") == await allowed.get_next_message("s")


@case
async def a_stream_that_is_not_there(jet: Jet) -> None:
    await fails(StreamNotFoundError, _get(jet, seq=1))
    stream = await _ten(jet)
    assert (await stream.get_message(1)).seq == 1
    await stream.delete()
    await fails(StreamNotFoundError, _get(jet, seq=1))
    await fails(StreamNotFoundError, stream.get_message(1))
    again = await jet.create_stream("S", subjects=["t"], allow_direct=True)
    await fails(MessageNotFoundError, again.get_message(1))


@lagging("a message is read where it lies: a replica may not have it yet")
async def messages_past_their_age(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_age=0.1, duplicate_window=0.1, allow_direct=True)
    ack = await jet.publish("s", b"x")
    try:
        while True:
            await stream.get_message(ack.seq)
    except MessageNotFoundError:
        pass
    await _missing(jet, last_by_subj="s")
    assert await stream.get_messages() == await stream.get_last_messages("s") == []


@case
async def both_ways_give_the_same(jet: Jet) -> None:
    direct = await _ten(jet)
    asked = await jet.update_stream("S", allow_direct=False)
    await jet.update_stream("S", allow_direct=True)
    assert direct.config.allow_direct
    assert not asked.config.allow_direct
    for stream in (direct, asked):
        await fails(MessageNotFoundError, stream.get_message(5))
    assert await direct.get_message(2) == await asked.get_message(2)
    assert await direct.get_last_message("s.1") == await asked.get_last_message("s.1")
    assert await direct.get_next_message("s.*", 5) == await asked.get_next_message("s.*", 5)
