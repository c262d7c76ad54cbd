"""Message ids: publishing a duplicate within the window is harmless."""

from __future__ import annotations

from pelton.api import MessageTooLargeError, headers
from pelton.connect import Jet
from tests.conformance.cases.table import case, fails, lagging, only, refused


@case
async def a_known_id_is_answered_with_the_first(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", b"0")
    first = await jet.publish("s.a", b"1", msg_id="x")
    again = await jet.publish("s.b", b"2", msg_id="x")
    assert (first.seq, first.duplicate, again.seq, again.duplicate) == (2, False, 2, True)
    assert (await stream.info()).state.messages == 2


@case
async def ids_belong_to_a_stream(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.create_stream("T", subjects=["t"])
    assert not (await jet.publish("s", msg_id="x")).duplicate
    assert not (await jet.publish("t", msg_id="x")).duplicate


@case
async def an_id_outlives_its_message(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", msg_id="x")
    await stream.delete_message(1)
    assert (await jet.publish("s", msg_id="x")).duplicate


@case
async def an_id_outlives_a_purge(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", msg_id="x")
    await stream.purge()
    assert (await jet.publish("s", msg_id="x")).duplicate


@case
async def an_id_outlives_the_ack_of_its_message(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish("s", msg_id="x")
    await consumer.ack(await consumer.fetch(1))
    assert (await jet.publish("s", msg_id="x")).duplicate


@case
async def duplicates_within_one_batch(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    known = {"Nats-Msg-Id": "x"}
    acks = await jet.publish_batch([("s", b"1", known), ("s", b"2"), ("s", b"3", known)])
    assert [(ack.seq, ack.duplicate) for ack in acks] == [(1, False), (2, False), (1, True)]


@lagging("a new consumer may be led where what was published has not arrived")
async def an_id_is_forgotten_after_the_window(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], duplicate_window=0.1)
    await jet.publish("s", msg_id="x")
    # A pull with nothing to deliver serves as the event that ends after the window.
    consumer = await stream.create_consumer(deliver_policy="new")
    assert await consumer.fetch(1, timeout=0.4) == []
    assert not (await jet.publish("s", msg_id="x")).duplicate


@case
async def a_refused_message_leaves_no_id(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], max_msg_size=40)
    await fails(MessageTooLargeError, jet.publish("s", b"x" * 100, msg_id="x"))
    assert not (await jet.publish("s", b"", msg_id="x")).duplicate


@only("engine", "repeating a publish that was stored is harmless, whatever it expected; NATS refuses it with 10071")
async def a_duplicate_is_told_before_what_it_expects(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", msg_id="x", expected_last_seq=0)
    assert (await jet.publish("s", msg_id="x", expected_last_seq=0)).duplicate
    # What a server would have refused before it looked there is not looked at.
    later = {headers.SCHEDULE: "@every 1h"}
    assert (await jet.publish("s", msg_id="x", expected_last_seq=0, headers=later)).duplicate
    await refused(10188, jet.publish("s", msg_id="x", expected_last_seq=1, headers=later))
