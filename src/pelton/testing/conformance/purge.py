"""Purge in every form."""

from __future__ import annotations

from pelton.connect import Jet
from pelton.jet import Stream
from pelton.testing.conformance.table import case, refused


async def _ten(jet: Jet) -> Stream:
    """A stream of ten messages, of ``s.0`` and ``s.1`` in turn."""
    stream = await jet.create_stream("S", subjects=["s.*"])
    await jet.publish_batch([(f"s.{n % 2}", b"%d" % n) for n in range(10)])
    return stream


@case
async def everything(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge() == 10
    state = (await stream.info()).state
    assert (state.messages, state.bytes, state.first_seq, state.last_seq, state.num_subjects) == (0, 0, 11, 10, 0)
    assert (await jet.publish("s.0")).seq == 11


@case
async def an_empty_stream(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    assert await stream.purge() == 0


@case
async def of_a_subject(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(filter="s.0") == 5
    info = await stream.info(subjects_filter=">")
    assert (info.state.subjects, info.state.first_seq, info.state.num_deleted) == ({"s.1": 5}, 2, 4)


@case
async def of_a_subject_that_is_not_there(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(filter="s.9") == 0
    assert await stream.purge(filter="t.>") == 0


@case
async def below_a_sequence(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(seq=4) == 3
    state = (await stream.info()).state
    assert (state.messages, state.first_seq) == (7, 4)


@case
async def below_a_sequence_past_the_end(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(seq=100) == 10
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (0, 100, 99)
    assert (await jet.publish("s.0")).seq == 100


@case
async def all_but_the_newest(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(keep=3) == 7
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (3, 8, 10)
    assert await stream.purge(keep=3) == 0


@case
async def all_but_the_newest_of_a_subject(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(filter="s.1", keep=2) == 3
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.0": 5, "s.1": 2}


@case
async def of_a_subject_below_a_sequence(jet: Jet) -> None:
    stream = await _ten(jet)
    assert await stream.purge(filter="s.0", seq=6) == 3
    state = (await stream.info(deleted_details=True)).state
    assert (state.first_seq, state.deleted) == (2, [3, 5])


@case
async def a_sequence_and_a_number_to_keep_exclude_each_other(jet: Jet) -> None:
    stream = await _ten(jet)
    await refused(10003, stream.purge(seq=3, keep=1))


@case
async def consumers_go_on_after_it(jet: Jet) -> None:
    stream = await _ten(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.ack(await consumer.fetch(2))
    await stream.purge()
    info = await consumer.info()
    assert (info.num_pending, info.num_ack_pending) == (0, 0)
    await jet.publish("s.0", b"new")
    (message,) = await consumer.fetch(5, timeout=2)
    assert (message.data, message.metadata.stream_seq) == (b"new", 11)


@case
async def what_awaited_an_ack_is_not_delivered_again(jet: Jet) -> None:
    stream = await _ten(jet)
    consumer = await stream.create_consumer(durable_name="c", ack_wait=0.2)
    assert len(await consumer.fetch(3)) == 3
    await stream.purge()
    assert await consumer.fetch(3, timeout=0.5) == []
    assert (await consumer.info()).num_ack_pending == 0
