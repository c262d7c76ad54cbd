"""Processes that write to one store at the same time: each gets its turns, and none can keep the others from theirs."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import StoreBusyError
from pelton.engine.salvage import recount
from pelton.queue import JobContext
from tests.storage.processes import Child, hear_in_child
from tests.storage.stores import a_store, last_seq, open_engine


async def _publish_until_told(pipe: Connection, path: Path, in_flight: int, told_every: int) -> None:
    """Publish without pause; report after each so many, and at the end all sequences that were acknowledged."""
    acked: list[int] = []
    async with pelton.open(path, busy_timeout=300) as jet:
        pipe.send("open")
        ending = asyncio.ensure_future(hear_in_child(pipe))

        async def publish() -> None:
            while not ending.done():
                acked.append((await jet.publish("s.x")).seq)
                if len(acked) % told_every == 0:
                    pipe.send(len(acked))

        await asyncio.gather(*(publish() for _ in range(in_flight)))
    pipe.send(acked)


def _reported(child: Child) -> list[int]:
    """Return the sequences that a child reports at its end; earlier reports are skipped."""
    child.say("end")
    while not isinstance(said := child.hear(), list):
        pass
    child.join()
    return said


@pytest.mark.parametrize("turns", [pytest.param(20, id="short"), pytest.param(240, id="long")])
@pytest.mark.parametrize("in_flight", [(1, 1, 1, 1), (1, 100), (1, 1, 40, 40)], ids=str)
async def test_each_of_several_writers_gets_its_turns(tmp_path: Path, in_flight: tuple[int, ...], turns: int) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path, messages=1)
    with ExitStack() as stack:
        children = [stack.enter_context(Child(_publish_until_told, path, each, turns * each)) for each in in_flight]
        assert {child.hear() for child in children} == {"open"}
        # Until the slowest has had its turns: it comes to that however many the others have had.
        for child in children:
            child.hear()
        acked = [_reported(child) for child in children]
    had = [len(seqs) / each for seqs, each in zip(acked, in_flight, strict=True)]
    assert min(had) >= turns
    if turns > 200:
        # So many that how they began does not count; shares vary with the machine's load all the same.
        assert min(had) > max(had) / 8, "no other has had much more than its share"
    assert sorted(seq for seqs in acked for seq in seqs) == list(range(2, sum(map(len, acked)) + 2))
    assert recount(str(path)) == []


async def _hold_a_transaction(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        pipe.send([(await jet.publish("s.x", b"kept")).seq for _ in range(3)])
        async with jet.transaction(timeout=60) as tx:
            await tx.publish("s.x", b"open")
            pipe.send("open")
            await hear_in_child(pipe)
    pipe.send("committed")


async def test_a_process_that_is_stopped_while_it_writes_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path, messages=1)
    with Child(_hold_a_transaction, path) as child:
        assert (child.hear(), child.hear()) == ([2, 3, 4], "open")
        os.kill(child.process.pid or 0, signal.SIGSTOP)
        jets = [open_engine(path, busy_timeout=patience) for patience in (0.2, 0.2, 0.4)]
        for _ in range(2):
            calls = [jet.publish("s.x") for jet in jets for _ in range(9)]
            for refused in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60):
                assert isinstance(refused, StoreBusyError)
                assert "end it, then retry" in str(refused)
        assert await last_seq(jets[0]) == 4, "readers do not wait"
        os.kill(child.process.pid or 0, signal.SIGCONT)
        child.say("go on")
        assert child.hear() == "committed"
        child.join()
        assert [(await asyncio.wait_for(jet.publish("s.x"), 60)).seq for jet in jets] == [6, 7, 8]
        for jet in jets:
            await jet.close()
    assert recount(str(path)) == []


async def test_a_process_that_is_killed_while_it_writes_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path, messages=1)
    with Child(_hold_a_transaction, path) as child:
        assert (child.hear(), child.hear()) == ([2, 3, 4], "open")
        async with pelton.open(path, busy_timeout=300) as jet, pelton.open(path, busy_timeout=300) as other:
            waiting = [asyncio.ensure_future(each.publish("s.x")) for each in (jet, other)]
            assert await last_seq(jet) == 4
            child.kill()
            assert sorted(ack.seq for ack in await asyncio.wait_for(asyncio.gather(*waiting), 60)) == [5, 6]
            stream = await jet.stream("s")
            assert [(await stream.get_message(seq)).data for seq in range(2, 7)] == [b"kept"] * 3 + [b""] * 2
    assert recount(str(path)) == []


async def test_writers_that_are_stopped_while_they_wait_hold_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path, messages=1)
    with ExitStack() as stack:
        jet = open_engine(path, busy_timeout=60)
        children = [stack.enter_context(Child(_publish_until_told, path, 1, 10)) for _ in range(3)]
        assert {child.hear() for child in children} == {"open"}
        stopped = children[:2]
        async with jet.transaction() as tx:
            # While this is open they wait, and in a moment they claim the next turn.
            await tx.publish("s.x")
            for child in stopped:
                os.kill(child.process.pid or 0, signal.SIGSTOP)
        for _ in range(30):
            await asyncio.wait_for(jet.publish("s.x"), 60)
        _reported(children[2])
        for child in stopped:
            os.kill(child.process.pid or 0, signal.SIGCONT)
            _reported(child)
        await jet.close()
    assert recount(str(path)) == []


async def _hold_jobs(pipe: Connection, path: Path) -> None:
    """Work on a queue; its jobs run until the test says that they may end."""
    may_end, all_ended = asyncio.Event(), asyncio.Barrier(5)
    async with pelton.open(path) as jet:
        queue = await jet.queue("jobs")

        @queue.job
        async def hold(context: JobContext) -> None:
            pipe.send(("began", context.key, context.attempt))
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                pipe.send(("lost", context.key, context.attempt))
                raise
            await all_ended.wait()

        working = asyncio.ensure_future(queue.work(concurrency=4, handle_signals=False))
        await hear_in_child(pipe)
        may_end.set()
        await all_ended.wait()
        queue.stop()
        await working
    pipe.send("ended")


async def test_leases_are_kept_while_others_write_as_fast_as_they_can(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path, messages=1)
    async with pelton.open(path) as jet:
        queue = await jet.queue("jobs", exclusive=True, lease=1.0)
        job = queue.job(name="hold")(_nothing)
        await job.enqueue_many([()] * 4, keys=["a", "b", "c", "d"])
    with ExitStack() as stack:
        worker = stack.enter_context(Child(_hold_jobs, path))
        began: list[Any] = [worker.hear() for _ in range(4)]
        assert sorted(began) == [("began", key, 1) for key in "abcd"]
        writers = [stack.enter_context(Child(_publish_until_told, path, 100, 100)) for _ in range(3)]
        assert {writer.hear() for writer in writers} == {"open"}
        for writer in writers:
            # Of 100 each: some seconds, which are several leases.
            for _ in range(60):
                writer.hear()
        for writer in writers:
            _reported(writer)
        worker.say("end")
        assert worker.hear_all() == ["ended"]
    assert recount(str(path)) == []


async def _nothing() -> None: ...
