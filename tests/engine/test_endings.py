"""A store that an opener can never use again: everything that waits on it is notified, even if nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest

import pelton
from pelton import Jet
from pelton.api import StoreError, StoreFailedError, StoreGoneError, StoreKeyError, StoreVersionError, TermLostError
from pelton.engine import Engine
from pelton.engine.read_only_engine import ReadOnlyEngine
from pelton.locks import Election
from tests.kit.faults import FaultySync
from tests.storage.processes import Child
from tests.storage.stores import open_engine, raw

SOON = 30.0
LONG = 3600


class Openers(NamedTuple):
    """The opener that waits, and another one of the same store."""

    jet: Jet
    other: Jet
    disk: FaultySync
    path: Path


async def rekeyed(openers: Openers) -> None:
    await openers.other.rekey("new")


async def own_sync_failed(openers: Openers) -> None:
    openers.disk.broken = True
    with pytest.raises(StoreFailedError):
        await openers.jet.publish("t")


async def others_sync_failed(openers: Openers) -> None:
    openers.disk.broken = True
    with pytest.raises(StoreFailedError):
        await openers.other.publish("t")


async def removed(openers: Openers) -> None:
    openers.path.unlink()


async def carried_to_a_newer_schema(openers: Openers) -> None:
    with raw(openers.path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA user_version=99")
        connection.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
        connection.execute("COMMIT")


WAYS = {
    "newer schema": (carried_to_a_newer_schema, StoreVersionError),
    "rekeyed": (rekeyed, StoreKeyError),
    "own sync failed": (own_sync_failed, StoreFailedError),
    "other's sync failed": (others_sync_failed, StoreFailedError),
    "removed": (removed, StoreGoneError),
}
Befalls = Callable[[Openers], Awaitable[None]]


@pytest.fixture
async def openers(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Openers]:
    path, disk = tmp_path / "a.pelton", FaultySync()
    # Only where a key is replaced there is one: it takes a while to derive.
    key = b"old" if "rekeyed" in request.node.name or "another_key" in request.node.name else None
    async with (
        open_engine(path, key=key, sync_file=disk) as jet,
        open_engine(path, key=key, sync_file=disk) as other,
    ):
        await jet.create_stream("s", subjects=["s.>"])
        await jet.create_stream("t", subjects=["t"], max_msgs=1)
        yield Openers(jet, other, disk, path)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Befalls, type[StoreError]]:
    return WAYS[request.param]


async def told(waiting: Awaitable[object], openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    """Start to wait, make the store end for its opener, and check that the wait ends with it."""
    befalls, error = way
    task = asyncio.ensure_future(waiting)
    async with asyncio.timeout(SOON):
        await settled(openers.jet)
        assert not task.done()
        await befalls(openers)
        with pytest.raises(error):
            await task


async def settled(jet: Jet) -> None:
    """Return once the started task waits: its requests to the store are made by then."""
    for _ in range(20):
        await jet.publish("t")


async def first(messages: AsyncIterator[object]) -> object:
    return await anext(messages)


async def test_a_pull_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    consumer = await (await openers.jet.stream("s")).create_consumer(durable_name="c")
    await told(consumer.fetch(1, timeout=None), openers, way)


async def test_a_pull_of_a_priority_group_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    stream = await openers.jet.stream("s")
    consumer = await stream.create_consumer(
        durable_name="c", priority_policy="prioritized", priority_groups=["g"], ack_wait=30
    )
    await told(consumer.fetch(1, timeout=None, group="g"), openers, way)


async def test_an_iteration_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    consumer = await (await openers.jet.stream("s")).create_consumer(durable_name="c")
    await told(first(consumer.messages()), openers, way)


async def test_a_push_consumer_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    stream = await openers.jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c", deliver_subject="to.me")
    await told(first(consumer.messages()), openers, way)


async def test_a_callback_s_consumer_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    consumer = await (await openers.jet.stream("s")).create_consumer(durable_name="c")
    await told(consumer.consume(print), openers, way)


async def test_a_subscription_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    async with await openers.jet.subscribe("x.>") as listening:
        await told(listening.next(), openers, way)


async def test_an_ordered_reader_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    bucket = await openers.jet.create_bucket("b")
    await bucket.put("k", b"v")

    async def watch() -> None:
        async for _ in bucket.watch():
            pass

    await told(watch(), openers, way)


async def test_whoever_waits_for_a_lock_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    held = await openers.other.lock("car1").acquire()
    await told(openers.jet.lock("car1").acquire(), openers, way)
    assert not held.is_given_back


async def test_a_lock_that_is_held_is_lost(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    held = await openers.jet.lock("car1", ttl=LONG).acquire()
    async with asyncio.timeout(SOON):
        await way[0](openers)
        assert await held.until_lost()
    with pytest.raises(pelton.LockLostError):
        held.check()


async def test_a_candidate_that_waits_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    won = asyncio.Event()
    leading = asyncio.ensure_future(openers.other.elect("e", ttl=60, on_won=lambda term: won.set()).run())
    candidate = openers.jet.elect("e")
    async with asyncio.timeout(SOON):
        await won.wait()
        running = asyncio.ensure_future(candidate.run())
        while candidate.state == "unknown":
            await asyncio.sleep(0)
        await told(running, openers, way)
    # What happens to the other opener is not checked here.
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_a_leader_loses_its_term_and_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    events: list[str] = []
    won = asyncio.Event()
    candidate = openers.jet.elect(
        "e", ttl=LONG, on_won=lambda term: won.set(), on_lost=lambda t: events.append(t.reason)
    )
    running = asyncio.ensure_future(candidate.run())
    async with asyncio.timeout(SOON):
        await won.wait()
        term = candidate.term
        assert term is not None
        await way[0](openers)
        with pytest.raises(way[1]):
            await running
    assert not term.is_held
    assert len(events) == 1
    with pytest.raises(TermLostError):
        term.check()


async def test_the_block_of_a_leader_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    async def lead() -> None:
        async with openers.jet.elect("e", ttl=LONG):
            await way[0](openers)
            await asyncio.Event().wait()

    async with asyncio.timeout(SOON):
        with pytest.raises(way[1]):
            await lead()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_worker_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    queue = await openers.jet.queue("garage")
    await told(queue.work(handle_signals=False), openers, way)


async def test_a_worker_with_a_job_in_hand_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    queue = await openers.jet.queue("garage", lease=3)
    begun, may_end = asyncio.Event(), asyncio.Event()

    @queue.job
    async def repair() -> None:
        begun.set()
        await may_end.wait()

    await repair.enqueue()
    working = asyncio.ensure_future(queue.work(handle_signals=False))
    async with asyncio.timeout(SOON):
        await begun.wait()
        await way[0](openers)
        may_end.set()
        with pytest.raises(way[1]):
            await working


async def test_whoever_waits_for_the_outcome_of_a_job_is_told(
    openers: Openers, way: tuple[Befalls, type[StoreError]]
) -> None:
    queue = await openers.jet.queue("garage")

    @queue.job
    async def repair() -> None: ...

    handle = await repair.enqueue()
    await told(handle.outcome(timeout=None), openers, way)


async def test_whoever_claims_jobs_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    queue = await openers.jet.queue("garage")
    async with queue.claims() as claims:
        await told(claims.take(timeout=600), openers, way)


async def test_whoever_carries_messages_away_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    async with pelton.open("memory:") as hub:
        await told(openers.jet.feed("s", hub), openers, way)


async def test_whoever_carries_messages_there_is_told(openers: Openers, way: tuple[Befalls, type[StoreError]]) -> None:
    async with pelton.open("memory:") as edge:
        await edge.create_stream("e", subjects=["s.>"])
        carrying = asyncio.ensure_future(edge.feed("e", openers.jet))
        async with asyncio.timeout(SOON):
            await way[0](openers)
            await edge.publish("s.1", b"1")
            with pytest.raises(way[1]):
                await carrying


@pytest.mark.parametrize("sync", ["interval", "off"])
async def test_a_read_notices_that_the_store_is_gone(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "a.pelton"
    async with open_engine(path, sync=sync, interval=0.05) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
        await jet.publish("s.1", b"1")
        stream = await jet.stream("s")
        path.unlink()

        async def read() -> None:
            while True:
                await stream.get_message(1)
                await asyncio.sleep(0)

        async with asyncio.timeout(SOON):
            with pytest.raises(StoreGoneError):
                await read()


# --- in another process


async def waits(pipe: Connection, path: str) -> None:
    """Wait for all kinds of events, and report how each wait ended."""
    async with pelton.open(path, key="old") as jet:
        consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
        queue = await jet.queue("garage")
        listening = await jet.subscribe("x.>")
        waits = [
            consumer.fetch(1, timeout=None),
            first(consumer.messages()),
            listening.next(),
            jet.lock("car1").acquire(),
            jet.elect("e").run(),
            queue.work(handle_signals=False),
        ]
        waiting = asyncio.gather(*waits, return_exceptions=True)
        await settled(jet)
        pipe.send("waiting")
        pipe.send([type(ended).__name__ for ended in await waiting])


async def test_another_process_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="old") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await jet.create_stream("t", subjects=["t"], max_msgs=1)
        held = await jet.lock("car1").acquire()
        with Child(waits, str(path)) as child:
            assert await child.heard() == "waiting"
            await jet.rekey("new")
            assert await child.heard() == ["StoreKeyError"] * 6
        await held.release()


# --- a process that changes the key itself goes on


async def test_a_leader_that_gives_its_store_another_key_leads_on(openers: Openers) -> None:
    async with asyncio.timeout(SOON), openers.jet.elect("e", ttl=3) as term:
        await openers.jet.rekey("new")
        await renewals_of("KV_ELECTION_e", openers.jet, 2)
        assert term.is_held
        assert term.token


async def test_a_candidate_that_gives_its_store_another_key_stands_on(openers: Openers) -> None:
    won: list[str] = []

    def candidate(name: str) -> Election:
        return openers.jet.elect("e", name=name, ttl=10, on_won=lambda term: won.append(name))

    first, second = candidate("first"), candidate("second")
    async with asyncio.timeout(SOON):
        leading = asyncio.ensure_future(first.run())
        while not won:
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(second.run())
        while second.state == "unknown":
            await asyncio.sleep(0.01)
        await openers.jet.rekey("new")
        await openers.jet.rekey("newer")
        first.stop()
        await leading
        while len(won) == 1:
            await asyncio.sleep(0.01)
        assert won == ["first", "second"]
        second.stop()
        await waiting


async def test_a_lock_outlives_another_key_of_its_own_process(openers: Openers) -> None:
    held = await openers.jet.lock("car1", ttl=3).acquire()
    async with asyncio.timeout(SOON):
        # From then on its keeper has a connection, with the old key.
        await renewals_of("KV_pelton_locks", openers.jet, 1)
        await openers.jet.rekey("new")
        await renewals_of("KV_pelton_locks", openers.jet, 2)
    assert held.is_held
    await held.release()


async def test_a_job_outlives_another_key_of_its_own_process(openers: Openers) -> None:
    queue = await openers.jet.queue("garage", lease=1)

    @queue.job
    async def repair() -> str:
        await openers.jet.rekey("new")
        # Longer than the lease.
        await asyncio.sleep(1.5)
        return "done"

    handle = await repair.enqueue()
    async with asyncio.timeout(SOON):
        await queue.work(until_empty=True, handle_signals=False)
        assert (await handle.outcome(timeout=1)).value() == "done"


async def renewals_of(stream: str, jet: Jet, times: int) -> None:
    """Return when a key of a bucket was renewed that many times."""
    for _ in range(times):
        last = (await (await jet.stream(stream)).info()).state.last_seq
        while (await (await jet.stream(stream)).info()).state.last_seq == last:
            await asyncio.sleep(0.01)


async def test_a_reader_on_the_same_loop_does_not_stop_a_change_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="old") as jet:
        await jet.create_stream("s", subjects=["s"])
        async with pelton.open(path, key="old", read_only=True) as reader:
            engine, writer = reader.backend, jet.backend
            assert isinstance(engine, ReadOnlyEngine)
            assert isinstance(writer, Engine)
            old = writer._connections.settings.key
            with engine.held():
                await reader.stream_names()
                rekeying = asyncio.ensure_future(jet.rekey("new"))
                while writer._connections.settings.key == old:
                    await asyncio.sleep(0)
                await jet.publish("s", b"")
                assert not rekeying.done()
            await rekeying
        async with pelton.open(path, key="new", read_only=True) as again:
            assert await again.stream_names() == ["s"]
