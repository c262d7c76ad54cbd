"""What the conformance suite does not cover: the port's own methods, clones, queues, cancelled pulls."""

import asyncio
import gc
import threading

import pytest

import pelton
from pelton.api import AckOp, ConsumerUnsettled, Outgoing, PullRequest, StreamLastHeaders
from pelton.cluster import connection, pull
from tests.kit.nats_server import NatsServer


async def test_repeated_headers_arrive(jet: pelton.Jet) -> None:
    """It relies on a method of nats-py that is not public: without it, one value per name is kept."""
    stream = await jet.create_stream("S")
    await jet.publish("S", b"", headers={"A": ["1", "2", "3"]})
    (message,) = await (await stream.create_consumer(durable_name="c")).fetch(1)
    assert message.headers.get_all("A") == ["1", "2", "3"]


async def test_settling_publishes_then_acks(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", retention="workqueue")
    out = await jet.create_stream("OUT")
    await jet.publish("S", b"in")
    consumer = await stream.create_consumer(durable_name="c")
    (message,) = await consumer.fetch(1)
    ack = AckOp(kind="ack", seq=1, consumer_seq=message.delivered.consumer_seq)
    acks = await jet.backend.settle([Outgoing("OUT", b"1"), Outgoing("OUT", b"2")], "S", "c", ack)
    assert [ack.seq for ack in acks] == [1, 2]
    assert (await stream.info()).state.messages == 0
    assert b"Nats-Msg-Id" in (await out.get_message(1)).hdrs


async def test_a_settlement_that_cannot_publish_does_not_ack(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", retention="workqueue")
    await jet.publish("S", b"in")
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.fetch(1)
    with pytest.raises(pelton.NoStreamForSubjectError):
        await jet.backend.settle([Outgoing("nobody", b"")], "S", "c", AckOp(seq=1, consumer_seq=1))
    assert (await consumer.info()).num_ack_pending == 1


async def test_there_are_no_transactions(jet: pelton.Jet) -> None:
    with pytest.raises(pelton.ConfigError, match="publish_atomic"):
        async with jet.transaction():
            pass


async def test_a_cancelled_pull_gives_back_what_it_got(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=30)
    for number in range(30):
        pull = asyncio.ensure_future(consumer.fetch(1, timeout=60))
        await asyncio.sleep(0)
        await jet.publish("S", b"%d" % number)
        pull.cancel()
        await asyncio.wait([pull])
        taken = [] if pull.cancelled() else pull.result()
        (message,) = taken or await consumer.fetch(1, timeout=60)
        await message.ack()
        assert message.data == b"%d" % number


async def test_what_the_server_does_not_tell_is_not_made_up(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S")
    await stream.create_consumer(durable_name="c")
    reply = await jet.backend.call(ConsumerUnsettled(stream="S", name="c"))
    assert (reply.total, reply.messages) == (0, ())
    with pytest.raises(pelton.ConsumerNotFoundError):
        await jet.backend.call(ConsumerUnsettled(stream="S", name="none"))
    with pytest.raises(pelton.ConfigError, match="consumer"):
        await jet.backend.call(StreamLastHeaders(stream="S", filters=(">",)))


async def test_an_ack_for_a_consumer_that_is_gone(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S")
    await jet.publish("S")
    consumer = await stream.create_consumer(durable_name="c")
    (message,) = await consumer.fetch(1)
    await consumer.delete()
    with pytest.raises(pelton.ConsumerNotFoundError):
        await message.ack()


async def test_acks_of_deliveries_that_the_server_has_forgotten(
    jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed server has, as one whose consumer is reset: it never answers these acks."""
    monkeypatch.setattr(connection, "_SILENCE_S", 0.05)
    monkeypatch.setattr(connection, "_SWEEP_S", 0.01)
    stream = await jet.create_stream("S")
    await jet.publish_batch([("S", b"")] * 3)
    consumer = await stream.create_consumer(durable_name="c")
    before = await consumer.fetch(3)
    await consumer.reset(1)
    await consumer.fetch(1)
    acks = [AckOp(seq=one.delivered.seq, consumer_seq=one.delivered.consumer_seq) for one in before]
    answers = await jet.backend.ack("S", "c", acks)
    assert [type(answer) for answer in answers] == [type(None), pelton.AckRejectedError, pelton.AckRejectedError]
    with pytest.raises(pelton.AckRejectedError, match="since it was killed"):
        await before[1].ack()
    assert [message.delivered.seq for message in await consumer.fetch(2)] == [2, 3]


async def test_a_batch_of_none(jet: pelton.Jet) -> None:
    await (await jet.create_stream("S")).create_consumer(durable_name="c")
    assert await jet.backend.pull("S", "c", PullRequest(batch=0)) == []


async def test_a_clone_serves_another_thread(jet: pelton.Jet) -> None:
    await jet.create_stream("S")
    clone = jet.backend.clone()
    acks: list[pelton.PubAck] = []

    async def publish() -> None:
        acks.append(await clone.publish("S", b"from there"))
        await clone.close()

    thread = threading.Thread(target=lambda: asyncio.run(publish()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert [ack.seq for ack in acks] == [1]


async def test_a_queue_works_on_a_cluster(jet: pelton.Jet) -> None:
    queue = await jet.queue("q", lease=1.0)
    tried: list[int] = []

    async def double(number: int) -> int:
        tried.append(number)
        if number == 3 and tried.count(3) == 1:
            raise ValueError("once more")
        return number * 2

    job = queue.job(double, name="double", backoff=pelton.Backoff(base=0.05, factor=1, cap=0.05, jitter=0))
    handles = [await job.enqueue(number) for number in range(6)]
    await asyncio.wait_for(queue.work(concurrency=3, until_empty=True, handle_signals=False), 60)
    assert [(await handle.outcome(timeout=60)).state for handle in handles] == ["completed"] * 6
    counts = await queue.counts()
    assert (counts.pending, counts.running, counts.retrying, counts.completed) == (0, 0, 0, 6)


def test_the_blocking_face(server: NatsServer) -> None:
    with pelton.sync.open(server.url) as jet:
        stream = jet.create_stream("S")
        jet.publish("S", b"1")
        (message,) = stream.create_consumer(durable_name="c").fetch(1)
        message.ack()
        assert message.data == b"1"


async def test_subscriptions_of_consumers_that_are_gone_are_not_kept(
    jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_FREE_AT_MOST", 2)
    stream = await jet.create_stream("s")
    await jet.publish_batch([("s", b"%d" % number) for number in range(3)])
    stays = await stream.create_consumer(durable_name="stays")
    for number in range(3):
        assert (await stays.next()).data == b"%d" % number
        for _ in range(4):
            consumer = await stream.create_consumer()
            assert len(await consumer.fetch(3)) == 3
            await stream.delete_consumer(consumer.name)
    gc.collect()
    # Two that are free, and one that is being retired.
    assert sum(issubclass(type(each), pull.Channel) for each in gc.get_objects()) <= 3
