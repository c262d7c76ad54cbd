"""The store is open elsewhere at the same time: messages and interest cross between clients and other processes.

A clone stands for another process: it has its own connection to the file, and is told of commits in the same way.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pelton
from pelton.api import StoreBusyError
from pelton.server import Server
from tests.server.conftest import Connected, settled
from tests.server.raw import raw_client


@pytest.fixture
async def jet(server: Server):
    async with pelton.open(server.settings.stores["$G"].path) as jet:
        yield jet


async def test_what_another_process_publishes_reaches_clients(connected: Connected, jet: pelton.Jet) -> None:
    client = await connected()
    await jet.create_stream("S", subjects=["s.>"])
    wild, exact, group = (
        await client.subscribe("s.*"),
        await client.subscribe("s.a"),
        await client.subscribe("s.a", "workers"),
    )
    await settled(client)
    await jet.publish("s.a", b"stored")
    for subscription in (wild, exact, group):
        assert (await subscription.next_msg(5)).data == b"stored"
    await jet.backend.send("s.a", b"sent")
    assert (await exact.next_msg(5)).data == b"sent"
    await settled(client)
    assert wild.pending_msgs <= 1


async def test_what_a_client_publishes_reaches_other_processes_once(connected: Connected, jet: pelton.Jet) -> None:
    client = await connected()
    await jet.create_stream("S", subjects=["s.>"])
    own = await client.subscribe("*.a")
    await settled(client)
    stored, plain = await jet.subscribe("s.a"), await jet.subscribe("p.a")
    await asyncio.wait_for(client.jetstream().publish("s.a", b"1"), 60)
    await client.publish("p.a", b"2", reply="back", headers={"x": "y"})
    first, second = await stored.next(timeout=60), await plain.next(timeout=60)
    assert first is not None
    assert second is not None
    assert (first.data, second.data) == (b"1", b"2")
    assert [(await own.next_msg(5)).data for _ in range(2)] == [b"1", b"2"]
    await settled(client)
    assert own.pending_msgs == 0


async def test_a_request_is_answered_from_another_process(connected: Connected, jet: pelton.Jet) -> None:
    client = await connected()
    service = await jet.subscribe("service")

    async def serve() -> None:
        message = await service.next(timeout=60)
        assert message is not None
        await jet.backend.send(message.reply, message.data.upper())

    serving = asyncio.ensure_future(serve())
    await settled(client)
    assert (await client.request("service", b"hi", timeout=60)).data == b"HI"
    await serving


async def test_one_member_of_a_group_across_processes(connected: Connected, jet: pelton.Jet) -> None:
    client = await connected()
    here = await client.subscribe("work", "crew")
    await settled(client)
    there = await jet.subscribe("work", queue="crew")
    for number in range(40):
        await jet.backend.send("work", b"%d" % number)
    got_there = []
    while (message := await there.next(timeout=0.3)) is not None:
        got_there.append(message.data)
    got_here = [(await here.next_msg(5)).data for _ in range(40 - len(got_there))]
    assert sorted(got_there + got_here) == sorted(b"%d" % number for number in range(40))
    assert got_there
    assert got_here
    # Members that are clients of the server come first for what its clients publish.
    other = await connected()
    for _ in range(10):
        await other.publish("work", b"own")
    assert [(await here.next_msg(5)).data for _ in range(10)] == [b"own"] * 10


async def test_a_client_waits_for_what_another_process_stores(connected: Connected, jet: pelton.Jet) -> None:
    client = await connected()
    stream = await jet.create_stream("S", subjects=["s"])
    await stream.create_consumer(durable_name="c")
    pull = await client.jetstream().pull_subscribe_bind("c", "S")
    waiting = asyncio.ensure_future(pull.fetch(1, timeout=60))
    while (await (await stream.consumer("c")).info()).num_waiting == 0 and not waiting.done():
        await settled(client)
        break
    await jet.publish("s", b"x")
    (message,) = await waiting
    assert message.data == b"x"
    await message.ack_sync(timeout=60)


async def test_a_push_consumer_of_another_process_delivers_to_a_client(connected: Connected, jet: pelton.Jet) -> None:
    client = await connected()
    subscription = await client.subscribe("deliver.here")
    await settled(client)
    stream = await jet.create_stream("S", subjects=["s"])
    await stream.create_consumer(durable_name="c", deliver_subject="deliver.here", ack_policy="explicit")
    await jet.publish("s", b"x")
    message = await subscription.next_msg(5)
    assert (message.subject, message.data) == ("s", b"x")
    await message.ack_sync(timeout=60)


async def test_ten_thousand_subscriptions_are_few_rows(server: Server, jet: pelton.Jet) -> None:
    async with raw_client(server.endpoints[0].port) as client:
        for number in range(10_000):
            client.sub(f"_INBOX.x.{number}", f"i{number}")
            client.sub(f"many.{number}", f"m{number}")
        assert await client.settle() == []
        rows = jet.backend._db.execute("SELECT count(*) FROM pubsub_subscriptions").fetchone()[0]
        assert rows < 100
        await jet.backend.send("many.77", b"x")
        assert await client.take(1) == ["m77 many.77 - [] b'x'"]
        for number in range(10_000):
            client.send(f"UNSUB i{number}", f"UNSUB m{number}")
        assert await client.settle() == []


async def test_a_client_waits_until_others_know_of_its_subscription(
    server: Server, connected: Connected, jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be busy when a row is to be made: no ping is answered before it is there."""
    account = server.account("$G")
    assert account is not None
    assert account.link is not None
    serving, failures = account.link.serving, ["once"]
    change = serving.change

    async def busy_once(*rows: Any) -> list[int]:
        if failures:
            failures.pop()
            raise StoreBusyError("store.pelton", "busy")
        return await change(*rows)

    monkeypatch.setattr(serving, "change", busy_once)
    client = await connected()
    told = await client.subscribe("here")
    await settled(client)
    assert not failures
    await jet.backend.send("here", b"x")
    assert (await told.next_msg(5)).data == b"x"


async def test_nobody_waits_for_subscriptions_of_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client subscribes without end: its pings wait for what it asked for before them, and others for nothing."""
    account = server.account("$G")
    assert account is not None
    assert account.link is not None
    serving, going = account.link.serving, asyncio.Event()
    change, sizes = serving.change, []

    async def slowly(joins: Any, leaves: Any) -> list[int]:
        sizes.append(len(joins) + len(leaves))
        await going.wait()
        return await change(joins, leaves)

    monkeypatch.setattr(serving, "change", slowly)
    port = server.endpoints[0].port
    async with raw_client(port) as client, raw_client(port) as other, raw_client(port) as third:
        client.sub("first", "1", "g")
        while not sizes:
            await asyncio.sleep(0)
        client.send(*[f"SUB a.{number} g x{number}" for number in range(1000)], "PING", "PING")
        while server.clients[0].num_subscriptions < 1001:
            await asyncio.sleep(0)
        assert await other.settle() == []
        other.sub("b", "1", "g")
        other.pub("b", b"x")
        other.send("PING")
        third.sub("c", "1")
        third.pub("c", b"x")
        assert await third.take(1) == ["1 c - [] b'x'"]
        going.set()
        assert await client.take(2) == ["Pong", "Pong"]
        assert await other.take(2) == ["1 b - [] b'x'", "Pong"]
    # Many in a transaction.
    assert len(sizes) < 30
