"""Subscriptions: in one process, across several, in groups, and what is not delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import ConfigError, ExpectationError, Incoming, Outgoing, StoreClosedError
from pelton.engine import Engine, bus, pushes
from pelton.engine.salvage import recount
from pelton.testing import ManualRuntime, manual_runtime
from tests.storage.processes import Child, hear_in_child
from tests.storage.stores import raw


def _engine(jet: pelton.Jet) -> Engine:
    assert isinstance(jet.backend, Engine)
    return jet.backend


async def _orders(path: str | Path, **options: Any) -> pelton.Jet:
    jet = await pelton.open(path, sync="off", **options)
    await jet.create_stream("orders", subjects=["orders.>"])
    return jet


async def _heard(listening: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        message = await listening.next(20)
        assert message is not None, f"only {found}"
        found.append(message.data)
    return found


def _rows(path: Path, table: str) -> int:
    with raw(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def test_what_is_published_is_heard_in_order() -> None:
    async with await _orders("memory:") as jet:
        every = await _engine(jet).subscribe("orders.>")
        europe = await _engine(jet).subscribe("orders.eu.*")
        await jet.publish("orders.eu.1", b"a", headers={"K": "v"})
        await jet.publish_batch([("orders.us.1", b"b"), ("orders.eu.2", b"c")])
        first = await every.next(5)
        assert first == Incoming("orders.eu.1", b"a", b"NATS/1.0\r\nK: v\r\n\r\n")
        assert await _heard(every, 2) == [b"b", b"c"]
        assert await _heard(europe, 2) == [b"a", b"c"]
        assert await europe.next(0) is None


async def test_nothing_from_before_and_nothing_after() -> None:
    async with await _orders("memory:") as jet:
        await jet.publish("orders.1", b"before")
        listening = await _engine(jet).subscribe("orders.*")
        await jet.publish("orders.1", b"during")
        assert await _heard(listening, 1) == [b"during"]
        await listening.close()
        await listening.close()
        await jet.publish("orders.1", b"after")
        with pytest.raises(StoreClosedError):
            await listening.next(5)
        assert not _engine(jet).session.bus.has_subscriptions


async def test_what_is_refused_is_not_heard_and_its_neighbours_are() -> None:
    async with await _orders("memory:") as jet:
        listening = await _engine(jet).subscribe("orders.>")
        results = await asyncio.gather(
            jet.publish("orders.1", b"a"),
            jet.publish("orders.1", b"b", expected_last_seq=77),
            jet.publish("orders.1", b"c"),
            return_exceptions=True,
        )
        assert isinstance(results[1], ExpectationError)
        assert await _heard(listening, 2) == [b"a", b"c"]
        assert await listening.next(0) is None


async def test_a_rolled_back_group_is_not_heard_twice() -> None:
    async with await _orders("memory:") as jet:
        queue = await jet.create_stream("work", subjects=["work.>"])
        consumer = await queue.create_consumer(durable_name="c")
        await jet.publish("work.1")
        await jet.publish("work.2")
        listening = await _engine(jet).subscribe("orders.>")
        taken = [message.delivered for message in await consumer.fetch(2)]
        ops = [pelton.api.AckOp(seq=one.seq, consumer_seq=one.consumer_seq) for one in taken]
        backend = jet.backend
        # The second settlement cannot publish, so the group is rolled back and each runs again by itself.
        results = await asyncio.gather(
            backend.settle([Outgoing("orders.1", b"good")], "work", "c", ops[0]),
            backend.settle([Outgoing("orders.1", b"lost"), Outgoing("nowhere", b"")], "work", "c", ops[1]),
            return_exceptions=True,
        )
        assert isinstance(results[1], pelton.api.NoStreamForSubjectError)
        assert await _heard(listening, 1) == [b"good"]
        assert await listening.next(0) is None


async def test_one_member_of_a_group_hears_each() -> None:
    async with await _orders("memory:") as jet:
        members = [await _engine(jet).subscribe("orders.>", "workers") for _ in range(3)]
        other = await _engine(jet).subscribe("orders.>", "audit")
        await jet.publish_batch([("orders.1", b"%d" % number) for number in range(60)])
        assert await _heard(other, 60) == [b"%d" % number for number in range(60)]
        shares: list[Sequence[bytes]] = []
        for member in members:
            share = []
            while (message := await member.next(0)) is not None:
                share.append(message.data)
            shares.append(share)
        assert sorted(int(data) for share in shares for data in share) == list(range(60))
        assert all(shares), "the work is spread"


async def test_engines_on_one_file_hear_each_other_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with await _orders(path) as here, await pelton.open(path, sync="off") as there:
        listening = await _engine(here).subscribe("orders.>")
        await there.publish("orders.1", b"1")
        await there.publish_batch([("orders.1", b"2"), ("orders.1", b"3")])
        await here.publish("orders.1", b"4")
        await there.publish("orders.1", b"5")
        assert await _heard(listening, 5) == [b"1", b"2", b"3", b"4", b"5"]
        await listening.close()
        outbox = _rows(path, "pubsub_outbox")
        await there.publish("orders.1", b"6")
        assert _rows(path, "pubsub_outbox") == outbox, "nobody listens, so nothing is written"
    assert recount(str(path)) == []


async def test_groups_reach_across_engines(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with await _orders(path) as here, await pelton.open(path, sync="off") as there:
        mine, theirs = await _engine(here).subscribe("orders.>", "g"), await _engine(there).subscribe("orders.>", "g")
        done = await _engine(there).subscribe("orders.done")
        for number in range(40):
            await here.publish("orders.1", b"%d" % number)
        await here.publish("orders.done")
        await _heard(done, 1)
        found: list[list[bytes]] = [[], []]
        for share, member in zip(found, (mine, theirs), strict=True):
            while (message := await member.next(0)) is not None:
                if message.subject == "orders.1":
                    share.append(message.data)
        assert sorted(int(data) for share in found for data in share) == list(range(40))
        assert found[0]
        assert found[1]


async def _listen(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        listening = await _engine(jet).subscribe("orders.>")
        pipe.send("listening")
        pipe.send(await _heard(listening, 2))
        await hear_in_child(pipe)


async def test_another_process_hears_and_a_dead_one_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with await _orders(path) as jet:
        with Child(_listen, path) as child:
            assert await child.heard() == "listening"
            await jet.publish("orders.1", b"a")
            await jet.publish("orders.2", b"b")
            assert await child.heard() == [b"a", b"b"]
            child.kill()
        assert _rows(path, "pubsub_subscriptions") == 1
        # The first to notice a dead subscriber removes it.
        for number in range(3):
            await jet.publish("orders.1", b"%d" % number)
        assert _rows(path, "pubsub_subscriptions") == 0
        assert not _engine(jet).session.bus.has_subscriptions


async def test_closing_a_store_ends_its_listeners(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    jet = await _orders(path)
    listening = await _engine(jet).subscribe("orders.>")
    waiting = asyncio.ensure_future(listening.next())
    await asyncio.sleep(0)
    await jet.close()
    with pytest.raises(StoreClosedError):
        await waiting
    assert _rows(path, "pubsub_subscriptions") == 0


async def test_a_reader_that_is_slow_loses_the_newest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pushes, "_KEPT", 3)
    async with await _orders("memory:") as jet:
        listening = await _engine(jet).subscribe("orders.>")
        await jet.publish_batch([("orders.1", b"%d" % number) for number in range(9)])
        assert await _heard(listening, 3) == [b"0", b"1", b"2"]
        assert await listening.next(0) is None
        assert caplog.text.count("read too slowly") == 1


async def test_what_is_kept_for_other_processes_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pelton"
    monkeypatch.setattr(bus, "_KEPT_ROWS", 10)
    monkeypatch.setattr(bus, "_KEPT_BYTES", 100)
    async with await _orders(path) as here, await pelton.open(path, sync="off") as there:
        listening = await _engine(here).subscribe("orders.>")
        await there.publish("orders.1", b"first")
        await _heard(listening, 1)
        await there.publish_batch([("orders.1", b"") for _ in range(50)])
        assert _rows(path, "pubsub_outbox") <= 12
        await there.publish_batch([("orders.1", bytes(60)) for _ in range(5)])
        assert _rows(path, "pubsub_outbox") <= 3
        await there.publish("orders.1", b"end")
        while (message := await listening.next(20)) is not None and message.data != b"end":
            pass
        assert message is not None
        assert "read them too late" in caplog.text


async def test_waiting_ends_with_the_clock() -> None:
    runtime: ManualRuntime = manual_runtime()
    async with await _orders("memory:", runtime=runtime) as jet:
        listening = await _engine(jet).subscribe("orders.>")
        waiting = asyncio.ensure_future(listening.next(10))
        await asyncio.sleep(0)
        runtime.clock.advance(9.9)
        await asyncio.sleep(0)
        assert not waiting.done()
        runtime.clock.advance(0.2)
        assert await waiting is None


@pytest.mark.parametrize(("subject", "queue"), [("", ""), ("a..b", ""), ("a b", ""), (">.a", ""), ("a", "b c")])
async def test_bad_names_are_refused(subject: str, queue: str) -> None:
    async with pelton.open("memory:") as jet:
        with pytest.raises(ConfigError, match="subscribe to"):
            await _engine(jet).subscribe(subject, queue)


async def test_a_cancelled_subscriber_leaves(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with await _orders(path) as jet:
        joining = asyncio.ensure_future(_engine(jet).subscribe("orders.>"))
        await asyncio.sleep(0)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert _rows(path, "pubsub_subscriptions") == 0


async def test_a_channel_that_cannot_wake_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.storage.wake.WakeChannel._join", lambda self: False)
    path = tmp_path / "a.pelton"
    async with await _orders(path) as here, await pelton.open(path, sync="off") as there:
        listening = await _engine(here).subscribe("orders.>")
        await there.publish("orders.1", b"a")
        assert await _heard(listening, 1) == [b"a"]
