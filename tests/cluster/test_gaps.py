"""Lost connections: what is repeated, what is reported, and that nothing acknowledged is lost or doubled."""

import asyncio

import pytest

import pelton
from pelton.api import Outgoing
from pelton.cluster.publisher import stored_before
from tests.kit.nats_server import NatsServer


async def _waiting(consumer: pelton.Consumer) -> None:
    while (await consumer.info()).num_waiting < 1:
        await asyncio.sleep(0)


async def test_a_publish_with_an_id_outlasts_a_restart_and_lands_once(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    published = 0

    async def publish() -> None:
        nonlocal published
        while published < 400:
            published += 1
            await jet.publish("s", b"%d" % published, msg_id=str(published))

    publishers = asyncio.gather(*(publish() for _ in range(8)))
    while published < 100:
        await asyncio.sleep(0)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await publishers
    consumer = await stream.create_consumer(ack_policy="none")
    found = [message.data for message in await consumer.fetch(1000)]
    assert sorted(map(int, found)) == list(range(1, len(found) + 1))
    assert len(found) >= 400


async def test_a_batch_with_ids_outlasts_a_restart(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    messages = [("s", b"%d" % n, {"Nats-Msg-Id": str(n)}) for n in range(20_000)]
    batch = asyncio.ensure_future(jet.publish_batch(messages))
    while (await stream.info()).state.messages < 1000:
        await asyncio.sleep(0)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    assert [ack.seq for ack in await batch] == list(range(1, 20_001))
    assert (await stream.info()).state.messages == 20_000


async def test_a_publish_without_an_id_is_not_repeated(server: NatsServer, jet: pelton.Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    batch = asyncio.ensure_future(jet.publish_batch([("s", b"x")] * 200_000))
    while (await jet.account_info()).storage < 1000:
        await asyncio.sleep(0)
    object.__setattr__(jet.backend._connection.settings, "patience", 0.3)
    await asyncio.to_thread(server.kill)
    # Lost between two windows nothing is in doubt; what remains is that no server answers.
    with pytest.raises((pelton.api.ServerTimeoutError, pelton.api.ServerUnreachableError)):
        await batch


async def test_a_waiting_pull_goes_on_after_a_restart(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer(durable_name="c")
    pull = asyncio.ensure_future(consumer.fetch(5, timeout=20))
    await _waiting(consumer)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await jet.publish("s", b"after", msg_id="1")
    (message,) = await pull
    await message.ack()
    assert (await consumer.info()).num_ack_pending == 0


async def test_acks_are_repeated_after_a_restart(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"")] * 100)
    consumer = await stream.create_consumer(durable_name="c")
    messages = await consumer.fetch(100)
    # A clean shutdown: after a kill the server may have lost deliveries, and would not answer acks of them.
    await asyncio.to_thread(server.stop)
    acked = asyncio.ensure_future(consumer.ack(messages))
    await asyncio.to_thread(server.start)
    await acked
    assert (await consumer.info()).ack_floor.stream_seq == 100


async def test_what_was_not_sent_is_sent_later(server: NatsServer, jet: pelton.Jet) -> None:
    await jet.create_stream("S")
    await asyncio.to_thread(server.kill)
    while jet.backend._connection._client.is_connected:
        await asyncio.sleep(0)
    later = asyncio.gather(jet.publish("S", b"2"), jet.publish_batch([("S", b"3")] * 10), jet.create_stream("T"))
    await asyncio.to_thread(server.start)
    one, ten, _ = await later
    assert len({one.seq, *(ack.seq for ack in ten)}) == 11
    assert await jet.stream_names() == ["S", "T"]


async def test_no_server_for_too_long(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pelton.open(server.url) as jet:
        await jet.create_stream("S")
        settings = jet.backend._connection.settings
        object.__setattr__(settings, "patience", 0.3)
        await asyncio.to_thread(server.kill)
        with pytest.raises(pelton.api.ServerUnreachableError):
            await jet.publish("S", b"", msg_id="x")


async def test_closing_ends_waiting_pulls(server: NatsServer) -> None:
    jet = await pelton.open(server.url)
    consumer = await (await jet.create_stream("S")).create_consumer(durable_name="c")
    pull = asyncio.ensure_future(consumer.fetch(1, timeout=None))
    await _waiting(consumer)
    await jet.close()
    with pytest.raises(pelton.StoreClosedError):
        await pull


async def test_a_worker_cut_off_for_longer_than_its_lease_drops_its_result(server: NatsServer, jet: pelton.Jet) -> None:
    queue = await jet.queue("q", lease=1.0)
    told = asyncio.Event()
    attempts: list[int] = []

    async def slow(context: pelton.JobContext) -> int:
        attempts.append(context.attempt)
        if len(attempts) > 1:
            return len(attempts)
        server.pause()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        finally:
            told.set()
            server.resume()
        return 1

    handle = await queue.job(slow, name="slow").enqueue()
    work = asyncio.ensure_future(queue.work(concurrency=1, handle_signals=False))
    await asyncio.wait_for(told.wait(), 60)
    outcome = await handle.outcome(timeout=30)
    queue.stop()
    await asyncio.wait_for(work, 30)
    assert (outcome.state, outcome.value(), attempts) == ("completed", 2, [1, 2])


async def test_a_plain_publish_outlasts_a_restart_and_lands_once(server: NatsServer, jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    acks: list[pelton.PubAck] = []

    async def publish() -> None:
        while len(acks) < 300:
            acks.append(await jet.publish("s", b"the same"))

    publishers = asyncio.gather(*(publish() for _ in range(8)))
    while len(acks) < 100:
        await asyncio.sleep(0)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await publishers
    assert sorted(ack.seq for ack in acks) == list(range(1, len(acks) + 1))
    assert (await stream.info()).state.messages == len(acks)


@pytest.mark.parametrize("condition", [{"expected_last_seq": 0}, {"expected_last_subject_seq": 0}])
async def test_a_condition_that_held_holds_when_its_answer_is_lost(
    server: NatsServer, jet: pelton.Jet, condition: dict[str, int]
) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    client = await jet.backend._connection.client()
    client._transport._io_writer.transport.pause_reading()
    publish = asyncio.ensure_future(jet.publish("s", b"once", **condition))
    async with pelton.open(server.url) as other:
        seen = await other.stream("S")
        while (await seen.info()).state.last_seq < 1:
            await asyncio.sleep(0)
    client.cut()
    ack = await asyncio.wait_for(publish, 60)
    assert (ack.seq, ack.duplicate) == (1, True)
    assert (await stream.info()).state.messages == 1


async def test_a_message_of_somebody_else_is_not_taken_for_ours(jet: pelton.Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", msg_id="theirs")
    connection = jet.backend._connection
    for name in ("Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"):
        for expected, number, there in (("theirs", 0, 1), ("ours", 0, None), ("ours", 7, None), ("theirs", 7, None)):
            block = f"NATS/1.0\r\nNats-Msg-Id: {expected}\r\n{name}: {number}\r\n\r\n".encode()
            ack = await stored_before(connection, "S", Outgoing("s", b"", block))
            assert (ack.seq if ack else None) == there
