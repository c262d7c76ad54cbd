"""Programs with nats-py, played on a served store and on nats-server: both must show them the same.

Each gets a function that connects, and returns what it saw, without times and ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import nats.js.errors
import nats.micro
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    KeyValueConfig,
    RetentionPolicy,
    StreamConfig,
    StreamSource,
)

from tests.server.conftest import settled

Connect = Callable[[], Awaitable[Client]]
Program = Callable[[Connect], Awaitable[list[Any]]]
PROGRAMS: list[Program] = []


def program(made: Program) -> Program:
    PROGRAMS.append(made)
    return made


@program
async def key_value(connect: Connect) -> list[Any]:
    js = (await connect()).jetstream()
    bucket = await js.create_key_value(KeyValueConfig(bucket="b", history=3, ttl=None))
    watcher = await bucket.watchall()
    seen: list[Any] = [await watcher.updates(5)]
    seen.append([await bucket.put("a", b"1"), await bucket.put("a", b"2"), await bucket.create("b.c", b"3")])
    for failing in (bucket.create("a", b"x"), bucket.update("a", b"x", last=1), bucket.get("none")):
        try:
            await failing
        except nats.js.errors.Error as error:
            seen.append(type(error).__name__)
    await bucket.delete("a")
    await bucket.purge("b.c")
    for _ in range(5):
        entry = await watcher.updates(5)
        assert entry is not None
        seen.append((entry.key, entry.value, entry.revision, entry.operation, entry.delta))
    seen.append([(entry.value, entry.revision) for entry in await bucket.history("a")])
    await bucket.put("d", b"4")
    seen.append(sorted(await bucket.keys()))
    status = await bucket.status()
    seen.append((status.values, status.history))
    seen.append((await bucket.get("d", revision=6)).value)
    return seen


@program
async def objects(connect: Connect) -> list[Any]:
    js = (await connect()).jetstream()
    store = await js.create_object_store("files")
    data = bytes(range(256)) * 1000
    info = await store.put("big", data)
    seen: list[Any] = [info.size, info.chunks, info.digest, (await store.get("big")).data == data]
    await store.put("small", b"x")
    seen.append(sorted(entry.name for entry in await store.list()))
    await store.delete("big")
    seen.append(sorted(entry.name for entry in await store.list()))
    try:
        await store.get("big")
    except nats.js.errors.Error as error:
        seen.append(type(error).__name__)
    return seen


@program
async def ordered(connect: Connect) -> list[Any]:
    js = (await connect()).jetstream()
    await js.add_stream(name="S", subjects=["s.>"])
    for number in range(200):
        await js.publish(f"s.{number % 3}", b"%d" % number)
    subscription = await js.subscribe("s.>", ordered_consumer=True)
    seen = [(await subscription.next_msg(5)).data for _ in range(200)]
    part = await js.subscribe("s.1", ordered_consumer=True)
    return [*seen, [(await part.next_msg(5)).data for _ in range(5)]]


@program
async def micro_services(connect: Connect) -> list[Any]:
    server, client = await connect(), await connect()
    service = await nats.micro.add_service(server, name="math", version="1.0.0", description="counts")

    async def double(request: nats.micro.Request) -> None:
        if request.data == b"bad":
            await request.respond_error("400", "not a number")
        else:
            await request.respond(b"%d" % (2 * int(request.data)))

    await service.add_group(name="math").add_endpoint(name="double", handler=double)
    await settled(server)
    answer = await client.request("math.double", b"21", timeout=60)
    refused = await client.request("math.double", b"bad", timeout=60)
    seen: list[Any] = [answer.data, dict(refused.headers or {})]
    for subject in ("$SRV.PING", "$SRV.INFO.math", "$SRV.STATS.math"):
        found = await client.request(subject, b"", timeout=60)
        seen.append(b'"name":"math"' in found.data.replace(b" ", b""))
    await service.stop()
    try:
        await client.request("math.double", b"1", timeout=60)
    except nats.errors.Error as error:
        seen.append(type(error).__name__)
    return seen


@program
async def legacy_push_with_a_queue(connect: Connect) -> list[Any]:
    one, other = await connect(), await connect()
    js = one.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    got: list[bytes] = []
    done = asyncio.Event()

    async def take(message: nats.aio.msg.Msg) -> None:
        got.append(message.data)
        await message.ack()
        if len(got) == 50:
            done.set()

    await js.subscribe("s", queue="workers", durable="workers", cb=take, manual_ack=True)
    await other.jetstream().subscribe("s", queue="workers", durable="workers", cb=take, manual_ack=True)
    for number in range(50):
        await js.publish("s", b"%d" % number)
    await asyncio.wait_for(done.wait(), 60)
    await settled(one)
    await settled(other)
    while (info := await js.consumer_info("S", "workers")).num_ack_pending:
        pass
    return [sorted(got), info.config.deliver_group, info.push_bound, info.ack_floor.stream_seq]


@program
async def a_worker_with_a_lock_a_key(connect: Connect) -> list[Any]:
    """A worker in the shape of the token document: one token a key, in progress, and the ack frees the slot."""
    js = (await connect()).jetstream()
    await js.add_stream(name="INBOX", subjects=["inbox.>"])
    await js.add_stream(
        StreamConfig(
            name="WORK",
            retention=RetentionPolicy.WORK_QUEUE,
            sources=[StreamSource(name="INBOX")],
        )
    )
    seen: list[Any] = []
    subscription = await js.subscribe(
        "inbox.>",
        stream="WORK",
        durable="worker",
        queue="worker",
        manual_ack=True,
        config=ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1, ack_wait=5, deliver_policy=DeliverPolicy.ALL
        ),
    )
    for step in range(20):
        await js.publish(f"inbox.{step % 3}", b"%d" % step)
    for _ in range(20):
        message = await subscription.next_msg(10)
        await message.in_progress()
        seen.append((message.subject, message.data, message.metadata.num_delivered))
        await message.ack_sync(timeout=60)
    seen.append((await js.stream_info("WORK")).state.messages)
    return seen


@program
async def redelivery(connect: Connect) -> list[Any]:
    js = (await connect()).jetstream()
    await js.add_stream(name="S", subjects=["s"])
    await js.publish("s", b"x")
    pull = await js.pull_subscribe("s", "c", config=ConsumerConfig(ack_wait=0.3, max_deliver=4))
    seen: list[Any] = []
    (message,) = await pull.fetch(1, timeout=60)
    seen.append(message.metadata.num_delivered)
    (message,) = await pull.fetch(1, timeout=60)
    seen.append(message.metadata.num_delivered)
    await message.nak()
    (message,) = await pull.fetch(1, timeout=60)
    seen.append(message.metadata.num_delivered)
    await message.nak(delay=0.1)
    (message,) = await pull.fetch(1, timeout=60)
    seen.append(message.metadata.num_delivered)
    await message.term()
    try:
        await pull.fetch(1, timeout=0.7)
    except nats.errors.TimeoutError:
        seen.append("nothing more")
    return seen


@program
async def advisories(connect: Connect) -> list[Any]:
    client = await connect()
    js = client.jetstream()
    events = await client.subscribe("$JS.EVENT.ADVISORY.>")
    await settled(client)
    await js.add_stream(name="S", subjects=["s"])
    await js.publish("s", b"x")
    pull = await js.pull_subscribe("s", "c")
    (message,) = await pull.fetch(1, timeout=60)
    await message.term()
    await js.delete_consumer("S", "c")
    await js.delete_stream("S")
    seen = set()
    wanted = {
        "$JS.EVENT.ADVISORY.STREAM.CREATED.S",
        "$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.c",
        "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c",
        "$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.c",
        "$JS.EVENT.ADVISORY.STREAM.DELETED.S",
        "$JS.EVENT.ADVISORY.API",
    }
    while not wanted <= seen:
        seen.add((await events.next_msg(5)).subject)
    return sorted(seen)
