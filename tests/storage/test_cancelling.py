"""Backups and restores whose caller is cancelled: they end with it, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import pelton
from pelton.engine.salvage import recount
from pelton.engine.salvage import recount as counted
from pelton.runtime import Halt, on_thread
from pelton.storage import Fault, copies

Call = Callable[[Callable[[int, int], object]], Awaitable[object]]


@pytest.fixture
async def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # In many small steps, so that the cancellation comes in the middle.
    monkeypatch.setattr(copies, "_CHUNK", 64)
    monkeypatch.setattr(copies, "_ROWS", 1)
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s"])
        await jet.publish_batch([("s", os.urandom(300))] * 3000)
    return path


async def cancelled_in_the_middle(call: Call, *, at_end: bool = False) -> list[tuple[int, int]]:
    """Cancel a call at its first progress report, or at the one that says that all is copied; return all reports."""
    told: list[tuple[int, int]] = []
    begun = asyncio.Event()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        if not at_end or done == total:
            begun.set()

    task = asyncio.ensure_future(call(progress))
    await begun.wait()
    task.cancel()
    # Cancelled once or twice, the result is the same.
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    return told


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("streams", [None, ["s"]])
async def test_a_cancelled_backup_has_ended_and_left_nothing(
    path: Path, streams: list[str] | None, at_end: bool
) -> None:
    target = path.with_name("copy")
    async with pelton.open(path) as jet:
        before = sorted(path.parent.iterdir())
        told = await cancelled_in_the_middle(
            lambda progress: jet.backup(target, streams=streams, progress=progress), at_end=at_end
        )
        assert (told[-1][0] < told[-1][1]) is not at_end
        assert sorted(path.parent.iterdir()) == before
        # Its name is free, and nothing writes to it any more.
        await jet.backup(target, streams=streams)
    assert recount(str(target)) == []


async def test_a_cancelled_restore_has_ended_and_left_nothing(path: Path, tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "other.pelton") as jet:
        await cancelled_in_the_middle(lambda progress: jet.restore(path, progress=progress))
        assert await jet.stream_names() == []
        assert await jet.restore(path) == ["s"]


async def test_a_verification_that_nobody_waits_for_ends(path: Path) -> None:
    halt = Halt()
    halt.ask()
    with pytest.raises(Fault, match="interrupted"):
        await asyncio.to_thread(counted, str(path), None, halt)


async def test_work_on_a_thread_has_ended_when_its_caller_goes_on() -> None:
    begun, ended = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def work(halt: Halt) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            while True:
                halt.check()
        finally:
            ended.append(True)

    task = asyncio.ensure_future(on_thread(work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended
