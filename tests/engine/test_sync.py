"""Failing syncs to disk, and what each sync mode guarantees."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import pelton
from pelton.api import StoreClosedError, StoreFailedError
from pelton.engine.salvage import recount
from pelton.runtime import pause, stopwatch
from tests.kit.faults import FaultySync
from tests.storage.processes import Child
from tests.storage.stores import a_store, last_seq, open_engine


async def publish_for_ever(jet: pelton.Jet) -> None:
    while True:
        await jet.publish("s.bad")


async def rejected(awaitables: list[object]) -> None:
    for result in await asyncio.wait_for(asyncio.gather(*awaitables, return_exceptions=True), 60):  # type: ignore[call-overload]
        assert isinstance(result, StoreFailedError), result


@pytest.mark.parametrize("callers", [1, 5, 300])
async def test_a_failed_sync_acknowledges_nobody_until_reopened(tmp_path: Path, callers: int) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    jet = open_engine(path, sync_file=disk)
    await jet.publish("s.good")
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c")
    held = await consumer.fetch(1)
    disk.broken = True
    await rejected([jet.publish("s.bad") for _ in range(callers)])
    disk.broken = False
    # The disk may work again; the data that it dropped in the meantime does not return.
    await rejected([jet.publish("s.bad"), jet.publish_batch([("s.bad", b"")]), held[0].ack(), consumer.fetch(1)])
    await rejected([stream.info(), jet.create_stream("t"), stream.purge()])
    await jet.close()
    async with pelton.open(path) as again:
        # The unacknowledged may be stored or not; the acknowledged are, and the checksums match.
        assert await last_seq(again) >= 4
        assert (await (await again.stream("s")).get_last_message("s.good")).seq == 4
        await again.publish("s.good")
    assert recount(str(path)) == []


async def test_questions_wait_for_no_sync(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    async with open_engine(path, sync_file=disk) as jet:
        stream = await jet.stream("s")
        consumer = await stream.create_consumer(durable_name="c")
        disk.broken = True
        assert (await consumer.info()).name == "c"
        assert await stream.consumer_names() == ["c"]
        assert (await stream.info()).config.name == "s"
        disk.broken = False
        await jet.publish("s.good")


async def test_a_sync_that_fails_on_its_thread_takes_those_who_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    jet = open_engine(path, sync_file=disk)
    await jet.publish("s.good")
    calls = disk.calls
    disk.gate.clear()
    # The first comes alone and is synced at once, the others share a sync on the thread.
    first, *others = [asyncio.ensure_future(jet.publish("s.bad")) for _ in range(100)]
    while disk.calls < calls + 2:
        await asyncio.sleep(0)
    meanwhile = [asyncio.ensure_future(jet.publish("s.bad")) for _ in range(100)]
    await asyncio.sleep(0)
    disk.broken = True
    disk.gate.set()
    assert (await first).seq == 5
    await rejected([*others, *meanwhile])
    await rejected([jet.publish("s.bad") for _ in range(3)])
    await jet.close()
    assert recount(str(path)) == []


async def test_a_waiting_pull_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    jet = open_engine(path, sync_file=disk)
    consumer = await (await jet.stream("s")).create_consumer(deliver_policy="new", durable_name="c")
    waiting = asyncio.ensure_future(consumer.fetch(timeout=30))
    await asyncio.sleep(0)
    disk.broken = True
    await rejected([jet.publish("s.bad")])
    # Delivery needs no sync: the message may have reached it, or the failure has.
    result = (await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 60))[0]
    assert isinstance(result, list | StoreFailedError)
    await jet.close()


async def test_the_interval_mode_syncs_later_and_fails_later(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    jet = open_engine(path, sync_file=disk, sync="interval", interval=0.01)
    await jet.publish("s.good")
    disk.broken = True
    with pytest.raises(StoreFailedError):
        await publish_for_ever(jet)
    await jet.close()
    async with pelton.open(path) as again:
        await again.publish("s.good")
    assert recount(str(path)) == []


async def test_close_syncs_what_the_interval_has_not(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    jet = open_engine(path, sync_file=disk, sync="interval", interval=3600)
    await jet.publish("s.1")
    assert disk.calls == 0
    await jet.close()
    assert disk.calls == 1


async def test_every_durable_answer_of_the_commit_mode_follows_a_sync(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    jet = open_engine(path, sync_file=disk)
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c")
    for call in (
        lambda: jet.publish("s.1"),
        lambda: jet.publish_batch([("s.1", b""), ("s.2", b"")]),
        lambda: stream.delete_message(1),
        lambda: jet.create_stream("t"),
        lambda: jet.delete_stream("t"),
        lambda: stream.purge(keep=4),
    ):
        before = disk.calls
        await call()
        assert disk.calls == before + 1
    messages = await consumer.fetch(3)
    before = disk.calls
    await messages[0].ack()
    await consumer.ack(messages[1:])
    assert disk.calls == before + 2
    before = disk.calls
    await asyncio.gather(*(jet.publish("s.1") for _ in range(500)))
    assert disk.calls <= before + 3, "those who wait together share a sync"
    await jet.close()


async def _publish(pipe: object, path: Path, sync: str) -> None:
    async with pelton.open(path, sync=sync) as jet:  # type: ignore[arg-type]
        for _ in range(50):
            pipe.send((await jet.publish(f"s.{sync}")).seq)  # type: ignore[attr-defined]


async def test_openers_with_different_sync_modes_get_on(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    children = [Child(_publish, path, mode) for mode in ("commit", "interval", "off")]
    said = [seq for child in children for seq in child.hear_all()]
    assert sorted(said) == list(range(4, 154))
    for child in children:
        child.kill()
    assert recount(str(path)) == []


async def test_work_after_close_is_refused_and_waiting_pulls_end(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    jet = await pelton.open(path)
    consumer = await (await jet.stream("s")).create_consumer(deliver_policy="new", durable_name="c")
    waiting = asyncio.ensure_future(consumer.fetch(timeout=None))
    under_way = [asyncio.ensure_future(jet.publish("s.1")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(jet.close(), jet.close())
    assert [ack.seq for ack in await asyncio.gather(*under_way)] == list(range(4, 54))
    result = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(result, list | StoreClosedError)
    for call in (jet.publish("s.1"), jet.publish_batch([("s.1", b"")]), consumer.fetch(1), jet.stream("s")):
        with pytest.raises(StoreClosedError):
            await call
    await jet.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pelton"]


async def test_waiting_for_a_cpu_is_not_the_disks_slowness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone publish is synced on the loop's own thread, unless the disk itself is slow."""
    queued, is_starved, threads = 0.0, False, list[int]()
    path = tmp_path / "a.pelton"
    await a_store(path)

    def starved(descriptor: int) -> None:
        nonlocal queued
        threads.append(threading.get_ident())
        start = stopwatch()
        pause(0.005)
        queued += stopwatch() - start if is_starved else 0

    monkeypatch.setattr("pelton.storage.committer.cpu_wait", lambda: queued)
    jet = open_engine(path, sync_file=starved)
    for is_starved in (False, True):
        for _ in range(60):
            await jet.publish("s.a")
        assert (threads[-1] == threading.get_ident()) is is_starved
    await jet.close()
