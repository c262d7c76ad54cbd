"""JetStream with nats-py: streams, pulls, pushes, key-value, objects."""

import asyncio
import json
from pathlib import Path

import nats.errors
import nats.js.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig

import pelton
from tests.server.conftest import Connected, Started
from tests.server.raw import raw_client


async def test_publish_and_fetch(connected: Connected) -> None:
    client = await connected()
    js = client.jetstream()
    info = await js.add_stream(name="ORDERS", subjects=["orders.>"])
    assert info.config.name == "ORDERS"
    ack = await js.publish("orders.1", b"spade", headers={"Nats-Msg-Id": "1"})
    assert (ack.stream, ack.seq, ack.duplicate) == ("ORDERS", 1, None)
    assert (await js.publish("orders.1", b"spade", headers={"Nats-Msg-Id": "1"})).duplicate
    await asyncio.gather(*(js.publish(f"orders.{n}", b"%d" % n) for n in range(2, 100)))
    pull = await js.pull_subscribe("orders.>", "worker")
    first = await pull.fetch(50, timeout=5)
    assert [message.metadata.sequence.stream for message in first] == list(range(1, 51))
    for message in first:
        await message.ack()
    await first[-1].in_progress()
    rest = await pull.fetch(60, timeout=1)
    assert len(rest) == 49
    await rest[0].ack_sync(timeout=60)
    with pytest.raises(nats.errors.TimeoutError):
        await pull.fetch(1, timeout=0.2)


@pytest.mark.parametrize("listens", [False, True])
async def test_many_publishes_that_differ_in_their_reply_alone(connected: Connected, *, listens: bool) -> None:
    client, other = await connected(), await connected()
    await client.jetstream().add_stream(name="S", subjects=["s", "t"])
    heard = asyncio.Queue[bytes]()
    if listens:

        async def hear(message: Msg) -> None:
            heard.put_nowait(message.data)

        await other.subscribe("s", cb=hear)
        await other.flush()
    inbox = await client.subscribe("_R.*.*")
    plain = await client.subscribe("_R.alone")
    sent = [b"%04d" % number for number in range(300)]
    for number, data in enumerate(sent):
        await client.publish("s", data, reply=f"_R.{number % 200 // 100}.{number}" if number % 7 else "_R.alone")
        if number == 250:
            await client.publish("t", b"othr", reply="_R.2.other")
    await client.flush()
    answers = [json.loads((await inbox.next_msg(5)).data)["seq"] for _ in range(300 - 43 + 1)]
    assert sorted(answers) == answers
    assert [json.loads((await plain.next_msg(5)).data)["seq"] for _ in range(43)] == [
        seq + (seq > 251) for seq in range(1, 301, 7)
    ]
    js = client.jetstream()
    assert [(await js.get_msg("S", seq)).data for seq in (1, 251, 252, 253, 301)] == [
        sent[0], sent[250], b"othr", sent[251], sent[299]
    ]  # fmt: skip
    if listens:
        assert [await heard.get() for _ in sent] == sent


async def test_acks_of_several_consumers_in_one_packet(connected: Connected) -> None:
    client = await connected()
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    for number in range(4):
        await js.publish("s", b"%d" % number)
    got = {}
    for name in ("a", "b", "none"):
        policy = AckPolicy.NONE if name == "none" else AckPolicy.EXPLICIT
        await js.add_consumer("S", ConsumerConfig(durable_name=name, ack_policy=policy))
        got[name] = await (await js.pull_subscribe_bind(name, "S")).fetch(4)
    for number in range(3):
        for name in ("a", "b", "none"):
            await client.publish(got[name][number].reply, b"+ACK")
        await client.publish("$JS.ACK.S.c.1.1.1.0.0", b"+ACK")
        await client.publish("s", b"between")
    await client.publish(got["a"][3].reply, b"-NAK")
    await client.flush()
    for name in ("a", "b"):
        info = await js.consumer_info("S", name)
        assert info.ack_floor is not None
        assert (info.ack_floor.stream_seq, info.num_ack_pending) == (3, 1)
    assert (await js.stream_info("S")).state.messages == 7


async def test_errors_are_those_of_nats(connected: Connected) -> None:
    js = (await connected()).jetstream()
    with pytest.raises(nats.js.errors.NotFoundError) as missing:
        await js.stream_info("NONE")
    assert missing.value.err_code == 10059
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await js.publish("nobody", b"")
    await js.add_stream(name="S", subjects=["s"], max_msg_size=5)
    with pytest.raises(nats.js.errors.APIError) as large:
        await js.publish("s", b"too large")
    assert large.value.err_code == 10054


async def test_a_pull_waits_for_a_message(connected: Connected) -> None:
    client = await connected()
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    pull = await js.pull_subscribe("s", "c")
    waiting = asyncio.ensure_future(pull.fetch(1, timeout=60))
    other = await connected()
    await other.publish("s", b"0")
    assert [message.data for message in await waiting] == [b"0"]


async def test_push(connected: Connected) -> None:
    client = await connected()
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.>"])
    for number in range(10):
        await js.publish(f"s.{number}", b"%d" % number)
    pushed = await js.subscribe("s.>", durable="d", config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL))
    for number in range(10):
        message = await pushed.next_msg(5)
        assert message.data == b"%d" % number
        await message.ack()
    await js.publish("s.x", b"later")
    assert (await pushed.next_msg(5)).data == b"later"
    ordered = await js.subscribe("s.>", ordered_consumer=True)
    assert [(await ordered.next_msg(5)).data for _ in range(11)] == [*(b"%d" % n for n in range(10)), b"later"]


async def test_key_value(connected: Connected) -> None:
    js = (await connected()).jetstream()
    bucket = await js.create_key_value(bucket="config", history=5)
    watch = await bucket.watchall()
    assert await watch.updates(5) is None
    revision = await bucket.put("a", b"1")
    assert (await bucket.get("a")).value == b"1"
    await bucket.update("a", b"2", last=revision)
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await bucket.update("a", b"3", last=revision)
    await bucket.delete("a")
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await bucket.get("a")
    assert [entry.value for entry in [await watch.updates(5) for _ in range(3)]] == [b"1", b"2", b""]
    assert len(await bucket.history("a")) == 3
    with pytest.raises(nats.js.errors.NoKeysError):
        await bucket.keys()
    await bucket.put("b", b"4")
    assert await bucket.keys() == ["b"]


async def test_objects(connected: Connected) -> None:
    js = (await connected()).jetstream()
    store = await js.create_object_store("files")
    data = bytes(range(256)) * 2000
    await store.put("big", data)
    assert (await store.get("big")).data == data
    await store.delete("big")
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await store.get_info("big", show_deleted=False)


async def test_streams_are_managed(connected: Connected) -> None:
    js = (await connected()).jetstream()
    await js.add_stream(name="A", subjects=["a.*"])
    await js.add_stream(name="B", subjects=["b.*"])
    for number in range(5):
        await js.publish(f"a.{number % 2}", b"x")
    assert {info.config.name for info in await js.streams_info()} == {"A", "B"}
    assert await js.find_stream_name_by_subject("b.1") == "B"
    await js.update_stream(StreamConfig(name="A", subjects=["a.*", "c.*"]))
    assert (await js.get_msg("A", 1)).subject == "a.0"
    assert (await js.get_last_msg("A", "a.1")).seq == 4
    assert await js.delete_msg("A", 1)
    assert await js.purge_stream("A", subject="a.1")
    assert (await js.stream_info("A")).state.messages == 2
    assert await js.delete_stream("A")
    account = await js.account_info()
    assert (account.streams, account.consumers) == (1, 0)


@pytest.mark.parametrize("writer", ["client", "process"])
async def test_a_watcher_sees_every_change_of_a_key(connected: Connected, tmp_path: Path, writer: str) -> None:
    js = (await connected()).jetstream()
    bucket = await js.create_key_value(bucket="b", history=1)
    watch = await bucket.watch("k")
    assert await watch.updates(5) is None
    if writer == "client":
        other = await connected()
        # In one go: the server stores all of them in one transaction.
        for number in range(300):
            await other.publish("$KV.b.k", b"%d" % number)
        await other.flush()
    else:
        async with pelton.open(tmp_path / "store.pelton", sync="off") as jet:
            opened = await jet.bucket("b")
            for number in range(300):
                await opened.put("k", b"%d" % number)
    seen = [await watch.updates(20) for _ in range(300)]
    assert [entry.value for entry in seen] == [b"%d" % number for number in range(300)]


async def test_a_direct_get_finds_what_was_published_right_before_it(started: Started) -> None:
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True})
        client.sub("in", "1")
        for number in range(20):
            client.pub("s.1", b"%d" % number)
            client.pub("$JS.API.DIRECT.GET.S.s.1", b"", "in")
            client.pub("$JS.API.DIRECT.GET.S", {"seq": number + 1}, "in")
            assert [line.endswith(f" b'{number}'") for line in await client.take(2)] == [True, True]
