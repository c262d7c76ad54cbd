"""Purge in every form."""

from __future__ import annotations

from typing import Any

from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import pending, taken
from tests.conformance.cases.table import case, lagging, only, refused

_TOO_FEW = "where a filter and a sequence meet, nats-server 2.15 removes too few messages now and then"


async def _ten(jet: Jet, name: str = "S") -> Stream:
    """A stream of ten messages, of ``s.0`` and ``s.1`` in turn.

    After a delete it uses another name: nats-server may find a purged stream's messages again under the same one.
    """
    stream = await jet.create_stream(name, subjects=["s.*"])
    await jet.publish_batch([(f"s.{n % 2}", b"%d" % n) for n in range(10)])
    return stream


@case
async def the_filter_of_everything_is_no_filter(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"")] * 3)
    assert await stream.purge(filter=">", seq=20) == 3
    assert (await jet.publish("s")).seq == 20


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


@only("engine", _TOO_FEW)
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
    await consumer.ack(await taken(consumer, 2))
    await stream.purge()
    await pending(consumer, 0, without_ack=0)
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


@case
async def by_wildcards(jet: Jet) -> None:
    forms: tuple[tuple[dict[str, Any], int, int], ...] = (
        ({"filter": "s.*"}, 10, 11),
        ({"filter": ">"}, 10, 11),
        ({"filter": "s.*", "keep": 2}, 8, 9),
    )
    for number, (purge, purged, first) in enumerate(forms):
        stream = await _ten(jet, f"S{number}")
        assert await stream.purge(**purge) == purged, purge
        state = (await stream.info()).state
        assert (state.first_seq, state.last_seq) == (first, max(10, first - 1)), purge
        await stream.delete()


@case
async def bounds(jet: Jet) -> None:
    forms: tuple[tuple[dict[str, Any], int, int], ...] = (
        ({"seq": 1}, 0, 1),
        ({"seq": 10}, 9, 10),
        ({"seq": 11}, 10, 11),
        ({"seq": 12}, 10, 12),
        ({"keep": 10}, 0, 1),
        ({"keep": 11}, 0, 1),
        ({"filter": "s.0", "keep": 10}, 0, 1),
        ({"filter": "s..0"}, 0, 1),
    )
    for number, (purge, purged, first) in enumerate(forms):
        stream = await _ten(jet, f"S{number}")
        assert await stream.purge(**purge) == purged, purge
        state = (await stream.info()).state
        assert (state.messages, state.first_seq) == (10 - purged, first), purge
        await stream.delete()


@case
async def an_emptied_stream_again(jet: Jet) -> None:
    stream = await _ten(jet)
    await stream.purge()
    later = [({"seq": 5}, 11), ({"seq": 12}, 12), ({"seq": 20}, 20), ({"keep": 3}, 20), ({"filter": ">"}, 20)]
    for purge, first in later:
        assert await stream.purge(**purge) == 0  # type: ignore[arg-type]  # its arguments
        assert (await stream.info()).state.first_seq == first, purge
    assert (await jet.publish("s.0")).seq == 20


@case
async def numbers_below_none_are_refused(jet: Jet) -> None:
    stream = await _ten(jet)
    await refused(10025, stream.purge(seq=-1))
    await refused(10025, stream.purge(keep=-1))
    await refused(10003, stream.purge(filter="s.0", seq=4, keep=1))


@only("engine", _TOO_FEW)
async def by_wildcards_below_a_sequence(jet: Jet) -> None:
    forms: tuple[tuple[dict[str, Any], int, int], ...] = (
        ({"filter": "s.>", "seq": 5}, 4, 5),
        ({"filter": "s.*", "seq": 100}, 10, 11),
        ({"filter": ">", "seq": 11}, 10, 11),
        ({"filter": ">", "seq": 20}, 10, 20),
        ({"filter": "s.0", "seq": 100}, 5, 2),
    )
    for number, (purge, purged, first) in enumerate(forms):
        stream = await _ten(jet, f"S{number}")
        assert await stream.purge(**purge) == purged, purge
        assert (await stream.info()).state.first_seq == first, purge
        await stream.delete()


@lagging("a new consumer may be led where what was published has not arrived")
async def a_consumer_of_last_messages_is_not_taken_past_them(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"])
    await jet.publish_batch([(f"s.{name}", b"") for name in "aabb"])
    consumer = await stream.create_consumer(durable_name="c", deliver_policy="last_per_subject", filter_subject=">")
    await stream.purge(filter="t.>")
    info = await consumer.info()
    assert (info.delivered.stream_seq, info.num_pending) == (1, 2)
