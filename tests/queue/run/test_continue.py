"""A job that begins anew, with an empty memory, under its id and key: no round is lost, and none is run twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pelton
from pelton import Continue, Jet
from pelton.api import StreamPurge
from pelton.queue import JobContext, Queue
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH
from tests.queue.flow.test_faults import DiedError
from tests.queue.helpers import FAST, pretend_cluster, working
from tests.queue.run.test_signal_faults import FOR_EVER, ON_EACH, STRIDES, WatchedBackend, work_until_over
from tests.queue.run.test_steps import BOTH_KINDS, traces

ROUNDS = 3


class Shop:
    """A subscription that is renewed; ``log`` has what was done."""

    def __init__(self) -> None:
        self.log = list[str]()

    def declare(self, queue: Queue) -> None:
        @queue.job(max_attempts=4, backoff=FAST)
        async def pack(month: int) -> int:
            return month * 10

        @queue.job(max_attempts=4, backoff=FAST)
        async def renew(context: JobContext, month: int, *, seen: list[object]) -> list[object]:
            await context.step("charge", self.log.append, f"charge {month}")
            await context.on_failure(self.log.append, f"undo {month}")
            seen.append([await context.wait_for("news", str), await context.call(pack, month)])
            await context.sleep(10)
            if month < ROUNDS:
                raise Continue(month + 1, seen=seen)
            return seen


class PurgingBackend(WatchedBackend):
    """One that may die as it removes what a round has left, too."""

    async def call(self, request: Any) -> Any:
        if isinstance(request, StreamPurge):
            return await self._do(lambda: self._backend.call(request))
        return await self._backend.call(request)


WHOLE = [[f"news {n}", n * 10] for n in range(1, ROUNDS + 1)]


async def run(kind: str, *, last: int = FOR_EVER, moment: int = FOR_EVER, has_effect: bool = True) -> int:
    """Run a job with a worker that dies at an operation, while signals come; return how many it did."""
    runtime, is_cluster = manual_runtime(), kind != "file"
    async with pelton.open("memory:", runtime=runtime) as jet:
        if is_cluster:
            pretend_cluster(jet)
        shop, home = Shop(), await jet.queue("shop", exclusive=kind == "keys")
        shop.declare(home)
        handle = await home.options(key="k").enqueue("renew", 1, seen=[])
        backend = PurgingBackend(jet.backend, last, has_effect=has_effect, is_cluster=is_cluster)
        first = await Queue.open(Jet(backend, runtime), "shop")  # type: ignore[arg-type]
        shop.declare(first)
        backend.count, backend.moment = 0, moment

        async def send_all() -> None:
            for number in range(1, ROUNDS + 1):
                await handle.send("news", f"news {number}")

        backend.at_moment = send_all
        with suppress(DiedError):
            for _ in range(6):
                await first.work(until_idle=True, handle_signals=False, grace=0)
                runtime.clock.advance(31)
        if backend.at_moment is not None:
            await send_all()
        second: Any = WatchedBackend(jet.backend, FOR_EVER, has_effect=True, is_cluster=is_cluster)
        after = await Queue.open(Jet(second, runtime), "shop")
        shop.declare(after)
        runtime.clock.advance(31)
        await work_until_over(after, handle, runtime)
        outcome = await handle.outcome()
        assert (outcome.state, outcome.error) == ("completed", ""), outcome
        assert outcome.value() == WHOLE
        charged = Counter(shop.log)
        assert sorted(charged) == [f"charge {n}" for n in range(1, ROUNDS + 1)], "nothing is undone"
        assert sum(charged.values()) - ROUNDS <= (last != FOR_EVER), "a step may be done twice if its worker died"
        assert Counter([one.job async for one in home.history()]) == {"renew": 1, "pack": ROUNDS}
        if last == FOR_EVER:
            assert outcome.attempt == 1
            assert await traces(home) == 0
        return backend.count


@STRIDES
@ON_EACH
async def test_a_worker_that_dies(kind: str, stride: int) -> None:
    whole = await run(kind, moment=1)
    for last in range(1, whole + 1, stride):
        for has_effect in (False, True):
            for moment in {1, last, FOR_EVER}:
                await run(kind, last=last, moment=moment, has_effect=has_effect)


@ON_BOTH
@BOTH_KINDS
async def test_a_job_begins_anew(jet: Jet, exclusive: bool) -> None:
    queue, seen, undone, sizes = await jet.queue("shop", exclusive=exclusive), list[object](), list[int](), set[int]()

    @queue.job(max_attempts=2, backoff=FAST)
    async def renew(context: JobContext, month: int) -> None:
        sizes.add(await traces(queue))
        await context.step("charge", seen.append, month)
        await context.on_failure(undone.append, month)
        await context.publish("month", month)
        if month == 2 and context.attempt == 1:
            raise ConnectionError("again")
        if month == 6:
            seen.append(await context.wait_for("end", str))
            raise pelton.PermanentJobError("it ends")
        raise Continue(month + 1) if month != 3 else Continue(month=month + 1)

    @queue.job
    async def behind() -> None:
        seen.append("behind")

    @queue.job
    def on_thread(context: JobContext, number: int) -> int:
        if number < 3:
            raise Continue(number + 1)
        return number

    @queue.job(max_attempts=1)
    async def wrong(context: JobContext) -> None:
        raise Continue("too many")

    @queue.job(max_attempts=1)
    async def plain() -> None:
        raise Continue

    handle = await queue.options(key="k").enqueue(renew, 1)
    await handle.send("end", "now")
    if exclusive:
        await queue.options(key="k").enqueue(behind)
    jobs: list[tuple[Any, ...]] = [(on_thread, 1), (wrong,), (plain,)]
    others = [await queue.options(key=str(job)).enqueue(job, *args) for job, *args in jobs]
    async with working(queue):
        outcome = await handle.outcome(timeout=30)
        ends = [await one.outcome(timeout=30) for one in others]
    assert (outcome.state, outcome.attempt, len(outcome.errors)) == ("failed", 1, 1)
    assert seen[:7] == [1, 2, 3, 4, 5, 6, "now"], "its key is kept"
    assert undone == [6]
    assert outcome.events is not None
    assert bytes(outcome.events["month"]) == b"6"
    assert max(sizes) <= 6, "what earlier rounds have left is removed"
    assert ends[0].value() == 3
    assert "cannot take these arguments" in ends[1].error
    assert "only one that takes a JobContext can" in ends[2].error
    assert await traces(queue) == 0


async def test_one_that_is_cancelled_in_a_later_round_undoes_only_that(queue: Queue) -> None:
    undone = list[int]()

    @queue.job
    async def renew(context: JobContext, month: int) -> None:
        await context.on_failure(undone.append, month)
        if month < 3:
            raise Continue(month + 1)
        await context.sleep(3600)

    handle = await queue.enqueue(renew, 1)
    async with working(queue):
        while (await handle.info()).state != "scheduled":
            await asyncio.sleep(0.01)
        await handle.cancel()
        assert (await handle.outcome(timeout=30)).state == "cancelled"
    assert undone == [3]
