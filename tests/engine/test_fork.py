"""A store carried across a fork: the child is refused, may open it again, and neither harms the other."""

from __future__ import annotations

import asyncio
import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import pelton
from pelton.api import StoreForkedError
from pelton.engine.salvage import recount
from pelton.storage import Database, Fault
from tests.storage.processes import Child
from tests.storage.stores import a_store, last_seq


def forked(child: object) -> tuple[int, int]:
    """Run ``child(say)`` in a fork of this process; return its pid and the reading end of its pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        asyncio.run(child(lambda word: os.write(writing, word.encode() + b"\n")))  # type: ignore[operator]
        code = 0
    finally:
        os._exit(code)


async def _fork_and_try_all(pipe: Connection, path: Path) -> None:
    jet = await pelton.open(path)
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c")
    message = (await consumer.fetch(1))[0]
    under_way = [asyncio.ensure_future(jet.publish("s.parent")) for _ in range(50)]

    async def child(say) -> None:  # type: ignore[no-untyped-def]
        calls = (
            lambda: jet.publish("s.1"),
            lambda: jet.publish_batch([("s.1", b"")]),
            lambda: stream.info(),
            lambda: consumer.fetch(1),
            lambda: message.ack(),
            lambda: jet.create_stream("t"),
        )
        for call in calls:
            try:
                await call()
            except StoreForkedError as error:
                say(f"refused {error.path == str(path)}")
        await jet.close()
        say("closed")

    pid, reading = forked(child)
    with os.fdopen(reading) as lines:
        pipe.send(lines.read().split())
    os.waitpid(pid, 0)
    await asyncio.gather(*under_way)
    await message.ack()
    pipe.send((await jet.publish("s.parent")).seq)
    pipe.send(sorted(os.listdir(path.parent)))
    await jet.close()
    pipe.send(os.listdir(path.parent))


async def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_fork_and_try_all, path) as child:
        assert child.hear() == ["refused", "True"] * 6 + ["closed"]
        assert child.hear() == 54
        assert child.hear() == ["a.pelton", "a.pelton-shm", "a.pelton-sync", "a.pelton-wake", "a.pelton-wal"]
        assert child.hear() == ["a.pelton"]
        child.join()
    assert recount(str(path)) == []


async def _fork_and_open_anew(pipe: Connection, path: Path) -> None:
    go_reading, go_writing = os.pipe()
    jet = await pelton.open(path)
    await jet.publish("s.parent")

    async def child(say) -> None:  # type: ignore[no-untyped-def]
        async with pelton.open(path) as mine:
            await mine.publish("s.child")
            say("opened")
            os.read(go_reading, 1)
            say(str((await mine.publish("s.child")).seq))
            say(str((await mine.publish("s.child")).seq))

    pid, reading = forked(child)
    with os.fdopen(reading) as lines:
        pipe.send(lines.readline().strip())
        pipe.send((await jet.publish("s.parent")).seq)
        # Closing first, the parent must not checkpoint the WAL under its child.
        await jet.close()
        os.write(go_writing, b"!")
        pipe.send(lines.read().split())
    pipe.send(os.waitpid(pid, 0)[1])


async def test_a_forked_child_that_opens_the_store_anew_outlives_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_fork_and_open_anew, path) as child:
        assert child.hear() == "opened"
        assert child.hear() == 6
        assert child.hear() == ["7", "8"]
        assert child.hear() == 0
        child.join()
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 8
    assert recount(str(path)) == []
    assert os.listdir(tmp_path) == ["a.pelton"]


async def _fork_and_leave_to_the_child(pipe: Connection, path: Path) -> None:
    jet = await pelton.open(path)

    async def child(say) -> None:  # type: ignore[no-untyped-def]
        async with pelton.open(path) as mine:
            for _ in range(20):
                say(str((await mine.publish("s.child")).seq))

    pid, reading = forked(child)
    for _ in range(200):
        pipe.send((await jet.publish("s.parent")).seq)
    with os.fdopen(reading) as lines:
        for line in lines.read().split():
            pipe.send(int(line))
    os.waitpid(pid, 0)
    await jet.close()


async def test_parent_and_child_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_fork_and_leave_to_the_child, path) as child:
        assert sorted(child.hear_all()) == list(range(4, 224))
    assert recount(str(path)) == []


def _fork_in_a_transaction(pipe: Connection, path: Path) -> None:
    database = Database(str(path))
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE meta SET value=value WHERE key='token_floor'")

    async def child(say) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(Fault) as caught:
            Database(str(path))
        say(caught.value.kind)

    pid, reading = forked(child)
    with os.fdopen(reading) as lines:
        pipe.send(lines.read().strip())
    os.waitpid(pid, 0)
    database.execute("COMMIT")
    database.close()


async def test_a_fork_in_the_middle_of_a_transaction_can_not_open_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_fork_in_a_transaction, path) as child:
        assert child.hear() == "forked"
        child.join()
    assert recount(str(path)) == []


async def _fork_beside_busy_threads(pipe: Connection, path: Path) -> None:
    """Fork on a thread, while the blocking API's own threads write."""
    with pelton.sync.open(path) as jet, pelton.sync.open(path) as other:
        is_over = threading.Event()

        def write(handle: pelton.sync.Jet) -> None:
            while not is_over.is_set():
                handle.publish_batch([("s.busy", b"x" * 1000)] * 20)

        threads = [threading.Thread(target=write, args=(handle,)) for handle in (jet, other)]
        for thread in threads:
            thread.start()

        async def child(say) -> None:  # type: ignore[no-untyped-def]
            async with pelton.open(path) as mine:
                await mine.publish("s.child")
                say("stored")

        for _ in range(20):
            pid, reading = forked(child)
            with os.fdopen(reading) as lines:
                pipe.send(lines.read().split())
            os.waitpid(pid, 0)
        is_over.set()
        for thread in threads:
            thread.join()


async def test_a_fork_finds_no_thread_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_fork_beside_busy_threads, path) as child:
        assert [child.hear() for _ in range(20)] == [["stored"]] * 20
        child.join()
    assert recount(str(path)) == []
