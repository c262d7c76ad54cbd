"""How a pull waits: for messages, for time, until it is cancelled, or until it has nothing left to wait for."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest

import pelton
from pelton.testing import ManualRuntime


@pytest.fixture
async def stream(jet: pelton.Jet) -> pelton.Stream:
    return await jet.create_stream("s", subjects=["s.>"])


@pytest.fixture
async def consumer(stream: pelton.Stream) -> pelton.Consumer:
    return await stream.create_consumer(durable_name="c", ack_wait=10)


async def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start work and run it until it waits."""
    task = asyncio.ensure_future(work)
    await turns()
    return task


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def seqs(messages: list[pelton.Message]) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


async def test_a_fetch_takes_what_is_there(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    await jet.publish_batch([("s.a", b"")] * 3)
    assert seqs(await consumer.fetch(2)) == [1, 2]
    assert seqs(await consumer.fetch(10)) == [3]
    assert await consumer.fetch(10, no_wait=True) == []


async def test_who_asks_again_in_vain_makes_no_transaction(
    jet: pelton.Jet, consumer: pelton.Consumer, runtime: ManualRuntime
) -> None:
    committer: Any = jet.backend._committer  # type: ignore[attr-defined]  # of an embedded store
    assert await consumer.fetch(9, no_wait=True) == []
    before = committer.rounds
    for _ in range(5):
        assert await consumer.fetch(9, no_wait=True) == []
    waiting = await begun(consumer.fetch(9))
    assert committer.rounds == before
    # It is found at once all the same: what is published, is due again, or was staged just before.
    await jet.publish("s.a", b"")
    [message] = await waiting
    assert await consumer.fetch(9, no_wait=True) == []
    runtime.clock.advance(11)
    [message] = await consumer.fetch(9, no_wait=True)
    assert await consumer.fetch(9, no_wait=True) == []
    _, [message] = await asyncio.gather(message.nak(), consumer.fetch(9, no_wait=True))
    assert await consumer.fetch(9, no_wait=True) == []
    async with jet.transaction() as tx:
        await tx.publish("s.a", b"")
        with pytest.raises(pelton.TransactionError):
            await consumer.fetch(9, no_wait=True)
    assert seqs(await consumer.fetch(9, no_wait=True)) == [2]
    assert await consumer.fetch(9, no_wait=True) == []
    await consumer.delete()
    with pytest.raises(pelton.ConsumerNotFoundError):
        await consumer.fetch(9, no_wait=True)


async def test_a_fetch_waits_for_the_first(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    waiting = await begun(consumer.fetch(10))
    assert (await consumer.info()).num_waiting == 1
    await jet.publish_batch([("s.a", b"")] * 3)
    assert seqs(await waiting) == [1, 2, 3]
    assert (await consumer.info()).num_waiting == 0


async def test_a_fetch_ends_empty_at_its_time(consumer: pelton.Consumer, runtime: ManualRuntime) -> None:
    waiting = await begun(consumer.fetch(1, timeout=7))
    runtime.clock.advance(6.9)
    await turns()
    assert not waiting.done()
    runtime.clock.advance(0.1)
    assert await waiting == []
    assert await consumer.fetch(1, timeout=0) == []


async def test_a_fetch_without_time_waits_on(
    jet: pelton.Jet, consumer: pelton.Consumer, runtime: ManualRuntime
) -> None:
    waiting = await begun(consumer.fetch(1, timeout=None))
    runtime.clock.advance(10_000)
    await turns()
    assert not waiting.done()
    await jet.publish("s.a")
    assert seqs(await waiting) == [1]


async def test_a_waiting_fetch_gets_what_falls_due(
    jet: pelton.Jet, consumer: pelton.Consumer, runtime: ManualRuntime
) -> None:
    await jet.publish("s.a")
    await consumer.fetch(1)
    waiting = await begun(consumer.fetch(1, timeout=60))
    runtime.clock.advance(10)
    [again] = await waiting
    waiting = await begun(consumer.fetch(1, timeout=60))
    await again.nak(delay=3)
    await turns()
    runtime.clock.advance(3)
    assert seqs(await waiting) == [1]


async def test_a_waiting_fetch_gets_the_room_that_an_ack_makes(jet: pelton.Jet, stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="one", max_ack_pending=1)
    await jet.publish_batch([("s.a", b"")] * 2)
    [first] = await consumer.fetch(5)
    waiting = await begun(consumer.fetch(5))
    assert not waiting.done()
    await first.ack()
    assert seqs(await waiting) == [2]


async def test_each_message_goes_to_one_of_many_fetches(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    waiting = [await begun(consumer.fetch(1)) for _ in range(5)]
    await jet.publish_batch([("s.a", b"")] * 5)
    assert sorted(seqs([message for fetch in waiting for message in await fetch])) == [1, 2, 3, 4, 5]


async def test_a_deleted_consumer_ends_its_fetches(stream: pelton.Stream, consumer: pelton.Consumer) -> None:
    waiting = await begun(consumer.fetch(1, timeout=None))
    await consumer.delete()
    with pytest.raises(pelton.ConsumerNotFoundError):
        await waiting


async def test_a_deleted_stream_ends_its_fetches(stream: pelton.Stream, consumer: pelton.Consumer) -> None:
    waiting = await begun(consumer.fetch(1, timeout=None))
    await stream.delete()
    with pytest.raises(pelton.StreamNotFoundError):
        await waiting


async def test_a_store_that_closes_ends_its_fetches(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    waiting = await begun(consumer.fetch(1, timeout=None))
    await jet.close()
    with pytest.raises(pelton.StoreClosedError):
        await waiting


async def test_a_waiting_fetch_keeps_an_ephemeral_consumer(
    jet: pelton.Jet, stream: pelton.Stream, runtime: ManualRuntime
) -> None:
    consumer = await stream.create_consumer(inactive_threshold=10)
    waiting = await begun(consumer.fetch(1, timeout=None))
    for _ in range(10):
        runtime.clock.advance(5)
        await turns()
    await jet.publish("s.a")
    assert seqs(await waiting) == [1]


async def test_a_fetch_that_finds_nothing_is_a_use(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(durable_name="c", inactive_threshold=10)
    runtime.clock.advance(4)
    assert await consumer.fetch(1, no_wait=True) == []
    runtime.clock.advance(9)
    assert await stream.consumer_names() == ["c"]
    runtime.clock.advance(2)
    assert await stream.consumer_names() == []


async def test_a_consumer_is_in_use_until_its_last_message_is_due_again(
    jet: pelton.Jet, stream: pelton.Stream, runtime: ManualRuntime
) -> None:
    consumer = await stream.create_consumer(durable_name="c", inactive_threshold=10, ack_wait=5)
    await jet.publish_batch([("s.a", b""), ("s.b", b"")])
    first, _ = await consumer.fetch(2, no_wait=True)
    await first.nak(delay=100)
    for _ in range(109):
        runtime.clock.advance(1)
        assert await stream.consumer_names() == ["c"]
    runtime.clock.advance(2)
    assert await stream.consumer_names() == []
    # One that has settled everything is not.
    consumer = await stream.create_consumer(durable_name="c", inactive_threshold=10, ack_wait=5)
    for message in await consumer.fetch(2, no_wait=True):
        await message.ack()
    runtime.clock.advance(11)
    assert await stream.consumer_names() == []


async def test_bytes_bound_a_fetch(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    await jet.publish_batch([("s.a", b"x" * 67)] * 3)
    assert seqs(await consumer.fetch(10, max_bytes=299)) == [1, 2]
    assert seqs(await consumer.fetch(10, max_bytes=120)) == [3]
    await jet.publish_batch([("s.a", b"x" * 67)] * 20)
    assert seqs(await consumer.fetch(10, max_bytes=1 << 20)) == list(range(4, 14))
    last = await consumer.fetch(20, max_bytes=1 << 20)
    assert [(one.delivered.seq, one.delivered.num_pending) for one in last] == [
        (seq, 23 - seq) for seq in range(14, 24)
    ]


async def test_a_message_larger_than_a_fetch_allows_ends_it_at_once(
    jet: pelton.Jet, consumer: pelton.Consumer, runtime: ManualRuntime
) -> None:
    await jet.publish("s.a", b"x" * 1000)
    assert await consumer.fetch(1, max_bytes=100, timeout=None) == []
    waiting = await begun(consumer.fetch(1, max_bytes=100, timeout=None))
    assert await waiting == []
    await consumer.fetch(1)
    waiting = await begun(consumer.fetch(1, max_bytes=100, timeout=None))
    assert not waiting.done()
    runtime.clock.advance(10)
    assert await waiting == []
    assert (await consumer.info()).num_ack_pending == 1


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": -1}, {"max_bytes": -1}, {"timeout": -1}])
async def test_a_fetch_that_makes_no_sense(consumer: pelton.Consumer, options: dict[str, Any]) -> None:
    with pytest.raises(pelton.ConfigError):
        await consumer.fetch(**options)


async def test_a_fetch_that_was_accepted_is_refused_by_another_configuration(
    stream: pelton.Stream, consumer: pelton.Consumer
) -> None:
    assert await consumer.fetch(2, no_wait=True) == []
    await stream.create_consumer(durable_name="c", ack_wait=10, max_batch=1)
    with pytest.raises(pelton.PullRefusedError):
        await consumer.fetch(2, no_wait=True)
    assert await consumer.fetch(1, no_wait=True) == []


@pytest.mark.parametrize("delay", range(8))
async def test_a_cancelled_fetch_loses_nothing(jet: pelton.Jet, consumer: pelton.Consumer, delay: int) -> None:
    """Cancelled at every moment from before the publish to after the delivery."""
    waiting = await begun(consumer.fetch(10))
    publishing = asyncio.ensure_future(jet.publish_batch([("s.a", b"")] * 3))
    await turns(delay)
    waiting.cancel()
    [found] = await asyncio.gather(waiting, return_exceptions=True)
    await publishing
    await turns()
    if isinstance(found, asyncio.CancelledError):
        assert seqs(await consumer.fetch(10, timeout=0)) == [1, 2, 3]
    else:
        assert seqs(found) == [1, 2, 3]
    assert (await consumer.info()).num_waiting == 0


async def test_a_fetch_cancelled_as_it_was_served_gives_back(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    await jet.publish_batch([("s.a", b"")] * 3)
    handed_back = 0
    for delay in range(6):
        task = asyncio.ensure_future(consumer.fetch(3, timeout=None))
        await turns(delay)
        task.cancel()
        [found] = await asyncio.gather(task, return_exceptions=True)
        await turns()
        if isinstance(found, list):
            await asyncio.gather(*(message.nak() for message in found))
        else:
            handed_back += 1
    assert handed_back
    assert seqs(await consumer.fetch(3, timeout=0)) == [1, 2, 3]


async def test_iteration_goes_on_as_messages_come(jet: pelton.Jet, consumer: pelton.Consumer) -> None:
    await jet.publish_batch([("s.a", b"1"), ("s.a", b"2")])
    got = []
    async with aclosing(consumer.messages()) as messages:
        async for message in messages:
            got.append(message.data)
            await message.ack()
            if message.data == b"2":
                await jet.publish("s.a", b"3")
            if message.data == b"3":
                break
    assert got == [b"1", b"2", b"3"]
    assert (await consumer.info()).num_ack_pending == 0


async def test_an_iteration_that_is_closed_gives_back_what_it_had_taken(
    jet: pelton.Jet, consumer: pelton.Consumer
) -> None:
    await jet.publish_batch([("s.a", b"")] * 5)
    async with aclosing(consumer.messages(prefetch=4)) as messages:
        async for _ in messages:
            break
    assert seqs(await consumer.fetch(10, no_wait=True)) == [2, 3, 4, 5]


async def test_an_iteration_closes_also_when_others_have_what_it_took(
    jet: pelton.Jet, stream: pelton.Stream, consumer: pelton.Consumer, runtime: ManualRuntime
) -> None:
    await jet.publish_batch([("s.a", b"")] * 3)
    async with aclosing(consumer.messages()) as messages:
        await anext(messages)
        runtime.clock.advance(10)
        assert len(await consumer.fetch(10, no_wait=True)) == 3
    await consumer.delete()
    again = await stream.create_consumer(durable_name="c")
    async with aclosing(again.messages()) as messages:
        await anext(messages)
        await again.delete()


async def test_num_pending_counts_what_was_published_in_the_same_breath(jet: pelton.Jet, stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="f", filter_subject="s.a")
    for number in range(1, 4):
        _, info = await asyncio.gather(jet.publish("s.a"), consumer.info())
        assert info.num_pending == number


async def test_a_consumer_of_one_subject_sees_every_plain_publish(jet: pelton.Jet, stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="f", filter_subject="s.a")
    for number in range(1, 6):
        await jet.publish("s.a")
        assert seqs(await consumer.fetch(5, no_wait=True)) == [number]


async def test_a_work_queue_emptied_and_used_again(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("w", retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c")
    for number in range(1, 4):
        await jet.publish("w")
        [message] = await consumer.fetch(1, no_wait=True)
        assert message.metadata.stream_seq == number
        await message.ack()
        state = (await stream.info()).state
        assert (state.messages, state.first_seq, state.last_seq) == (0, number + 1, number)


async def test_a_waiting_pull_follows_a_change_of_filters(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("f", subjects=["f.>"])
    consumer = await stream.create_consumer(durable_name="c", filter_subject="f.a")
    waiting = asyncio.ensure_future(consumer.fetch(1, timeout=None))
    for _ in range(5):
        await asyncio.sleep(0)
    await stream.create_consumer(durable_name="c", filter_subject="f.b")
    for _ in range(5):
        await asyncio.sleep(0)
    await jet.publish("f.b")
    assert len(await asyncio.wait_for(waiting, 60)) == 1


async def test_a_message_wakes_only_those_who_want_it(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("f", subjects=["f.>"])
    consumers = [await stream.create_consumer(durable_name=f"c{n}", filter_subject=f"f.{n}") for n in range(3)]
    waiting = [asyncio.ensure_future(consumer.fetch(1, timeout=None)) for consumer in consumers]
    for _ in range(5):
        await asyncio.sleep(0)
    for number in (2, 0, 1):
        await jet.publish(f"f.{number}")
        assert len(await asyncio.wait_for(waiting[number], 60)) == 1


async def test_a_roll_up_wakes_who_waits_and_who_watches(jet: pelton.Jet) -> None:
    bucket = await jet.create_bucket("b")
    await bucket.put("a", b"1")
    entries = bucket.watch()
    assert [await anext(entries) is None for _ in range(2)] == [False, True]
    # No clock moves here: a heartbeat would hide a missing wake-up.
    for change in (bucket.purge, bucket.delete):
        await change("a")
        entry = await asyncio.wait_for(anext(entries), 60)
        assert entry is not None
        assert entry.operation in ("purge", "delete")
    await entries.aclose()
