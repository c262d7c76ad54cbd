"""However a process lets go of a store, others can open it: while it lives, and it again."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import pelton
from pelton.runtime import system_runtime
from tests.storage.processes import Child
from tests.storage.stores import a_store, last_seq

kept: list[object] = []


async def _opened(path: Path) -> pelton.Jet:
    jet = await pelton.open(path)
    await jet.publish("s.open")
    return jet


async def _dropped(path: Path) -> None:
    await _opened(path)


async def _dropped_stream(path: Path) -> None:
    jet = await _opened(path)
    await (await jet.stream("s")).info()


async def _kept(path: Path) -> None:
    kept.append(await _opened(path))


async def _clone_dropped(path: Path) -> None:
    jet = await _opened(path)
    await (await jet.clone()).publish("s.clone")
    await jet.close()


async def _original_dropped(path: Path) -> None:
    jet = await (await _opened(path)).clone()
    await jet.publish("s.clone")
    await jet.close()


async def _block_left_open(path: Path) -> None:
    view = (await _opened(path)).read()
    await view.__aenter__()


async def _block_kept(path: Path) -> None:
    jet = await _opened(path)
    view = jet.read()
    await view.__aenter__()
    kept.append(view)
    await jet.close()


async def _transaction_left_open(path: Path) -> None:
    tx = (await _opened(path)).transaction()
    await tx.__aenter__()
    await tx.publish("s.lost")


async def _read_only(path: Path) -> None:
    jet = await _opened(path)
    await last_seq(await pelton.open(path, read_only=True))
    await jet.close()


async def _lock_held(path: Path) -> None:
    await (await _opened(path)).lock("l", ttl=1).acquire()


async def _elected(path: Path) -> None:
    term = (await _opened(path)).elect("e")
    await term.__aenter__()


async def _subscribed(path: Path) -> None:
    await (await _opened(path)).subscribe("s.>")


async def _row_reader(path: Path) -> None:
    jet = await _opened(path)
    stream = await jet.stream("s")
    jet.backend.row_reader("s", (await stream.info()).created, ())
    await jet.close()


async def _working(path: Path) -> None:
    queue = await (await _opened(path)).queue("q", exclusive=True)
    begun = asyncio.Event()

    @queue.job
    async def job() -> None:
        begun.set()
        await asyncio.sleep(600)

    await job.enqueue()
    kept.append(asyncio.ensure_future(queue.work()))
    await begun.wait()
    kept.pop()


async def _fails_to_open(path: Path) -> None:
    failing = replace(system_runtime(), clock=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        await pelton.open(path, runtime=failing)


async def _cancelled_read(path: Path) -> None:
    """Cancel a block of reads at each step of the loop, until it ends by itself first."""
    jet = await _opened(path)

    async def read() -> None:
        async with jet.read() as view:
            await view.sql("SELECT count(*) FROM streams")

    for steps in itertools.count():
        task = asyncio.ensure_future(read())
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait([task])
    await jet.close()


WAYS: list[Callable[[Path], Any]] = [
    _dropped,
    _dropped_stream,
    _kept,
    _clone_dropped,
    _original_dropped,
    _block_left_open,
    _block_kept,
    _transaction_left_open,
    _read_only,
    _lock_held,
    _elected,
    _subscribed,
    _row_reader,
    _working,
    _fails_to_open,
    _cancelled_read,
]


def _run(way: Callable[[Path], Any], path: Path) -> None:
    asyncio.run(way(path))


def _loop_closed(way: Callable[[Path], Any], path: Path) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(way(path))
    loop.close()


def _thread_ended(way: Callable[[Path], Any], path: Path) -> None:
    thread = threading.Thread(target=_run, args=(way, path))
    thread.start()
    thread.join()


def _blocking(way: Callable[[Path], Any], path: Path) -> None:
    pelton.sync.open(path).publish("s.open")


def _descriptors(path: Path) -> list[str]:
    found = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return [name for name in found if name.startswith(str(path))]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", [_dropped, _block_left_open, _transaction_left_open, _cancelled_read])
async def test_what_was_let_go_of_keeps_no_file_open(tmp_path: Path, way: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    await asyncio.to_thread(_run, way, path)
    gc.collect()
    assert _descriptors(path) == []


def _lets_go(pipe: Connection, ends: Callable[..., None], paths: list[Path]) -> None:
    for way, path in zip(WAYS, paths, strict=True):
        ends(way, path)
    gc.collect()
    pipe.send("let go")
    pipe.recv()
    for path in paths:
        asyncio.run(_opens(path))
    pipe.send("opened")
    pipe.recv()


async def _opens(path: Path) -> None:
    async with pelton.open(path) as jet:
        await jet.publish("s.again")


@pytest.mark.parametrize("ends", [_run, _loop_closed, _thread_ended, _blocking])
async def test_others_open_what_was_let_go_of(tmp_path: Path, ends: Callable[..., None]) -> None:
    paths = [tmp_path / way.__name__ / "a.pelton" for way in WAYS]
    for path in paths:
        path.parent.mkdir()
        await a_store(path)
    with Child(_lets_go, ends, paths) as child:
        assert child.hear() == "let go"
        for path in paths:
            await _opens(path)
            await _opens(path)
        child.say("open")
        assert child.hear() == "opened"
        for path in paths:
            await _opens(path)


async def _forks(pipe: Connection, path: Path) -> None:
    await _opened(path)
    if os.fork():
        pipe.send("forked")
        pipe.recv()
    # The child lives until its parent has died and the test, which holds the other end, is over.
    os.read(pipe.fileno(), 1)
    os._exit(0)


async def test_a_forked_child_keeps_nothing_of_a_killed_parent(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_forks, path) as parent:
        assert parent.hear() == "forked"
        parent.kill()
        await _opens(path)
        await _opens(path)
