"""How consumers went: one small note a minute, whoever writes it, beside all that anybody lists."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import dashboard
from pelton.api import ConsumerList, MinuteNote, MinuteNotes, StreamInfoRequest
from pelton.api.times import SECOND
from pelton.jet.backlogs import MINUTE, StreamTrend, note_backlogs, stream_trend
from pelton.queue.scan import keep_trends, trend_points
from pelton.testing import ManualRuntime, manual_runtime

DAY = 1440


def to_next_minute(runtime: ManualRuntime, minutes: int = 1) -> None:
    runtime.clock.advance((MINUTE - runtime.clock.now() % MINUTE) / 1e9 + (minutes - 1) * 60 + 0.5)


async def trend_of(jet: pelton.Jet, name: str = "orders", minutes: int = DAY) -> StreamTrend:
    info = await jet.backend.call(StreamInfoRequest(name=name))
    consumers = (await jet.backend.call(ConsumerList(stream=name))).consumers
    found = await stream_trend(jet, info, consumers, jet.runtime.clock.now() - minutes * MINUTE)
    assert found is not None
    return found


async def values_of(jet: pelton.Jet, consumer: str = "packer") -> list[tuple[int, int]]:
    return [(one.pending, one.ack_pending) for one in (await trend_of(jet)).backlogs[consumer]]


async def orders(jet: pelton.Jet, **config: Any) -> pelton.Consumer:
    stream = await jet.create_stream("orders", subjects=["orders"], **config)
    return await stream.create_consumer(durable_name="packer", ack_policy="explicit", ack_wait=1e6)


async def test_notes_say_what_is_pending_and_are_seen_nowhere_else(tmp_path: Path) -> None:
    runtime, path = manual_runtime(), tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet, pelton.open(path, runtime=runtime) as other:
        packer = await orders(jet, retention="workqueue")
        to_next_minute(runtime)
        for _ in range(3):
            await jet.publish("orders", b"x")
            await asyncio.gather(note_backlogs(jet), note_backlogs(other))
            await note_backlogs(other)
            to_next_minute(runtime)
        messages = await packer.fetch(2)
        await note_backlogs(other)
        to_next_minute(runtime)
        messages += await packer.fetch(1)
        for message in messages:
            await message.ack()
        await note_backlogs(jet)
        assert await values_of(jet) == [(1, 0), (2, 0), (3, 0), (1, 2), (0, 0)]
        assert [seq for _, seq in (await trend_of(jet)).last_seqs] == [1, 2, 3, 3, 3]
        account = await jet.account_info()
        assert (account.streams, account.consumers, await jet.stream_names()) == (1, 1, ["orders"])
    assert pelton.verify(path) == []
    async with pelton.open(path, runtime=runtime) as jet:
        await jet.publish("orders", b"x")
        to_next_minute(runtime)
        await note_backlogs(jet)
    async with pelton.open(path, read_only=True, runtime=runtime) as look:
        to_next_minute(runtime)
        await note_backlogs(look)
        assert (await values_of(look))[-2:] == [(0, 0), (1, 0)]


async def test_what_was_deleted_is_gone_and_what_cannot_be_read_is_none() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        stream = await jet.stream((await orders(jet)).stream_name)
        for name in ("other", "third"):
            await stream.create_consumer(durable_name=name, ack_policy="explicit")
        to_next_minute(runtime, 9)
        minute = runtime.clock.now() // MINUTE
        for ago, data in enumerate(
            (b"", b"\xff{", b"null", b'[1,true,[["orders",null,3,4]],{}]', b"x" * 9000), start=2
        ):
            await jet.backend.call(MinuteNote(minute=minute - ago, data=data))
        await jet.publish("orders", b"x")
        to_next_minute(runtime)
        await note_backlogs(jet)
        await stream.delete_consumer("other")
        await stream.delete_consumer("third")
        to_next_minute(runtime)
        await stream.create_consumer(durable_name="other", ack_policy="explicit")
        assert set((await trend_of(jet)).backlogs) == {"packer", "other"}
        assert (await values_of(jet), await values_of(jet, "other")) == ([(1, 0)], [])
        to_next_minute(runtime)
        await note_backlogs(jet)
        assert (await values_of(jet), await values_of(jet, "other")) == ([(1, 0)] * 2, [(1, 0)])
        await jet.delete_stream("orders")
        runtime.clock.advance(60)
        await orders(jet)
        assert await values_of(jet) == []


@pytest.mark.parametrize("step", [-86_400, -3600, -240, 240, 86_400])
async def test_a_clock_that_is_set_leaves_the_points_of_now(step: int) -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await orders(jet)
        queue = await jet.queue("garage")

        @queue.job
        async def repair() -> None: ...

        runtime.clock.advance(2 * 86_400)
        keeping = asyncio.create_task(keep_trends(jet))
        writing = [0]

        async def passes(minutes: int) -> None:
            for _ in range(minutes):
                await jet.publish("orders", b"x")
                await repair.enqueue()
                writing[0] += 1
                for _ in range(7):
                    runtime.clock.advance(10)
                    await settled(jet)

        await passes(5)
        runtime.clock.set_wall(runtime.clock.now() + step * SECOND)
        await passes(3)
        minutes = [point.minute for point in (await trend_of(jet, minutes=5)).backlogs["packer"]]
        assert len(minutes) == len(set(minutes)) >= 2
        assert (await values_of(jet))[-1][0] >= writing[0] - 2
        points = await trend_points(jet, queue.name, runtime.clock.now() - 5 * MINUTE)
        assert len(points) >= 2
        assert points[-1].depth >= writing[0] - 2
        keeping.cancel()
        assert (await asyncio.gather(keeping, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def settled(jet: pelton.Jet) -> None:
    for _ in range(30):
        await jet.backend.call(MinuteNotes(first=0, last=0))
        await asyncio.sleep(0)


@pytest.mark.parametrize("settings", [{}, {"actions": False}])
async def test_a_page_in_an_application_writes_points_until_the_store_is_closed(settings: dict[str, Any]) -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        dashboard.app(jet, **settings)
        await orders(jet)
        for _ in range(14):
            runtime.clock.advance(10)
            await settled(jet)
        assert bool(await values_of(jet)) == (not settings)
        writing = [task for task in asyncio.all_tasks() if task.get_name() == "pelton notes how the store went"]
    runtime.clock.advance(71)
    await asyncio.gather(*writing)


async def test_a_note_is_bounded_and_keeps_those_with_most_to_do() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        stream = await jet.create_stream("orders", subjects=["orders.*"])
        for number in range(150):
            await stream.create_consumer(
                durable_name=f"{number:03}" + "n" * 200, filter_subject="orders.few" if number % 75 else "orders.many"
            )
        await jet.publish("orders.few", b"x")
        for _ in range(3):
            await jet.publish("orders.many", b"x")
        to_next_minute(runtime)
        await note_backlogs(jet)
        (data,) = (await jet.backend.call(MinuteNotes(first=(m := runtime.clock.now() // MINUTE - 1), last=m))).notes
        assert 2000 < len(data) <= 8192
        drawn = {name: points for name, points in (await trend_of(jet)).backlogs.items() if points}
        assert len(drawn) < 50
        assert {name[:3] for name, points in drawn.items() if points[-1].pending == 3} == {"000", "075"}
        # What is not in a note that is not complete is unknown: not none.
        assert {points[-1].pending for points in drawn.values()} == {1, 3}


async def test_a_full_disk_costs_points_and_nothing_else() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await orders(jet)
        stream = await jet.stream("orders")
        for number in range(30):
            # A note that does not fit into the pages that are there.
            await stream.create_consumer(durable_name=f"{number}" + "n" * 200)
        keeping = asyncio.create_task(keep_trends(jet))
        backend: Any = jet.backend
        pages = backend.session.db.connection.execute
        most = pages("PRAGMA max_page_count").fetchone()[0]
        for is_full in (True, False):
            await jet.publish("orders", b"x")
            pages(f"PRAGMA max_page_count={1 if is_full else most}")
            for _ in range(14):
                runtime.clock.advance(10)
                await settled(jet)
            assert (keeping.done(), bool(await values_of(jet))) == (False, not is_full)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
