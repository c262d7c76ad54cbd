"""Behaviour of object stores that only some backends show, or only tests from outside."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pelton
from pelton.testing import manual_runtime
from tests.conformance.cases.eventually import eventually
from tests.kit.nats_server import nats_server

CONTENT = os.urandom(100_000)


async def _chunks(jet: pelton.Jet, store: str = "files") -> dict[str, int]:
    info = await (await jet.stream(f"OBJ_{store}")).info(subjects_filter=f"$O.{store}.C.>")
    return dict(info.state.subjects or {})


# --- a process that dies in the middle of a put

_PUT_FOR_EVER = """
    import asyncio, sys, pelton

    async def main():
        async with pelton.open(sys.argv[1], **({"message_ids": False} if "://" in sys.argv[1] else {})) as jet:
            store = await jet.objects("files")

            async def content():
                while True:
                    yield bytes(1_000_000)

            await store.put("a", content(), progress=lambda done, total: print(done, flush=True))

    asyncio.run(main())
"""


def _put_and_die(address: str) -> None:
    """Start to put an object in another process, and kill it in the middle."""
    command = [sys.executable, "-c", textwrap.dedent(_PUT_FOR_EVER), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(signal.SIGKILL)


async def _is_as_before_and_can_be_cleaned(jet: pelton.Jet) -> None:
    store = await jet.objects("files")
    assert await store.get("a") == CONTENT
    assert [info.name async for info in store.list()] == ["a"]
    assert len(await _chunks(jet)) == 2
    assert await store.cleanup() == 0
    assert await store.cleanup(older_than=0) == 1
    assert len(await _chunks(jet)) == 1
    assert await store.get("a") == CONTENT


async def test_a_process_that_is_killed_leaves_nothing_visible(tmp_path: Path) -> None:
    path = str(tmp_path / "store.pelton")
    async with pelton.open(path) as jet:
        await (await jet.create_objects("files")).put("a", CONTENT)
        await asyncio.to_thread(_put_and_die, path)
        await _is_as_before_and_can_be_cleaned(jet)


async def test_the_same_on_a_server(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with pelton.open(server.url) as jet:
            await (await jet.create_objects("files")).put("a", CONTENT)
            await asyncio.to_thread(_put_and_die, server.url)

            # Messages that the process had sent may still arrive.
            store = await jet.objects("files")
            assert await store.cleanup() == 0
            await eventually(lambda: store.cleanup(older_than=0), 1)
            await eventually(lambda: store.cleanup(older_than=0), 0)
            assert len(await _chunks(jet)) == 1
            assert await store.get("a") == CONTENT


# --- what is left is cleaned by age


async def test_only_what_is_old_is_cleaned_away() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        store = await jet.create_objects("files")
        await jet.publish("$O.files.C.old", b"x")
        runtime.clock.advance(3600)
        await jet.publish("$O.files.C.young", b"x")
        runtime.clock.advance(1800)
        assert await store.cleanup() == 1
        assert list(await _chunks(jet)) == ["$O.files.C.young"]
        runtime.clock.advance(1800)
        assert await store.cleanup() == 1


async def test_all_remains_are_cleaned_away_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store lists 100,000 subjects at a time; here two."""
    monkeypatch.setattr("pelton.engine.verbs.streams._SUBJECTS_PAGE", 2)
    async with pelton.open("memory:") as jet:
        store = await jet.create_objects("files")
        for number in range(5):
            await jet.publish(f"$O.files.C.old{number}", b"x")
        assert await store.cleanup(older_than=0) == 5


async def test_a_full_store_can_be_cleaned() -> None:
    async with pelton.open("memory:") as jet:
        store = await jet.create_objects("files", max_bytes=1100)
        await jet.publish("$O.files.C.old", bytes(1040))
        with pytest.raises(pelton.MaxBytesError):
            await store.put("a", b"x")
        assert await store.cleanup(older_than=0) == 1
        await store.put("a", b"x")


# --- a connection that is lost changes the order


class _Disordered:
    """A backend that stores the second batch of chunks in another order than asked."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._batches = 0
        self.planning = msgspec.structs.replace(backend.planning, atomic_batches=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def publish_batch(self, messages: Sequence[Any]) -> Any:
        self._batches += 1
        if self._batches != 2:
            return await self._backend.publish_batch(messages)
        return (await self._backend.publish_batch(messages[::-1]))[::-1]


async def test_chunks_that_came_in_another_order_are_stored_again() -> None:
    async with pelton.open("memory:") as jet:
        jet.backend = _Disordered(jet.backend)  # type: ignore[assignment]  # hands on what it does not have
        store = await jet.create_objects("files")
        content = os.urandom(5_000_000)
        info = await store.put("a", content)
        assert list((await _chunks(jet)).values()) == [info.chunks]
        assert await store.get("a") == content


# --- without await


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[Any]:
    with pelton.sync.open(tmp_path / "store.pelton") as jet:
        yield jet


def test_without_await(blocking: Any, tmp_path: Path) -> None:
    store = blocking.create_objects("files")
    (tmp_path / "in").write_bytes(CONTENT)
    with (tmp_path / "in").open("rb") as file:
        store.put("file", file)
    store.put("path", tmp_path / "in")
    store.put("bytes", io.BytesIO(CONTENT))
    # Its own chunks, read while they are put: blocking reads run on their own thread.
    store.put("again", store.get_chunks("file"))
    assert [info.name for info in store.list()] == ["file", "path", "bytes", "again"]
    for info in store.list():
        assert store.get(info.name) == CONTENT
    with (tmp_path / "out").open("w+b") as file:
        store.get_file("again", file)
    store.get_file("again", tmp_path / "other")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "other").read_bytes() == CONTENT
    store.add_bucket_link("l", blocking.create_objects("others"))
    with pytest.raises(pelton.ObjectLinkError):
        store.get("l")


# --- in constant memory

_GROWTH = """
    import asyncio, sys, pelton

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    async def main(path, size):
        block, peak = bytes(range(256)) * 4096, 0

        def seen(done, total):
            nonlocal peak
            peak = max(peak, resident())

        async def content():
            for _ in range(size // len(block)):
                yield block

        async with pelton.open(path) as jet:
            store = await jet.create_objects("files")
            await store.put("warm", b"up")
            await store.get("warm")
            before = resident()
            await store.put("a", content(), progress=seen)
            await store.get_file("a", path + ".out", progress=seen)
            print(peak - before)

    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks the kernel how much memory is resident")
def test_memory_does_not_grow_with_the_object(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    size = request.config.getoption("--object-size") * 1024 * 1024
    command = [sys.executable, "-c", textwrap.dedent(_GROWTH), str(tmp_path / "store.pelton"), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 64 * 1024 * 1024
    assert (tmp_path / "store.pelton.out").stat().st_size == size


# --- a caller that is cancelled again and again


async def test_a_put_that_is_cancelled_twice_leaves_a_whole_object_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pelton.open("memory:") as jet:
        store = await jet.create_objects("files")
        publish, call = jet.backend.publish_batch, jet.backend.call
        begun, released, described = asyncio.Event(), asyncio.Event(), asyncio.Event()
        is_cancelled = False

        async def held(messages: Sequence[Any]) -> Any:
            begun.set()
            await released.wait()
            acks = await publish(messages)
            described.set()
            return acks

        async def looks(request: Any) -> Any:
            try:
                return await call(request)
            finally:
                if is_cancelled:
                    # What is described right after this look, and before what follows from it.
                    released.set()
                    await described.wait()

        monkeypatch.setattr(jet.backend, "publish_batch", held)
        monkeypatch.setattr(jet.backend, "call", looks)
        putting = asyncio.ensure_future(store.put("a", CONTENT))
        await begun.wait()
        is_cancelled = True
        for _ in range(3):
            putting.cancel()
            await asyncio.sleep(0)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await putting
        monkeypatch.undo()
        assert await store.get("a") == CONTENT
