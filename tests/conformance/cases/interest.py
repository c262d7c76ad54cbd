"""Interest retention: messages are kept while some consumer wants them."""

from __future__ import annotations

from typing import Any

from pelton.api import StreamState
from pelton.connect import Jet
from pelton.jet import Consumer, Stream
from tests.conformance.cases.eventually import all_of, eventually, pending, taken
from tests.conformance.cases.table import case, lagging, only, refused

_LATE = "embedded, an ack names its delivery and is refused when that one was given up; NATS lets it settle the message"
_LEFT = "embedded, nothing is left that no consumer wants; NATS looks only at what its consumers have passed"


async def _stream(jet: Jet, **config: Any) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"], **{"retention": "interest", **config})


async def _state(stream: Stream) -> StreamState:
    return (await stream.info(deleted_details=True)).state


async def _holds(stream: Stream, sequences: list[int]) -> None:
    """Assert what the stream holds, once the server has updated it."""

    async def there() -> list[int]:
        state = await _state(stream)
        gone = set(state.deleted)
        return [seq for seq in range(state.first_seq, state.last_seq + 1) if seq not in gone]

    await eventually(there, sequences)


async def _exhaust(consumer: Consumer) -> None:
    """Take one message as often as allowed (once)."""
    (message,) = await consumer.fetch(1, timeout=60)
    assert await consumer.fetch(1, timeout=0.6) == []
    assert (await consumer.info()).num_ack_pending == 0
    del message


@case
async def without_consumers_only_the_sequence_moves(jet: Jet) -> None:
    stream = await _stream(jet)
    assert [(await jet.publish("s.a")).seq for _ in range(2)] == [1, 2]
    state = await _state(stream)
    assert (state.messages, state.bytes, state.first_seq, state.last_seq) == (0, 0, 3, 2)
    await stream.create_consumer(durable_name="c")
    assert (await jet.publish("s.a")).seq == 3
    await _holds(stream, [3])


@case
async def what_no_filter_matches_is_not_kept(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="a", filter_subject="s.a")
    await stream.create_consumer(durable_name="b", filter_subjects=["s.b", "s.c.>"])
    acks = await jet.publish_batch([(f"s.{name}", b"") for name in ("a", "b", "c", "c.d", "d")])
    assert [ack.seq for ack in acks] == [1, 2, 3, 4, 5]
    await _holds(stream, [1, 2, 4])
    assert (await (await stream.consumer("b")).info()).num_pending == 2


@case
async def what_is_not_kept_is_a_duplicate_all_the_same(jet: Jet) -> None:
    await _stream(jet)
    assert not (await jet.publish("s.a", msg_id="1")).duplicate
    again = await jet.publish("s.a", msg_id="1")
    assert (again.seq, again.duplicate) == (1, True)


@case
async def what_is_not_kept_counts_as_the_last(jet: Jet) -> None:
    await _stream(jet)
    await jet.publish("s.a", msg_id="1", expected_last_seq=0)
    await refused(10071, jet.publish("s.a", expected_last_seq=0))
    await jet.publish("s.a", expected_last_msg_id="1")
    await jet.publish("s.a", expected_last_subject_seq=0)


@case
async def a_full_stream_takes_what_it_does_not_keep(jet: Jet) -> None:
    stream = await _stream(jet, discard="new", max_msgs=1)
    await stream.create_consumer(durable_name="c", filter_subject="s.a")
    await jet.publish("s.a")
    await refused(10077, jet.publish("s.a"))
    assert (await jet.publish("s.b")).seq == 2
    await _holds(stream, [1])


@case
async def what_is_too_large_is_refused_even_so(jet: Jet) -> None:
    await _stream(jet, max_msg_size=3)
    await refused(10054, jet.publish("s.a", b"1234"))


@case
async def a_message_goes_when_all_have_acked_it(jet: Jet) -> None:
    stream = await _stream(jet)
    one = await stream.create_consumer(durable_name="one")
    two = await stream.create_consumer(durable_name="two")
    await jet.publish_batch([("s.a", b"")] * 3)
    first = await taken(one, 3)
    await one.ack(first)
    await _holds(stream, [1, 2, 3])
    second = await taken(two, 3)
    await second[1].ack()
    await _holds(stream, [1, 3])
    await second[0].term()
    await second[2].ack()
    await _holds(stream, [])


@case
async def nobody_waits_for_those_whose_filters_do_not_match(jet: Jet) -> None:
    stream = await _stream(jet)
    consumers = {name: await stream.create_consumer(durable_name=name, filter_subject=f"s.{name}") for name in "ab"}
    every = await stream.create_consumer(durable_name="every")
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.c", b"")])
    await every.ack(await taken(every, 3))
    await _holds(stream, [1, 2])
    await consumers["b"].ack(await consumers["b"].fetch(1))
    await _holds(stream, [1])
    await consumers["a"].ack(await consumers["a"].fetch(1))
    await _holds(stream, [])


@case
async def given_back_is_still_wanted(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish("s.a")
    (message,) = await consumer.fetch(1)
    await message.nak()
    await _holds(stream, [1])
    (message,) = await consumer.fetch(1, timeout=60)
    await message.ack()
    await _holds(stream, [])


@case
async def one_ack_for_all(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(durable_name="c", ack_policy="all")
    await jet.publish_batch([("s.a", b"")] * 4)
    messages = await taken(consumer, 4)
    await messages[1].ack()
    await _holds(stream, [3, 4])
    await messages[3].term()
    await _holds(stream, [])


@case
async def without_acks_delivered_is_settled(jet: Jet) -> None:
    stream = await _stream(jet)
    free = await stream.create_consumer(durable_name="free", ack_policy="none")
    await jet.publish_batch([("s.a", b"")] * 3)
    assert len(await free.fetch(1)) == 1
    await _holds(stream, [2, 3])
    strict = await stream.create_consumer(durable_name="strict")
    assert len(await free.fetch(2)) == 2
    await _holds(stream, [2, 3])
    await strict.ack(await strict.fetch(1))
    await _holds(stream, [3])


@lagging("a new consumer may be led where what was published has not arrived")
async def who_comes_later_does_not_keep_what_it_passes_by(jet: Jet) -> None:
    stream = await _stream(jet)
    early = await stream.create_consumer(durable_name="early")
    await jet.publish_batch([("s.a", b"")] * 3)
    await stream.create_consumer(durable_name="new", deliver_policy="new")
    await stream.create_consumer(durable_name="second", deliver_policy="by_start_sequence", opt_start_seq=2)
    await early.ack(await taken(early, 3))
    await _holds(stream, [2, 3])


@case
async def a_deleted_consumer_takes_what_only_it_wanted(jet: Jet) -> None:
    stream = await _stream(jet)
    every = await stream.create_consumer(durable_name="every")
    other = await stream.create_consumer(durable_name="b", filter_subject="s.b")
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b""), ("s.b", b"")])
    await every.fetch(1)
    await every.delete()
    await _holds(stream, [2, 4])
    await other.delete()
    await _holds(stream, [])


@case
async def an_unused_consumer_takes_what_only_it_wanted(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(inactive_threshold=0.2)
    await jet.publish("s.a")
    await _holds(stream, [])
    assert (await jet.publish("s.a")).seq == 2
    await _holds(stream, [])


@case
async def other_filters_want_other_messages(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b"")])
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.b")
    await _holds(stream, [2])
    assert [message.metadata.stream_seq for message in await consumer.fetch(3, no_wait=True)] == [2]


@case
async def other_filters_give_up_what_was_delivered(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b"")])
    messages = await taken(consumer, 3)
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.b")
    await _holds(stream, [2])
    await messages[1].ack()
    await _holds(stream, [])


@case
async def exhausted_messages_stay_to_be_looked_at(jet: Jet) -> None:
    stream = await _stream(jet)
    poor = await stream.create_consumer(durable_name="poor", max_deliver=1, ack_wait=0.2)
    other = await stream.create_consumer(durable_name="other")
    await jet.publish("s.a")
    await _exhaust(poor)
    await other.ack(await other.fetch(1))
    await jet.publish("s.b")
    await other.ack(await other.fetch(1))
    await poor.ack(await poor.fetch(1))
    await _holds(stream, [1])
    await other.delete()
    await _holds(stream, [1])
    await poor.delete()
    await _holds(stream, [])


@only("server", _LATE)
async def a_late_ack_removes_an_exhausted_message(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(durable_name="c", max_deliver=1, ack_wait=0.2)
    await jet.publish("s.a")
    (message,) = await consumer.fetch(1)
    assert await consumer.fetch(1, timeout=0.6) == []
    await message.ack()
    await _holds(stream, [])


@case
async def limits_remove_what_is_wanted(jet: Jet) -> None:
    stream = await _stream(jet, max_msgs=2)
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.a", b"")] * 4)
    await _holds(stream, [3, 4])
    assert [message.metadata.stream_seq for message in await all_of(consumer, 2)] == [3, 4]


@case
async def a_purge_removes_what_is_wanted(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.a", b"")] * 3)
    assert await stream.purge(keep=1) == 2
    await pending(consumer, 1)
    await consumer.ack(await consumer.fetch(1))
    await _holds(stream, [])


@case
async def any_number_of_consumers_may_want_the_same(jet: Jet) -> None:
    stream = await _stream(jet)
    for name in ("a", "b"):
        await stream.create_consumer(durable_name=name, filter_subject="s.a")
    for policy in ("none", "all"):
        await stream.create_consumer(durable_name=policy, ack_policy=policy, deliver_policy="new")


@case
async def limits_become_interest(jet: Jet) -> None:
    stream = await _stream(jet, retention="limits")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.a", b"")] * 3)
    await consumer.ack(await consumer.fetch(1))
    await jet.update_stream("S", retention="interest")
    await _holds(stream, [2, 3])
    await consumer.ack(await consumer.fetch(1))
    await _holds(stream, [3])


@case
async def limits_become_interest_without_consumers(jet: Jet) -> None:
    stream = await _stream(jet, retention="limits")
    await jet.publish_batch([("s.a", b"")] * 3)
    await jet.update_stream("S", retention="interest")
    await _holds(stream, [])


@only("engine", _LEFT)
async def limits_become_interest_and_nothing_is_left(jet: Jet) -> None:
    stream = await _stream(jet, retention="limits")
    await stream.create_consumer(durable_name="c", filter_subject="s.b")
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.c", b"")])
    await jet.update_stream("S", retention="interest")
    await _holds(stream, [2])


@only("server", _LEFT)
async def limits_become_interest_and_what_no_filter_matches_is_left(jet: Jet) -> None:
    stream = await _stream(jet, retention="limits")
    await stream.create_consumer(durable_name="c", filter_subject="s.b")
    await jet.publish_batch([("s.b", b""), ("s.a", b"")])
    await jet.update_stream("S", retention="interest")
    consumer = await stream.consumer("c")
    await consumer.ack(await consumer.fetch(1))
    await _holds(stream, [2])


@case
async def interest_becomes_limits(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish("s.a")
    await jet.update_stream("S", retention="limits")
    await jet.publish("s.a")
    await _holds(stream, [2])


@case
async def no_change_to_or_from_a_work_queue(jet: Jet) -> None:
    for before, after in (("interest", "workqueue"), ("workqueue", "interest")):
        await _stream(jet, retention=before)
        await refused(10052, jet.update_stream("S", retention=after))
        await jet.delete_stream("S")
