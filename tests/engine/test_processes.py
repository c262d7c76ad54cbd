"""Several processes, engines and threads on one store: locks, caches, wake-ups, opening at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import pelton
from pelton.api import StoreBusyError, StreamNotFoundError
from pelton.engine.salvage import recount
from tests.stopping import stand_still
from tests.storage.processes import Child, hear_in_child
from tests.storage.stores import a_store, last_seq, open_engine, raw


def _hold_the_lock(pipe: Connection, path: Path) -> None:
    with raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        pipe.send("held")
        pipe.recv()
        connection.execute("COMMIT")
    pipe.send("released")


@pytest.mark.parametrize("callers", [1, 40])
async def test_a_process_that_holds_the_lock_too_long(tmp_path: Path, callers: int) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    jet = open_engine(path, busy_timeout=0.05)
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    with Child(_hold_the_lock, path) as child:
        assert child.hear() == "held"
        for _ in range(2):
            calls = [jet.publish("s.1") for _ in range(callers)] + [consumer.fetch(1), jet.create_stream("t")]
            for result in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60):
                assert isinstance(result, StoreBusyError)
                assert result.path == str(path)
        assert await last_seq(jet) == 3, "readers do not wait for a writer"
        async with pelton.open(path) as another:
            assert await last_seq(another) == 3, "nor does opening"
        child.say("release")
        assert child.hear() == "released"
    assert (await asyncio.wait_for(jet.publish("s.1"), 60)).seq == 4
    assert [message.metadata.stream_seq for message in await consumer.fetch(9)] == [1, 2, 3, 4]
    await jet.close()
    assert recount(str(path)) == []


async def test_a_short_wait_for_the_lock_is_not_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        with Child(_hold_the_lock, path) as child:
            assert await child.heard() == "held"
            waiting = [asyncio.ensure_future(jet.publish("s.1")) for _ in range(3)]
            await asyncio.sleep(0)
            assert await last_seq(jet) == 3
            child.say("release")
            assert [ack.seq for ack in await asyncio.gather(*waiting)] == [4, 5, 6]


async def _open_fresh(pipe: Connection, path: Path) -> None:
    pipe.send("ready")
    pipe.recv()
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        pipe.send((await jet.publish("s.1")).seq)


async def test_many_processes_make_the_store_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(6):
            path = tmp_path / f"{number}.pelton"
            children = [stack.enter_context(Child(_open_fresh, path)) for _ in range(6)]
            assert {child.hear() for child in children} == {"ready"}
            for child in children:
                child.say("go")
            assert sorted(child.hear() for child in children) == [1, 2, 3, 4, 5, 6]
            for child in children:
                child.join()
            assert recount(str(path)) == []


async def test_two_engines_see_each_other_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as one, pelton.open(path) as other:
        await one.create_stream("s", subjects=["s.>"], max_msgs_per_subject=3)
        assert await other.stream_names() == ["s"]
        assert (await other.publish("s.1", msg_id="a")).seq == 1
        assert (await one.publish("s.1", msg_id="a")).duplicate
        assert (await one.publish("s.1", msg_id="b", expected_last_seq=1)).seq == 2
        assert (await other.publish("s.1", msg_id="b")).duplicate
        assert (await other.publish("s.1", expected_last_subject_seq=2)).seq == 3
        mine, theirs = await one.stream("s"), await other.stream("s")
        for n in range(4, 10):
            assert (await (one if n % 2 else other).publish("s.1", b"%d" % n)).seq == n
            for stream in (mine, theirs):
                state = (await stream.info(subjects_filter=">")).state
                assert (state.first_seq, state.last_seq, state.subjects) == (n - 2, n, {"s.1": 3})
        c = await mine.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
        d = await theirs.consumer("c")
        held = await c.fetch(9)
        assert [message.metadata.stream_seq for message in held] == [7]
        assert await d.fetch(9, no_wait=True) == []
        await held[0].ack()
        assert [message.metadata.stream_seq for message in await d.fetch(9)] == [8]
        await other.update_stream("s", subjects=["s.>", "t.>"])
        assert (await one.publish("t.1")).seq == 10
        await theirs.delete()
        with pytest.raises(StreamNotFoundError):
            await mine.info()
        await one.create_stream("s", subjects=["s.>"])
        assert (await other.publish("s.1")).seq == 1
    assert recount(str(path)) == []


# --- wake-ups


async def _publish_when_told(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        pipe.send("open")
        while (word := await hear_in_child(pipe)) != "close":
            pipe.send((await jet.publish(word)).seq)


@pytest.mark.parametrize("depth", [0, 9])
async def test_a_publish_wakes_a_pull_in_another_process(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-rather-long-folder-name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "a.pelton"
    await a_store(path)
    with Child(_publish_when_told, path) as child:
        async with pelton.open(path) as jet:
            assert not jet.backend._channel.polled
            consumer = await (await jet.stream("s")).create_consumer(durable_name="c", deliver_policy="new")
            assert await child.heard() == "open"
            for seq in range(4, 14):
                waiting = asyncio.ensure_future(consumer.fetch(timeout=30))
                await asyncio.sleep(0)
                child.say("s.x")
                assert await child.heard() == seq
                assert [message.metadata.stream_seq for message in await waiting] == [seq]
        child.say("close")
        child.join()
    assert os.listdir(folder) == ["a.pelton"]


async def test_a_dead_peers_socket_is_removed_by_whoever_meets_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    wake = tmp_path / "a.pelton-wake"
    async with pelton.open(path) as jet:
        with Child(_publish_when_told, path) as child:
            assert child.hear() == "open"
            assert len(os.listdir(wake)) == 2
            child.kill()
        assert len(os.listdir(wake)) == 2
        await jet.publish("s.1")
        assert len(os.listdir(wake)) == 1
    assert not wake.exists()


async def test_a_stopped_peer_with_a_full_buffer_hinders_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_publish_when_told, path) as child:
        assert child.hear() == "open"
        stand_still(child.process.pid, path)
        async with pelton.open(path, sync="off") as jet:
            for _ in range(600):
                await jet.publish("s.1")
        os.kill(child.process.pid or 0, signal.SIGCONT)
        child.say("s.x")
        assert child.hear() == 604
        child.say("close")
        child.join()


async def test_where_the_channel_cannot_be_had_waiting_polls(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    (tmp_path / "a.pelton-wake").write_text("in the way")
    with Child(_publish_when_told, path) as child:
        async with pelton.open(path) as jet:
            assert jet.backend._channel.polled
            consumer = await (await jet.stream("s")).create_consumer(durable_name="c", deliver_policy="new")
            assert await child.heard() == "open"
            waiting = asyncio.ensure_future(consumer.fetch(timeout=30))
            await asyncio.sleep(0)
            child.say("s.x")
            assert await child.heard() == 4
            assert len(await waiting) == 1
        child.say("close")
        child.join()


async def test_deduplication_holds_across_processes_and_reopening(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        first = await jet.publish("s.1", b"once", msg_id="m-1")
    with Child(_publish_again, path) as child:
        assert child.hear() == (first.seq, True)
        assert child.hear() == (5, False)
        child.join()
    async with pelton.open(path) as jet:
        for msg_id, seq in (("m-1", first.seq), ("m-2", 5)):
            ack = await jet.publish("s.1", b"again", msg_id=msg_id)
            assert (ack.seq, ack.duplicate) == (seq, True)
        await (await jet.stream("s")).purge()
        assert (await jet.publish("s.1", msg_id="m-2")).duplicate
    assert recount(str(path)) == []


async def _publish_again(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        for msg_id in ("m-1", "m-2"):
            ack = await jet.publish("s.1", b"again", msg_id=msg_id)
            pipe.send((ack.seq, ack.duplicate))


# --- threads


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_clones_in_threads_share_the_store(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "a.pelton") if kind == "file" else "memory:"
    each, threads = 150, 3
    failures: list[BaseException] = []

    async def work(backend: object) -> None:
        mine = backend.clone()  # type: ignore[attr-defined]
        for n in range(each):
            await mine.publish("s.1", b"%d" % n)
            await jet_names(mine)
        await mine.close()

    def run(backend: object) -> None:
        try:
            asyncio.run(work(backend))
        except BaseException as error:
            failures.append(error)

    async with pelton.open(address, sync="off") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
        started = [threading.Thread(target=run, args=(jet.backend,)) for _ in range(threads)]
        for thread in started:
            thread.start()
        seen: list[int] = []
        while len(seen) < each * threads and not failures:
            messages = await consumer.fetch(64, timeout=30)
            seen += [message.metadata.stream_seq for message in messages]
            await consumer.ack(messages)
        for thread in started:
            await asyncio.to_thread(thread.join)
        assert failures == []
        assert seen == list(range(1, each * threads + 1))


async def jet_names(backend: object) -> None:
    from pelton.api import StreamInfoRequest

    await backend.call(StreamInfoRequest(name="s"))  # type: ignore[attr-defined]


async def test_memory_stores_are_apart_and_end_with_their_last_user() -> None:
    async with pelton.open("memory:") as one, pelton.open("memory:") as other:
        await one.create_stream("s")
        assert await other.stream_names() == []
        clone = one.backend.clone()
    assert (await clone.publish("s", b"")).seq == 1
    await clone.close()
