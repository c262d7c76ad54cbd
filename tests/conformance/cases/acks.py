"""Acks, and what they settle."""

from __future__ import annotations

from typing import Final

from pelton.api import AckKind, AckOp, AckRejectedError, PullRequest
from pelton.connect import Jet
from pelton.jet import Consumer
from tests.conformance.cases.eventually import eventually, left, taken
from tests.conformance.cases.table import case, fails, lagging, only

_KINDS: Final[tuple[AckKind, ...]] = ("ack", "term", "nak", "progress")
_LATE = "embedded, an ack names its delivery and is refused when that was replaced or settled; NATS confirms it"


async def _consumer(jet: Jet, messages: int, retention: str = "limits", **config: object) -> Consumer:
    stream = await jet.create_stream("S", subjects=["s.>"], retention=retention)
    await jet.publish_batch([("s.a", b"%d" % n) for n in range(messages)])
    return await stream.create_consumer(durable_name="c", **config)


@case
async def an_ack_moves_the_floor(jet: Jet) -> None:
    consumer = await _consumer(jet, 3)
    one, two, three = await taken(consumer, 3)
    await two.ack()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq, info.ack_floor.consumer_seq) == (2, 0, 0)
    await one.ack()
    assert (await consumer.info()).ack_floor.stream_seq == 2
    await three.ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq, info.ack_floor.consumer_seq) == (0, 3, 3)


@case
async def many_at_once(jet: Jet) -> None:
    consumer = await _consumer(jet, 50)
    await consumer.ack(await taken(consumer, 50))
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq, info.num_pending) == (0, 50, 0)


@case
async def an_acked_message_stays_in_a_stream_with_limits(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    await consumer.ack(await consumer.fetch(1))
    assert (await (await jet.stream("S")).info()).state.messages == 1


@case
async def an_acked_message_leaves_a_work_queue(jet: Jet) -> None:
    consumer = await _consumer(jet, 3, retention="workqueue")
    _, two, _ = await taken(consumer, 3)
    await two.ack()
    stream = await jet.stream("S")
    await left(stream, 2)
    state = (await stream.info(deleted_details=True)).state
    assert (state.first_seq, state.deleted) == (1, [2])


@case
async def a_work_queue_ends_empty(jet: Jet) -> None:
    consumer = await _consumer(jet, 3, retention="workqueue")
    await consumer.ack(await taken(consumer, 3))
    stream = await jet.stream("S")
    await left(stream, 0)
    state = (await stream.info()).state
    assert (state.bytes, state.first_seq, state.last_seq) == (0, 4, 3)


@case
async def a_terminated_message_does_not_come_back(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, ack_wait=0.2)
    (message,) = await consumer.fetch(1)
    await message.term(reason="broken")
    assert await consumer.fetch(1, timeout=0.5) == []
    assert (await consumer.info()).num_ack_pending == 0


@case
async def a_terminated_message_leaves_a_work_queue(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, retention="workqueue")
    (message,) = await consumer.fetch(1)
    await message.term()
    await left(await jet.stream("S"), 0)


@case
async def ack_all_settles_what_went_before(jet: Jet) -> None:
    consumer = await _consumer(jet, 5, ack_policy="all")
    messages = await taken(consumer, 5)
    await messages[2].ack()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (2, 3)


@case
async def without_acks_nothing_is_pending(jet: Jet) -> None:
    consumer = await _consumer(jet, 3, ack_policy="none")
    messages = await taken(consumer, 3)
    assert len(messages) == 3

    async def passed() -> tuple[int, int]:
        info = await consumer.info()
        assert (info.num_ack_pending, info.num_pending) == (0, 0)
        return info.delivered.stream_seq, info.ack_floor.stream_seq

    await eventually(passed, (3, 3))
    await messages[0].ack()


@case
async def no_more_unacknowledged_than_allowed(jet: Jet) -> None:
    consumer = await _consumer(jet, 5, max_ack_pending=2)
    first = await consumer.fetch(5, timeout=1)
    assert len(first) == 2
    assert await consumer.fetch(5, no_wait=True) == []
    await first[0].ack()
    assert [message.data for message in await consumer.fetch(5, timeout=1)] == [b"2"]


@case
async def an_ack_lets_a_waiting_pull_go_on(jet: Jet) -> None:
    consumer = await _consumer(jet, 3, max_ack_pending=1)
    seen = []
    for _ in range(3):
        (message,) = await consumer.fetch(1, timeout=60)
        seen.append(message.data)
        await message.ack()
    assert seen == [b"0", b"1", b"2"]


@lagging("the new consumer may be led where the acked message is not removed yet")
async def acked_work_is_not_delivered_to_a_new_consumer(jet: Jet) -> None:
    consumer = await _consumer(jet, 2, retention="workqueue")
    await consumer.ack(await consumer.fetch(1))
    await left(await jet.stream("S"), 1)
    await consumer.delete()
    again = await (await jet.stream("S")).create_consumer(durable_name="d")
    assert [message.data for message in await again.fetch(5, timeout=2)] == [b"1"]


@case
async def another_connection_acks_what_this_one_was_given(jet: Jet) -> None:
    """A delivery is identified by numbers, so any process that knows them can ack it."""
    consumer = await _consumer(jet, 4, retention="workqueue", max_deliver=5)
    ops = [
        AckOp(kind=kind, seq=message.metadata.stream_seq, consumer_seq=message.metadata.consumer_seq)
        for kind, message in zip(_KINDS, await consumer.fetch(4), strict=True)
    ]
    other = jet.backend.clone()
    try:
        assert await other.ack("S", "c", ops) == [None] * 4
        again = await consumer.fetch(4, timeout=20)
        assert [(m.metadata.stream_seq, m.metadata.num_delivered) for m in again] == [(3, 2)]
        info = await consumer.info()
        assert (info.num_ack_pending, info.num_redelivered) == (2, 1)
        await left(await jet.stream("S"), 2)
    finally:
        await other.close()


@case
async def an_ack_holds_for_whoever_opens_later(jet: Jet) -> None:
    consumer = await _consumer(jet, 3, ack_wait=1)
    first, *_ = await consumer.fetch(2)
    await first.ack()
    other = jet.backend.clone()
    try:
        request = PullRequest(batch=3, expires_ns=20 * 10**9)
        found = {d.seq: d for d in await other.pull("S", "c", request)}
        while 2 not in found:
            found.update({d.seq: d for d in await other.pull("S", "c", request)})
        assert (1 in found, found[2].num_delivered) == (False, 2)
    finally:
        await other.close()


@case
async def an_ack_after_the_stream_lost_the_message(jet: Jet) -> None:
    consumer = await _consumer(jet, 2)
    one, two = await taken(consumer, 2)
    await (await jet.stream("S")).delete_message(2)
    await one.ack()
    del two
    assert (await consumer.info()).ack_floor.stream_seq >= 1


@only("engine", _LATE)
async def a_second_ack_is_refused(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    (message,) = await consumer.fetch(1)
    await message.ack()
    error = await fails(AckRejectedError, message.ack())
    assert (error.stream, error.consumer, error.seq) == ("S", "c", 1)


@only("server", _LATE)
async def a_second_ack_is_confirmed(jet: Jet) -> None:
    consumer = await _consumer(jet, 1)
    (message,) = await consumer.fetch(1)
    await message.ack()
    await message.ack()
    assert (await consumer.info()).ack_floor.stream_seq == 1


@only("engine", _LATE)
async def the_ack_of_a_replaced_delivery_is_refused(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, ack_wait=0.2)
    (late,) = await consumer.fetch(1)
    (again,) = await consumer.fetch(1, timeout=60)
    await fails(AckRejectedError, late.ack())
    await again.ack()


@only("server", _LATE)
async def the_ack_of_a_replaced_delivery_settles_the_message(jet: Jet) -> None:
    consumer = await _consumer(jet, 1, ack_wait=0.2)
    (late,) = await consumer.fetch(1)
    await consumer.fetch(1, timeout=60)
    await late.ack()
    assert (await consumer.info()).num_ack_pending == 0
