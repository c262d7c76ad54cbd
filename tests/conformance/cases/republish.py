"""Republish (ADR-28): stored messages are published again under another subject, captured here by a second stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pelton.api import parse_rfc3339
from pelton.connect import Jet
from pelton.jet import Message, Stream
from tests.conformance.cases.eventually import left, taken
from tests.conformance.cases.table import case, only, refused

_ALL: Final = {"src": ">", "dest": "again.>"}
_PATIENCE_S: Final = 10


async def _pair(jet: Jet, republish: Mapping[str, Any] = _ALL, **fields: Any) -> tuple[Stream, Stream]:
    """The stream that republishes, and the one that captures the republished messages."""
    listener = await jet.create_stream("L", subjects=["again.>"])
    return await jet.create_stream("S", subjects=["a.>"], republish=dict(republish), **fields), listener


async def _heard(listener: Stream, count: int) -> list[Message]:
    """The first republished messages; a NATS server sends them some time after its reply."""
    consumer = await listener.create_consumer(ack_policy="none")
    found: list[Message] = []
    while len(found) < count:
        more = await consumer.fetch(count - len(found), timeout=_PATIENCE_S)
        assert more, f"{len(found)} of {count} messages were republished"
        found += more
    return found


async def _subjects(listener: Stream, count: int) -> list[str]:
    return [message.subject for message in await _heard(listener, count)]


async def _lasts(listener: Stream, count: int) -> list[str]:
    return [message.headers["Nats-Last-Sequence"] for message in await _heard(listener, count)]


@case
async def a_stored_message_is_said_again(jet: Jet) -> None:
    stream, listener = await _pair(jet)
    ack = await jet.publish("a.x", b"one")
    (message,) = await _heard(listener, 1)
    assert (message.subject, message.data) == ("again.a.x", b"one")
    assert dict(message.headers) == {
        "Nats-Stream": "S",
        "Nats-Subject": "a.x",
        "Nats-Sequence": str(ack.seq),
        "Nats-Time-Stamp": (await stream.get_message(ack.seq)).time,
        "Nats-Last-Sequence": "0",
    }
    assert parse_rfc3339(message.headers["Nats-Time-Stamp"]) > 0


@case
async def what_is_said_again_comes_before_what_is_published_next(jet: Jet) -> None:
    _, listener = await _pair(jet)
    for subject in ("a.x", "again.own", "a.y", "a.z", "again.own"):
        await jet.publish(subject)
    assert await _subjects(listener, 5) == ["again.a.x", "again.own", "again.a.y", "again.a.z", "again.own"]


@only("engine", "a server that is not waited for stores them in the order in which its threads come to it")
async def also_within_a_batch(jet: Jet) -> None:
    _, listener = await _pair(jet)
    await jet.publish_batch([(subject, b"") for subject in ("a.x", "again.own", "a.y", "a.z", "again.own")])
    assert await _subjects(listener, 5) == ["again.a.x", "again.own", "again.a.y", "again.a.z", "again.own"]


@case
async def the_last_sequence_of_the_subject_goes_with_it(jet: Jet) -> None:
    _, listener = await _pair(jet)
    await jet.publish("a.x")
    await jet.publish_batch([("a.y", b""), ("a.x", b""), ("a.x", b""), ("a.y", b""), ("a.z", b"")])
    await jet.publish("a.y")
    heard = await _heard(listener, 7)
    assert [message.headers["Nats-Sequence"] for message in heard] == list("1234567")
    assert [message.headers["Nats-Last-Sequence"] for message in heard] == list("0013205")


@case
async def the_messages_own_headers_come_first(jet: Jet) -> None:
    _, listener = await _pair(jet)
    await jet.publish("a.x", b"one", headers={"Colour": ["green", "blue"], "Nats-Stream": "mine"})
    (message,) = await _heard(listener, 1)
    assert list(message.headers)[:2] == ["Colour", "Nats-Stream"]
    assert message.headers.get_all("Colour") == ["green", "blue"]
    assert message.headers.get_all("Nats-Stream") == ["mine", "S"]
    assert message.headers["Nats-Sequence"] == "1"


@case
async def headers_alone(jet: Jet) -> None:
    _, listener = await _pair(jet, {"src": ">", "dest": "again.>", "headers_only": True})
    await jet.publish("a.x", b"12345")
    await jet.publish("a.y", b"", headers={"Colour": "green"})
    first, second = await _heard(listener, 2)
    assert (first.data, first.headers["Nats-Msg-Size"], list(first.headers)[-1]) == (b"", "5", "Nats-Msg-Size")
    assert (second.headers["Nats-Msg-Size"], second.headers["Colour"]) == ("0", "green")


@case
async def only_what_the_source_names_is_said(jet: Jet) -> None:
    _, listener = await _pair(jet, {"src": "a.*.green", "dest": "again.{{wildcard(1)}}"})
    await jet.publish_batch([("a.x.red", b""), ("a.x.green", b"1"), ("a.y", b""), ("a.z.green", b"2")])
    assert [(m.subject, m.data) for m in await _heard(listener, 2)] == [("again.x", b"1"), ("again.z", b"2")]


@case
async def a_source_may_name_nothing_of_the_stream(jet: Jet) -> None:
    _, listener = await _pair(jet, {"src": "other", "dest": "again.other"})
    await jet.publish("a.x")
    await jet.publish("again.end")
    assert [message.subject for message in await _heard(listener, 1)] == ["again.end"]


@case
async def a_duplicate_is_not_said_again(jet: Jet) -> None:
    _, listener = await _pair(jet)
    for _ in range(2):
        await jet.publish("a.x", b"1", headers={"Nats-Msg-Id": "one"})
    await jet.publish("a.x", b"2")
    first, second = await _heard(listener, 2)
    assert (first.data, second.data) == (b"1", b"2")
    assert first.headers["Nats-Msg-Id"] == "one"


@case
async def a_refused_message_is_not_said(jet: Jet) -> None:
    _, listener = await _pair(jet, max_msg_size=80)
    await refused(10054, jet.publish("a.x", b"x" * 81))
    await refused(10071, jet.publish("a.x", expected_last_seq=7))
    await jet.publish("a.x", b"2")
    assert [message.data for message in await _heard(listener, 1)] == [b"2"]


@case
async def a_listening_stream_heeds_the_headers(jet: Jet) -> None:
    _, listener = await _pair(jet)
    await jet.publish("again.own", headers={"Nats-Msg-Id": "one"})
    await jet.publish("a.x", b"1", headers={"Nats-Msg-Id": "one"})
    await jet.publish("a.x", b"2")
    assert [message.data for message in await _heard(listener, 2)] == [b"", b"2"]


@case
async def the_subject_said_is_the_stored_one(jet: Jet) -> None:
    _, listener = await _pair(jet, subject_transform={"src": "a.*", "dest": "b.$1"})
    await jet.publish_batch([("a.x", b""), ("a.x", b"")])
    _, message = await _heard(listener, 2)
    assert (message.subject, message.headers["Nats-Subject"]) == ("again.b.x", "b.x")
    assert message.headers["Nats-Last-Sequence"] == "1"


@case
async def the_last_sequence_is_that_of_a_message_that_is_there(jet: Jet) -> None:
    stream, listener = await _pair(jet)
    await jet.publish_batch([("a.x", b"")] * 3)
    await stream.delete_message(3)
    await jet.publish("a.x")
    await stream.purge(filter="a.x")
    await jet.publish("a.x")
    await stream.purge()
    await jet.publish("a.x")
    assert await _lasts(listener, 6) == list("012200")


@case
async def the_last_sequence_in_a_full_stream(jet: Jet) -> None:
    _, listener = await _pair(jet, max_msgs=2)
    await jet.publish_batch([(f"a.{name}", b"") for name in "xxyzxxyyzx"])
    assert await _lasts(listener, 10) == list("0100050700")


@case
async def the_last_sequence_where_older_messages_make_room(jet: Jet) -> None:
    _, listener = await _pair(jet, max_msgs=2)
    await jet.publish_batch([("a.x", b""), ("a.y", b"")])
    await jet.update_stream("S", description="now")
    await jet.publish_batch([("a.z", b""), ("a.x", b""), ("a.y", b"")])
    assert await _lasts(listener, 5) == list("00000")


@case
async def the_last_sequence_in_a_stream_full_of_bytes(jet: Jet) -> None:
    _, listener = await _pair(jet, max_bytes=2 * (22 + len("a.x") + 10 + 8))
    await jet.publish_batch([(f"a.{name}", b"x" * 10) for name in "xxyzxxyyzx"])
    assert await _lasts(listener, 10) == list("0100050700")


@case
async def the_last_sequence_where_each_subject_keeps_one(jet: Jet) -> None:
    _, listener = await _pair(jet, max_msgs_per_subject=1)
    await jet.publish_batch([("a.x", b""), ("a.y", b""), ("a.x", b"")])
    await jet.publish_batch([("a.x", b""), ("a.y", b"")])
    assert await _lasts(listener, 5) == list("00132")


@case
async def the_last_sequence_in_a_work_queue(jet: Jet) -> None:
    stream, listener = await _pair(jet, retention="workqueue")
    worker = await stream.create_consumer(durable_name="w")
    await jet.publish_batch([("a.x", b"")] * 3)
    messages = await taken(worker, 3)
    await worker.ack(messages[1:])
    await left(stream, 1)
    await jet.publish("a.x")
    await worker.ack([messages[0], *await worker.fetch(1)])
    await left(stream, 0)
    await jet.publish("a.x")
    assert await _lasts(listener, 5) == list("01210")


@case
async def what_nobody_wants_is_not_said(jet: Jet) -> None:
    stream, listener = await _pair(jet, retention="interest")
    await jet.publish("a.x", b"1")
    await stream.create_consumer(durable_name="c")
    await jet.publish("a.x", b"2")
    (message,) = await _heard(listener, 1)
    assert (message.data, message.headers["Nats-Sequence"]) == (b"2", "2")


@case
async def a_changed_republish_holds_from_then_on(jet: Jet) -> None:
    _, listener = await _pair(jet)
    await jet.publish("a.x", b"1")
    await jet.update_stream("S", republish=None)
    await jet.publish("a.x", b"2")
    await jet.update_stream("S", republish={"src": "a.x", "dest": "again.there"})
    await jet.publish("a.x", b"3")
    found = [(m.subject, m.data, m.headers["Nats-Last-Sequence"]) for m in await _heard(listener, 2)]
    assert found == [("again.a.x", b"1", "0"), ("again.there", b"3", "2")]


@case
async def an_empty_source_is_everything(jet: Jet) -> None:
    stream, listener = await _pair(jet, {"src": "", "dest": "again.>"})
    republish = stream.config.republish
    assert republish is not None
    assert (republish.src, republish.dest, republish.headers_only) == (">", "again.>", False)
    await jet.publish("a.x")
    assert [message.subject for message in await _heard(listener, 1)] == ["again.a.x"]
    same = await jet.create_stream("S", subjects=["a.>"], republish={"src": "", "dest": "again.>"})
    assert same.config == stream.config


@case
async def a_circle_is_refused(jet: Jet) -> None:
    for dest in ("a.x.>", ">", "a.>"):
        error = await refused(10052, jet.create_stream("S", subjects=["a.>"], republish={"src": ">", "dest": dest}))
        assert error.description == "stream configuration for republish destination forms a cycle"
    await jet.create_stream("S", subjects=["a.>"], republish={"src": ">", "dest": "again.>"})
    await refused(10052, jet.update_stream("S", subjects=["a.>", "again.b"]))


@case
async def a_mapping_that_cannot_be_is_refused(jet: Jet) -> None:
    for src, dest in ((">", "again"), ("a.*", "again.$2"), ("a..b", "again"), ("a.*", "again.{{left(1)}}")):
        error = await refused(10052, jet.create_stream("S", subjects=["a.>"], republish={"src": src, "dest": dest}))
        text = f"stream configuration for republish with transform from '{src}' to '{dest}' not valid"
        assert error.description == text


@case
async def under_the_new_name_where_a_transform_gives_one(jet: Jet) -> None:
    transform = {"src": "a.>", "dest": "again.>"}
    everything = {"src": ">", "dest": ">"}
    listener = await jet.create_stream("L", subjects=["again.>"])
    stream = await jet.create_stream("S", subjects=["a.>"], subject_transform=transform, republish=everything)
    republish = stream.config.republish
    assert republish is not None
    assert (republish.src, republish.dest) == ("again.>", "again.>")
    await jet.publish("a.x")
    (message,) = await _heard(listener, 1)
    assert (message.subject, message.headers["Nats-Subject"]) == ("again.x", "again.x")
    await refused(10052, jet.create_stream("T", subjects=["t"], subject_transform=transform, republish=everything))


@case
async def a_destination_may_be_empty(jet: Jet) -> None:
    stream, listener = await _pair(jet, {"src": ">", "dest": ""})
    await jet.publish("a.x")
    await jet.publish("again.end")
    assert [message.subject for message in await _heard(listener, 1)] == ["again.end"]
    assert stream.config.republish is not None
