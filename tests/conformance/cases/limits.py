"""Limits of a stream, with discard old or new."""

from __future__ import annotations

from pelton.api import MaxBytesError, MaxMessagesError, MaxMessagesPerSubjectError, MessageTooLargeError
from pelton.connect import Jet
from tests.conformance.cases.table import case, fails, lagging, refused

_SIZE = 22 + 1 + 10 + 8  # of a message of ten bytes on the subject "s"


@case
async def the_oldest_go(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_msgs=3)
    await jet.publish_batch([("s", b"%d" % n) for n in range(10)])
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (3, 8, 10)
    assert (await stream.get_message(8)).data == b"7"


@case
async def the_oldest_bytes_go(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_bytes=3 * _SIZE)
    await jet.publish_batch([("s", b"x" * 10)] * 5)
    state = (await stream.info()).state
    assert (state.messages, state.bytes, state.first_seq) == (3, 3 * _SIZE, 3)


@case
async def the_oldest_of_the_subject_go(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], max_msgs_per_subject=2)
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b""), ("s.a", b""), ("s.a", b"")])
    info = await stream.info(subjects_filter=">", deleted_details=True)
    assert info.state.subjects == {"s.a": 2, "s.b": 1}
    assert (info.state.first_seq, info.state.deleted) == (2, [3])


@case
async def a_full_stream_that_discards_new(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_msgs=2, discard="new")
    await jet.publish_batch([("s", b"")] * 2)
    assert isinstance(await refused(10077, jet.publish("s")), MaxMessagesError)
    await stream.delete_message(1)
    assert (await jet.publish("s")).seq == 3


@case
async def full_bytes_that_discard_new(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], max_bytes=2 * _SIZE, discard="new")
    await jet.publish("s", b"x" * 10)
    assert isinstance(await refused(10077, jet.publish("s", b"x" * 11)), MaxBytesError)
    await jet.publish("s", b"x" * 10)
    await refused(10077, jet.publish("s", b""))


@case
async def a_full_subject_that_discards_new(jet: Jet) -> None:
    settings = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
    stream = await jet.create_stream("S", subjects=["s.*"], **settings)
    await jet.publish("s.a")
    await jet.publish("s.b")
    assert isinstance(await refused(10077, jet.publish("s.a")), MaxMessagesPerSubjectError)
    await stream.delete_message(1)
    await jet.publish("s.a")


@case
async def a_subject_replaces_its_own_in_a_full_stream(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], discard="new", max_msgs=2, max_msgs_per_subject=1)
    await jet.publish_batch([("s.a", b"1"), ("s.b", b"2")])
    await jet.publish("s.a", b"3")
    assert (await stream.get_last_message("s.a")).data == b"3"
    await refused(10077, jet.publish("s.c"))


@case
async def a_message_too_large(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_msg_size=10)
    await jet.publish("s", b"x" * 10)
    await fails(MessageTooLargeError, jet.publish("s", b"x" * 11))
    error = await refused(10054, jet.publish("s", b"", headers={"Name": "value"}))
    assert error.code == 400
    assert (await stream.info()).state.messages == 1


@lagging("a new consumer may be led where what was published has not arrived")
async def messages_past_their_age_are_gone(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_age=0.15, duplicate_window=0.1)
    await jet.publish_batch([("s", b"")] * 3)
    consumer = await stream.create_consumer(deliver_policy="new")
    assert await consumer.fetch(1, timeout=0.6) == []
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (0, 4, 3)


@case
async def no_more_consumers_than_allowed(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], max_consumers=1)
    await stream.create_consumer(durable_name="a")
    await stream.create_consumer(durable_name="a")
    await refused(10026, stream.create_consumer(durable_name="b"))


@case
async def bytes_in_memory_count_less(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], storage="memory", max_bytes=3 * (16 + 1 + 10))
    for _ in range(5):
        await jet.publish("s", b"x" * 10)
    state = (await stream.info()).state
    assert (state.messages, state.bytes, state.first_seq) == (3, 81, 3)
    await jet.publish("s", b"", headers={"A": "b"})
    assert (await stream.info()).state.bytes == 27 + 16 + 1 + len("NATS/1.0\r\nA: b\r\n\r\n")
