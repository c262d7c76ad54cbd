"""Subject transforms on ingest (ADR-30): the result of each mapping function, and how a renamed message counts."""

from __future__ import annotations

from pelton.api import MaxMessagesPerSubjectError, WrongLastSequenceError
from pelton.connect import Jet
from tests.conformance.cases.eventually import all_of
from tests.conformance.cases.table import case, only, refused
from tests.kit.mappings import FAITHFUL, MAPPINGS, REFUSALS


async def _stored_as(jet: Jet, number: int, src: str, dest: str, subject: str) -> str:
    # A unique name: streams that nats-server deletes may return when the name is reused at once.
    stream = await jet.create_stream(f"S{number}", subjects=["a.>"], subject_transform={"src": src, "dest": dest})
    ack = await jet.publish(subject)
    stored = await stream.get_message(ack.seq)
    await stream.delete()
    return stored.subject


@case
async def each_function_makes_what_the_server_makes(jet: Jet) -> None:
    for number, (src, dest, published, stored) in enumerate(MAPPINGS):
        assert (src, dest, await _stored_as(jet, number, src, dest, published)) == (src, dest, stored)


@only("engine", "a NATS server stores them under empty tokens, wildcards and torn characters")
async def what_is_stored_is_under_a_subject(jet: Jet) -> None:
    for number, (src, dest, published, stored) in enumerate(FAITHFUL):
        assert (src, dest, await _stored_as(jet, number, src, dest, published)) == (src, dest, stored)


@case
async def random_is_below_its_bound(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["a"], subject_transform={"src": "a", "dest": "b.{{random(3)}}"})
    await jet.publish_batch([("a", b"")] * 100)
    assert set((await stream.info(subjects_filter=">")).state.subjects) == {"b.0", "b.1", "b.2"}


@case
async def wrong_destinations_are_refused(jet: Jet) -> None:
    for src, dest, text in REFUSALS:
        asked = jet.create_stream("S", subjects=["a.>"], subject_transform={"src": src, "dest": dest})
        assert (await refused(10156, asked)).description == f"stream transform: {text}"


@case
async def wrong_sources_are_refused(jet: Jet) -> None:
    for src in ("a b", "a..b", "a.>.b"):
        asked = jet.create_stream("S", subjects=["a.>"], subject_transform={"src": src, "dest": "c"})
        assert (await refused(10155, asked)).description == f"stream transform source: invalid subject {src}"


@case
async def the_transform_is_reported(jet: Jet) -> None:
    for name, src in (("S", "a.*"), ("T", "")):
        dest = "b.$1" if src else ">"
        stream = await jet.create_stream(name, subjects=["a.*"], subject_transform={"src": src, "dest": dest})
        transform = stream.config.subject_transform
        assert transform is not None
        assert (transform.src, transform.dest) == (src, dest)
        await stream.delete()


@case
async def renamed_messages_are_counted_found_and_consumed_under_the_new_name(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["a.*"], subject_transform={"src": "a.*", "dest": "b.$1"})
    await jet.publish_batch([("a.x", b"1"), ("a.y", b"2"), ("a.x", b"3", {"Colour": "green"})])
    assert (await stream.info(subjects_filter=">")).state.subjects == {"b.x": 2, "b.y": 1}
    assert (await stream.get_last_message("b.x")).data == b"3"
    consumer = await stream.create_consumer(filter_subject="b.x")
    assert [(m.subject, m.data) for m in await all_of(consumer, 2)] == [("b.x", b"1"), ("b.x", b"3")]
    assert await stream.purge(filter="b.x") == 2


@case
async def conditions_ask_about_the_new_name(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["a.*"], subject_transform={"src": "a.*", "dest": "b.all"})
    await jet.publish("a.x", expected_last_subject_seq=0)
    error = await refused(10071, jet.publish("a.y", expected_last_subject_seq=0))
    assert isinstance(error, WrongLastSequenceError)
    assert (await jet.publish("a.y", expected_last_subject_seq=1)).seq == 2


@case
async def limits_per_subject_count_the_new_name(jet: Jet) -> None:
    settings = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
    transform = {"src": "a.*", "dest": "b.all"}
    stream = await jet.create_stream("S", subjects=["a.*"], subject_transform=transform, **settings)
    await jet.publish("a.x")
    assert isinstance(await refused(10077, jet.publish("a.y")), MaxMessagesPerSubjectError)
    await stream.delete()
    stream = await jet.create_stream("T", subjects=["a.*"], subject_transform=transform, max_msgs_per_subject=1)
    await jet.publish_batch([("a.x", b"1"), ("a.y", b"2")])
    assert (await stream.info(subjects_filter=">")).state.subjects == {"b.all": 1}


@case
async def message_ids_do_not_know_names(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["a.*"], subject_transform={"src": "a.*", "dest": "b.$1"})
    first = await jet.publish("a.x", msg_id="1")
    again = await jet.publish("a.y", msg_id="1")
    assert (again.seq, again.duplicate) == (first.seq, True)


@case
async def bytes_are_counted_under_the_new_name(jet: Jet) -> None:
    transform = {"src": "a.*", "dest": "longer.$1"}
    stream = await jet.create_stream("S", subjects=["a.*"], subject_transform=transform)
    await jet.publish("a.x", b"12345")
    assert (await stream.info()).state.bytes == 22 + len("longer.x") + 5 + 8


@case
async def a_changed_transform_holds_from_then_on(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["a.*"])
    await jet.publish("a.x")
    for dest in ("b.$1", "c.$1"):
        await jet.update_stream("S", subject_transform={"src": "a.*", "dest": dest})
        await jet.publish("a.x")
    await jet.update_stream("S", subject_transform=None)
    await jet.publish("a.x")
    assert [(await stream.get_message(seq)).subject for seq in range(1, 5)] == ["a.x", "b.x", "c.x", "a.x"]


@case
async def another_streams_subject_is_no_obstacle(jet: Jet) -> None:
    other = await jet.create_stream("T", subjects=["b.*"])
    stream = await jet.create_stream("S", subjects=["a.*"], subject_transform={"src": "a.*", "dest": "b.$1"})
    assert (await jet.publish("a.x")).stream == "S"
    assert (await stream.get_message(1)).subject == "b.x"
    assert (await other.info()).state.messages == 0
