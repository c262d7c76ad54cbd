"""What acks do, when a message is redelivered, and which acks come too late."""

import asyncio
from typing import Any

import pytest

import pelton
from pelton.api import AckOp, Outgoing, Settled
from pelton.jet import ack_of
from pelton.testing import ManualRuntime


@pytest.fixture
async def stream(jet: pelton.Jet) -> pelton.Stream:
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish_batch([("s.a", b"%d" % number) for number in range(1, 6)])
    return stream


async def taken(consumer: pelton.Consumer, batch: int = 10, **options: Any) -> list[int]:
    return [m.metadata.stream_seq for m in await consumer.fetch(batch, no_wait=True, **options)]


async def test_what_a_message_tells_of_itself(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("t")
    await jet.publish("t", b"hello", headers={"A": "b"})
    await jet.publish("t")
    consumer = await stream.create_consumer(durable_name="c")
    [message] = await consumer.fetch(1)
    assert (message.subject, message.data, dict(message.headers)) == ("t", b"hello", {"A": "b"})
    about = message.metadata
    assert (about.stream, about.consumer, about.stream_seq, about.consumer_seq) == ("t", "c", 1, 1)
    assert (about.num_delivered, about.num_pending, about.timestamp) == (1, 1, 1_700_000_000 * 10**9)
    assert "t/1" in repr(message)
    [other] = await consumer.fetch(1)
    assert (len(other.headers), other.metadata.token > about.token) == (0, True)


async def test_acked_is_done(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    messages = await consumer.fetch(5)
    await messages[0].ack()
    await messages[1].ack_sync()
    await consumer.ack(messages[2:])
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq, info.num_pending) == (0, 5, 0)
    runtime.clock.advance(100)
    assert await taken(consumer) == []
    assert (await stream.info()).state.messages == 5


async def test_an_ack_of_what_was_removed_counts_once(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    one, two, three = await consumer.fetch(3)
    await stream.purge(seq=4)
    assert (await consumer.info()).num_ack_pending == 0

    async def settle(message: pelton.Message) -> None:
        await consumer._backend.settle([Outgoing("s.b", b"done")], "s", "c", ack_of(message.delivered, "ack"))

    await settle(one)
    await two.ack()
    for message in (one, two):
        # Removed by limits: a plain ack is harmless, and does not refuse a holder that publishes with it.
        await message.ack()
        with pytest.raises(pelton.AckRejectedError, match=r"message was removed .* is not delivered again") as refused:
            await settle(message)
        assert "ack_wait" not in str(refused.value)
    runtime.clock.advance(9)
    await three.in_progress()
    runtime.clock.advance(9)
    await taken(consumer, 1)
    await settle(three)
    assert (await stream.info()).state.messages == 4


async def test_a_removed_message_is_forgotten_by_a_pull_after_its_ack_wait(
    stream: pelton.Stream, runtime: ManualRuntime
) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    one, two = await consumer.fetch(2)
    await stream.delete_message(1)
    await stream.delete_message(2)
    await consumer.info()
    runtime.clock.advance(11)
    done = [Outgoing("s.b", b"done")]
    # Late, but no other consumer could have got it in the meantime.
    await consumer._backend.settle(done, "s", "c", ack_of(one.delivered, "ack"))
    assert await taken(consumer, 1) == [3]
    with pytest.raises(pelton.AckRejectedError):
        await consumer._backend.settle(done, "s", "c", ack_of(two.delivered, "ack"))


async def test_a_second_ack_at_once_does_not_take_the_place_of_the_first(
    jet: pelton.Jet, stream: pelton.Stream
) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    [message] = await consumer.fetch(1)
    await stream.delete_message(1)
    await consumer.info()
    ack = ack_of(message.delivered, "ack")
    # All but the publish share a transaction: the first ack counts, the others find nothing left to settle.
    _, *answers = await asyncio.gather(
        jet.publish("s.c"),
        consumer._backend.settle([Outgoing("s.b", b"done")], "s", "c", ack),
        consumer._backend.settle([Outgoing("s.b", b"again")], "s", "c", ack),
        consumer._backend.ack("s", "c", [ack]),
        return_exceptions=True,
    )
    assert not isinstance(answers[0], BaseException)
    assert isinstance(answers[1], pelton.AckRejectedError)
    assert answers[2] == [None]
    endings = [Settled([Outgoing("s.b", b"late")], ack)] * 2
    late = await consumer._backend.settle_many(endings, "s", "c")
    assert [type(answer) for answer in late] == [pelton.AckRejectedError] * 2
    assert (await stream.info()).state.messages == 6


async def test_of_many_at_once_the_first_ack_of_a_removed_message_counts(stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    [message] = await consumer.fetch(1)
    await stream.delete_message(1)
    await consumer.info()
    ack = ack_of(message.delivered, "ack")
    endings = [Settled([Outgoing("s.b", b"done")], ack), Settled([Outgoing("s.b", b"again")], ack)]
    first, second = await consumer._backend.settle_many(endings, "s", "c")
    assert (first, type(second)) == (None, pelton.AckRejectedError)
    assert (await stream.get_message(6)).data == b"done"
    assert (await stream.info()).state.messages == 5


async def test_in_a_transaction_a_late_ack_of_a_removed_message_is_refused(
    jet: pelton.Jet, stream: pelton.Stream
) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    [message] = await consumer.fetch(1)
    await stream.delete_message(1)
    await consumer.info()

    async def finish() -> None:
        async with jet.transaction() as tx:
            await tx.publish("s.b", b"done")
            await tx.ack(message)

    await finish()
    with pytest.raises(pelton.AckRejectedError, match="the message was removed"):
        await finish()
    assert (await stream.info()).state.messages == 5


@pytest.mark.parametrize("looked", [True, False])
async def test_a_removed_message_that_is_given_back_may_be_acked_until_the_next_pull(
    stream: pelton.Stream, runtime: ManualRuntime, looked: bool
) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    one, two = await consumer.fetch(2)
    await stream.purge(seq=3)
    if looked:
        await consumer.info()
    await one.nak()
    await two.nak(delay=5)
    done = [Outgoing("s.b", b"done")]
    await consumer._backend.settle(done, "s", "c", ack_of(one.delivered, "ack"))
    assert await taken(consumer, 1) == [3]
    runtime.clock.advance(5)
    assert await taken(consumer, 1) == [4]
    with pytest.raises(pelton.AckRejectedError):
        await consumer._backend.settle(done, "s", "c", ack_of(two.delivered, "ack"))


async def test_not_acked_comes_again_after_the_ack_wait(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    await consumer.fetch(2)
    runtime.clock.advance(9.9)
    assert await taken(consumer, 1) == [3]
    runtime.clock.advance(0.1)
    again = await consumer.fetch(3, no_wait=True)
    assert [(m.metadata.stream_seq, m.metadata.num_delivered) for m in again] == [(1, 2), (2, 2), (4, 1)]
    assert (await consumer.info()).num_redelivered == 2


async def test_a_late_ack_counts_until_the_message_is_delivered_again(
    stream: pelton.Stream, runtime: ManualRuntime
) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    first, second = await consumer.fetch(2)
    runtime.clock.advance(11)
    await first.ack()
    [again] = await consumer.fetch(1)
    assert again.metadata.stream_seq == 2
    for stale in (second.ack(), second.nak(), second.in_progress(), second.term()):
        with pytest.raises(pelton.AckRejectedError, match="been replaced; raise ack_wait, or call") as refused:
            await stale
        assert (refused.value.stream, refused.value.consumer, refused.value.seq) == ("s", "c", 2)
    await again.ack()


async def test_a_second_ack_is_told_so(stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c")
    first, second, third = await consumer.fetch(3)
    await first.ack()
    with pytest.raises(pelton.AckRejectedError, match="settled already") as refused:
        await first.ack()
    assert "again" not in str(refused.value)
    with pytest.raises(pelton.AckRejectedError):
        await consumer.ack([second, first, third])
    assert (await consumer.info()).num_ack_pending == 0


async def test_an_ack_of_no_message_changes_no_state(stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c")
    [message] = await consumer.fetch(1)
    # The row of the consumer itself has this sequence.
    ack = AckOp(seq=2**63 - 1, consumer_seq=message.metadata.consumer_seq)
    [refused] = await consumer._backend.ack("s", "c", [ack])
    assert refused is not None
    await message.ack()
    assert await taken(consumer) == [2, 3, 4, 5]


async def test_nak_gives_back_at_once_or_later(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c")
    first, second = await consumer.fetch(2)
    await first.nak()
    await second.nak(delay=5)
    assert await taken(consumer, 2) == [1, 3]
    runtime.clock.advance(5)
    assert await taken(consumer, 2) == [2, 4]


async def test_in_progress_starts_the_ack_wait_again(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10, max_ack_pending=1)
    [message] = await consumer.fetch(1)
    for _ in range(3):
        runtime.clock.advance(9)
        await message.in_progress()
    assert await taken(consumer) == []
    runtime.clock.advance(10)
    assert await taken(consumer) == [1]


async def test_term_ends_a_message(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=1)
    [message] = await consumer.fetch(1)
    await message.term(reason="unreadable")
    runtime.clock.advance(5)
    assert await taken(consumer, 1) == [2]
    assert (await stream.info()).state.messages == 5


async def test_acks_of_a_work_queue_remove_messages(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("w", retention="workqueue")
    await jet.publish_batch([("w", b"")] * 3)
    consumer = await stream.create_consumer(durable_name="c")
    first, second, _ = await consumer.fetch(3)
    await first.ack()
    await second.term()
    state = (await stream.info()).state
    assert (state.messages, state.first_seq) == (1, 3)
    await consumer.delete()
    other = await stream.create_consumer(durable_name="d")
    assert await taken(other) == [3]


async def test_ack_policy_all_takes_those_before(stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_policy="all")
    messages = await consumer.fetch(5)
    await messages[2].ack()
    assert (await consumer.info()).num_ack_pending == 2
    with pytest.raises(pelton.AckRejectedError):
        await messages[0].ack()
    await messages[4].nak()
    assert await taken(consumer) == [5]


async def test_ack_policy_none_awaits_nothing(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_policy="none")
    messages = await consumer.fetch(5)
    await messages[0].ack()
    runtime.clock.advance(100)
    assert await taken(consumer) == []
    assert (await consumer.info()).num_ack_pending == 0


async def test_max_deliver(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=1, max_deliver=2)
    for _ in range(2):
        assert await taken(consumer, 1) == [1]
        runtime.clock.advance(1)
    assert await taken(consumer, 1) == [2]
    assert (await consumer.info()).num_ack_pending == 1
    assert (await stream.info()).state.messages == 5


async def test_many_exhausted_messages_hide_none(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("t")
    await jet.publish_batch([("t", b"")] * 101)
    consumer = await stream.create_consumer(durable_name="c", ack_wait=1, max_deliver=1)
    assert len(await taken(consumer, 100)) == 100
    runtime.clock.advance(1)
    assert await taken(consumer, 1) == [101]


async def test_backoff(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", backoff=[1, 5], max_ack_pending=1)
    assert await taken(consumer) == [1]
    runtime.clock.advance(1)
    [second] = await consumer.fetch(1, no_wait=True)
    runtime.clock.advance(4.9)
    await second.in_progress()
    runtime.clock.advance(4.9)
    assert await taken(consumer) == []
    runtime.clock.advance(0.1)
    assert await taken(consumer) == [1]
    runtime.clock.advance(4.9)
    assert await taken(consumer) == []
    runtime.clock.advance(0.1)
    assert await taken(consumer) == [1]


async def test_max_ack_pending(stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending=2)
    first, _ = await consumer.fetch(10)
    assert await taken(consumer) == []
    await first.ack()
    assert await taken(consumer) == [3]
    await stream.create_consumer(durable_name="c", max_ack_pending=-1)
    assert await taken(consumer) == [4, 5]


async def test_a_message_deleted_while_delivered_does_not_come_again(
    stream: pelton.Stream, runtime: ManualRuntime
) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    first, _ = await consumer.fetch(2)
    await stream.delete_message(1)
    await stream.delete_message(2)
    await stream.delete_message(3)
    assert (await consumer.info()).num_pending == 2
    await first.ack()
    runtime.clock.advance(10)
    assert await taken(consumer) == [4, 5]
    await stream.purge()
    runtime.clock.advance(10)
    assert await taken(consumer) == []
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_publishing_and_acking_go_together_or_not_at_all(jet: pelton.Jet, stream: pelton.Stream) -> None:
    await jet.create_stream("done", subjects=["done"], max_msgs=1, discard="new")
    consumer = await stream.create_consumer(durable_name="c")
    first, second = await consumer.fetch(2)
    acks = [AckOp(seq=m.delivered.seq, consumer_seq=m.delivered.consumer_seq) for m in (first, second)]
    [stored] = await jet.backend.settle([Outgoing("done", b"")], "s", "c", acks[0])
    assert stored.seq == 1
    with pytest.raises(pelton.MaxMessagesError):
        await jet.backend.settle([Outgoing("done", b"")], "s", "c", acks[1])
    with pytest.raises(pelton.AckRejectedError):
        await jet.backend.settle([Outgoing("done", b"")], "s", "c", acks[0])
    assert (await consumer.info()).num_ack_pending == 1


async def test_an_ack_of_a_consumer_that_is_gone_settles_nothing_of_another_one_of_its_name(
    stream: pelton.Stream, jet: pelton.Jet
) -> None:
    async def made_anew() -> tuple[pelton.Consumer, pelton.Message]:
        consumer = await stream.create_consumer(durable_name="c")
        [message] = await consumer.fetch(1)
        return consumer, message

    _, old = await made_anew()
    await stream.delete_consumer("c")
    consumer, new = await made_anew()
    assert (old.metadata.stream_seq, old.metadata.consumer_seq) == (1, 1)
    assert (new.metadata.stream_seq, new.metadata.consumer_seq) == (1, 1)
    assert new.metadata.token > old.metadata.token
    for late in (old.ack(), old.nak(), old.term(), old.in_progress()):
        with pytest.raises(pelton.AckRejectedError, match="its consumer was deleted"):
            await late
    assert (await consumer.info()).num_ack_pending == 1
    await new.ack()
    stale = await consumer.fetch(3)
    await stream.delete_consumer("c")
    consumer, fresh = await made_anew()
    others = await consumer.fetch(9)
    # Many at once are checked as one.
    acks = [ack_of(message.delivered, "ack") for message in stale + stale]
    assert all(await jet.backend.ack("s", "c", [*acks, *acks]))
    assert (await consumer.info()).num_ack_pending == len(others) + 1
    await consumer.ack([fresh, *others[:1]])
    # Acks that come by a server's protocol name no more than this.
    place = others[1].metadata
    assert await jet.backend.ack("s", "c", [AckOp(seq=place.stream_seq, consumer_seq=place.consumer_seq)]) == [None]
