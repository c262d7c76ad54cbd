"""What a job has done is undone when it fails for good or is cancelled: exactly that, once, the last thing first."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

import pelton
from pelton import Jet, PermanentJobError
from pelton.queue import JobContext, Queue
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH
from tests.queue.flow.test_faults import DiedError
from tests.queue.helpers import FAST, pretend_cluster, working
from tests.queue.run.test_signal_faults import FOR_EVER, ON_EACH, STRIDES, WatchedBackend, work_until_over
from tests.queue.run.test_steps import BOTH_KINDS, traces


class DeclinedError(Exception):
    """A program's own error."""


class Trip:
    """A job that books, and undoes that; ``log`` has what was done and undone."""

    def __init__(self) -> None:
        self.log = list[str]()

    async def book(self, what: str) -> str:
        self.log.append(f"book {what}")
        return f"{what} booked"

    def cancel(self, receipt: str) -> None:
        self.log.append(f"undo {receipt}")

    async def decline(self) -> None:
        raise DeclinedError("no seats")

    def declare(self, queue: Queue) -> None:
        @queue.job(max_attempts=3, backoff=FAST)
        async def trip(context: JobContext, how: str) -> str:
            await context.on_failure(self.cancel, await context.step("hotel", self.book, "hotel"))
            try:
                await context.step("flight", self.decline)
            except DeclinedError:
                await context.on_failure(self.cancel, await context.step("train", self.book, "train"))
            if how == "fails":
                raise PermanentJobError("no weather")
            if how == "sleeps":
                await context.sleep(3600)
            return await context.wait_for("paid", str)


@ON_BOTH
@BOTH_KINDS
@pytest.mark.parametrize("how", ["fails", "sleeps", "waits"])
async def test_what_was_done_is_undone(jet: Jet, exclusive: bool, how: str) -> None:
    queue, shop = await jet.queue("trips", exclusive=exclusive), Trip()
    shop.declare(queue)
    handle = await queue.options(key="k").enqueue("trip", how)
    async with working(queue):
        if how != "fails":
            while (await handle.info()).state not in ("scheduled", "waiting"):
                await asyncio.sleep(0.01)
            assert await handle.cancel(reason="rain")
        outcome = await handle.outcome(timeout=30)
    assert outcome.state == ("failed" if how == "fails" else "cancelled")
    assert [one.attempt for one in outcome.errors] == ([1] if how == "fails" else [])
    assert ("rain" in outcome.error) == (how != "fails")
    assert shop.log == ["book hotel", "book train", "undo train booked", "undo hotel booked"]
    assert await traces(queue) == 0


async def run(kind: str, how: str, *, last: int = FOR_EVER, moment: int = FOR_EVER, has_effect: bool = True) -> int:
    """Run a trip with a worker that dies at an operation, cancelled at another one; return how many it did."""
    runtime, is_cluster = manual_runtime(), kind != "file"
    async with pelton.open("memory:", runtime=runtime) as jet:
        if is_cluster:
            pretend_cluster(jet)
        trip, home = Trip(), await jet.queue("trips", exclusive=kind == "keys")
        trip.declare(home)
        handle = await home.options(key="k").enqueue("trip", how)
        backend = WatchedBackend(jet.backend, last, has_effect=has_effect, is_cluster=is_cluster)
        first = await Queue.open(Jet(backend, runtime), "trips")  # type: ignore[arg-type]
        trip.declare(first)
        backend.count, backend.moment = 0, moment

        async def cancel() -> None:
            await handle.cancel()

        backend.at_moment = cancel if how != "fails" else None
        with suppress(DiedError):
            for _ in range(4):
                await first.work(until_idle=True, handle_signals=False, grace=0)
                runtime.clock.advance(31)
        if backend.at_moment is not None:
            await cancel()
        second: Any = WatchedBackend(jet.backend, FOR_EVER, has_effect=True, is_cluster=is_cluster)
        after = await Queue.open(Jet(second, runtime), "trips")
        trip.declare(after)
        runtime.clock.advance(31)
        await work_until_over(after, handle, runtime)
        outcome = await handle.outcome()
        assert outcome.state == ("failed" if how == "fails" else "cancelled"), outcome
        assert "not undone" not in outcome.error
        judge(trip, is_dead=last != FOR_EVER)
        if last == FOR_EVER:
            assert await traces(home) == 0
        return backend.count


def judge(trip: Trip, *, is_dead: bool) -> None:
    """Read the program's own records."""
    done = Counter(line.split()[1] for line in trip.log if line.startswith("book "))
    undone = Counter(line.split()[1] for line in trip.log if line.startswith("undo "))
    # A worker may die after it has done a step, and before it can remember that; once.
    assert sum(done.values()) - len(done) <= is_dead
    assert sum(undone.values()) - len(undone) <= is_dead
    missing = set(done) - set(undone)
    assert set(undone) <= set(done)
    assert len(missing) <= is_dead, trip.log
    firsts = [line.split()[1] for line in trip.log if line.startswith("undo ")]
    assert firsts == sorted(firsts, reverse=True), "the last one first"


@STRIDES
@ON_EACH
@pytest.mark.parametrize("how", ["fails", "sleeps", "waits"])
async def test_a_worker_that_dies(kind: str, how: str, stride: int) -> None:
    whole = await run(kind, how)
    for last in range(1, whole + 1, stride):
        for has_effect in (False, True):
            for moment in {FOR_EVER} if how == "fails" else {max(last - 1, 1), last, FOR_EVER}:
                await run(kind, how, last=last, moment=moment, has_effect=has_effect)


@pytest.mark.parametrize("is_cluster", [False, True])
async def test_one_that_registers_something_while_it_is_cancelled(is_cluster: bool) -> None:
    runtime, undone = manual_runtime(), list[str]()
    async with pelton.open("memory:", runtime=runtime) as jet:
        if is_cluster:
            pretend_cluster(jet)
        queue = await jet.queue("trips")

        @queue.job
        async def trip(context: JobContext) -> None:
            await context.sleep(60)
            await context.on_failure(undone.append, "hotel")
            await context.sleep(3600)

        handle = await queue.enqueue(trip)
        await queue.work(until_idle=True, handle_signals=False)
        backend = WatchedBackend(jet.backend, FOR_EVER, has_effect=True, is_cluster=is_cluster)

        async def wake() -> None:
            runtime.clock.advance(61)
            await queue.work(until_idle=True, handle_signals=False)

        other = await Queue.open(Jet(backend, runtime), "trips")  # type: ignore[arg-type]
        backend.count, backend.moment, backend.at_moment = 0, 1, wake
        assert await other.cancel(handle.id)
        await work_until_over(queue, handle, runtime)
        assert (await handle.outcome()).state == "cancelled"
        assert undone == ["hotel"]
        assert await traces(queue) == 0
