"""Signals that come, and workers that die, between any two operations of a worker whose jobs wait: the end is the same.

As of flows (``tests/queue/flow/test_faults.py``): every operation of a worker goes through a backend that dies at one
of them, or at which a signal comes, on a store file and on one that behaves as a cluster does, with and without keys.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import pytest

import pelton
from pelton import Jet, JobEndedError
from pelton.api import Backend
from pelton.queue import JobContext, JobHandle, Queue
from pelton.testing import ManualRuntime, manual_runtime
from tests.queue.flow.test_faults import DiedError, MortalBackend
from tests.queue.helpers import pretend_cluster
from tests.queue.run.test_steps import traces

FOR_EVER = 10**9


class WatchedBackend(MortalBackend):
    """A backend that calls ``at_moment`` before its operation ``moment``, and dies at ``last``."""

    def __init__(self, backend: Backend, last: int, *, has_effect: bool, is_cluster: bool) -> None:
        super().__init__(backend, last, has_effect=has_effect, is_cluster=is_cluster)
        if is_cluster:
            self.planning = msgspec.structs.replace(self.planning, refuses_late_acks=False)
        self.moment = FOR_EVER
        self.at_moment: Callable[[], Coroutine[Any, Any, object]] | None = None

    async def _do(self, operation: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self.count + 1 >= self.moment and self.at_moment is not None:
            at_moment, self.at_moment = self.at_moment, None
            await at_moment()
        return await super()._do(operation)


class Shop:
    def __init__(self) -> None:
        self.charged = list[str]()
        self.packed = list[int]()

    def declare(self, queue: Queue) -> None:
        @queue.job(max_attempts=4, backoff=[0.1])
        async def order(context: JobContext) -> list[str]:
            await context.step("charge", self._charge, context.id)
            first = await context.wait_for("approved", str)
            await context.sleep(10)
            second = await context.wait_for("approved", str)
            packed = await context.gather(*(context.call(pack, n) for n in range(2)))
            return [first, second, *packed, await context.wait_for("approved", str, timeout=5, default="no third")]

        @queue.job(max_attempts=4, backoff=[0.1])
        async def pack(number: int) -> str:
            self.packed.append(number)
            return f"parcel {number}"

    async def _charge(self, job_id: str) -> None:
        self.charged.append(job_id)


async def work_until_over(queue: Queue, handle: JobHandle[Any], runtime: ManualRuntime) -> None:
    """Work with one worker, which takes over keys that it has seen held for a lease, until nothing is left."""
    turns, after, ended = iter(range(20)), list[None](), asyncio.create_task(handle.outcome())

    def turn_clock(_: float) -> bool:
        # What a dead worker has settled may still be to be carried out when the outcome is stored.
        after.extend([None] * ended.done())
        runtime.clock.advance(31)
        return len(after) < 3 and next(turns, None) is not None

    queue._context.probes.on_idle = turn_clock
    await queue.work(until_idle=True, handle_signals=False)
    ended.cancel()
    assert not (await queue.counts()).unfinished, f"the job does not go on: {await handle.info()}"


async def run(
    kind: str, *, last: int = FOR_EVER, moment: int = 0, has_effect: bool = True, is_early: bool = False
) -> int:
    """Run a job whose signals come at an operation, with a worker that dies at one; return how many it did.

    ``is_early``: the first signal is there before the job begins.
    """
    runtime, is_cluster = manual_runtime(), kind != "file"
    async with pelton.open("memory:", runtime=runtime) as jet:
        if is_cluster:
            pretend_cluster(jet)
        shop, home = Shop(), await jet.queue("shop", exclusive=kind == "keys")
        shop.declare(home)
        handle = await home.options(key="k").enqueue("order")
        backend = WatchedBackend(jet.backend, last, has_effect=has_effect, is_cluster=is_cluster)
        first = await Queue.open(Jet(backend, runtime), "shop")  # type: ignore[arg-type]
        shop.declare(first)
        backend.count, backend.moment = 0, moment

        if is_early:
            await handle.send("approved", "yes")

        async def send_all() -> None:
            if not is_early:
                await handle.send("approved", "yes")
            await handle.send("approved", "yes, too", msg_id="2")

        backend.at_moment = send_all
        with suppress(DiedError):
            for _ in range(4):
                await first.work(until_idle=True, handle_signals=False, grace=0)
                runtime.clock.advance(31)
        if backend.at_moment is not None:
            await send_all()
        with suppress(JobEndedError):
            assert not await handle.send("approved", "yes, too", msg_id="2")
        second: Any = WatchedBackend(jet.backend, FOR_EVER, has_effect=True, is_cluster=is_cluster)
        after = await Queue.open(Jet(second, runtime), "shop")
        shop.declare(after)
        runtime.clock.advance(31)
        await work_until_over(after, handle, runtime)
        outcome = await handle.outcome()
        assert (outcome.state, outcome.error) == ("completed", ""), outcome
        assert outcome.value() == ["yes", "yes, too", "parcel 0", "parcel 1", "no third"]
        assert 1 <= len(shop.charged) <= (1 if last == FOR_EVER else 2), "a step may be done twice if its worker died"
        assert Counter([one.job async for one in home.history()]) == {"order": 1, "pack": 2}
        if last == FOR_EVER:
            assert (outcome.attempt, sorted(shop.packed)) == (1, [0, 1])
            assert await traces(home) == 0
        return backend.count


STRIDES = pytest.mark.parametrize("stride", [pytest.param(23, id="short"), pytest.param(1, id="long")])
ON_EACH = pytest.mark.parametrize("kind", ["file", "cluster", "keys"])


@STRIDES
@ON_EACH
@pytest.mark.parametrize("is_early", [False, True])
async def test_a_signal_that_comes_at_any_moment_is_received(kind: str, is_early: bool, stride: int) -> None:
    whole = await run(kind, moment=FOR_EVER, is_early=is_early)
    for moment in range(1, whole + 1, stride):
        await run(kind, moment=moment, is_early=is_early)


@STRIDES
@ON_EACH
@pytest.mark.parametrize("is_early", [False, True])
async def test_a_worker_that_dies(kind: str, is_early: bool, stride: int) -> None:
    whole = await run(kind, moment=8, is_early=is_early)
    for last in range(1, whole + 1, stride):
        for has_effect in (False, True):
            for moment in {1, max(last - 1, 1), last, FOR_EVER}:
                await run(kind, last=last, moment=moment, has_effect=has_effect, is_early=is_early)
