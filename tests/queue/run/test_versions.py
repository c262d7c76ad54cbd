"""Jobs that go on with the version of the code that has begun them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import pelton
from pelton import Jet
from pelton.queue import JobContext, Jobs
from pelton.queue.model.limits import Order
from pelton.queue.run.parking import Recall, VersionRecall
from pelton.runtime import Signal
from pelton.testing import drain, manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import working
from tests.queue.run.test_signals import until_waiting
from tests.queue.run.test_steps import BOTH_KINDS

ran = Counter[str]()


def jobs_of(version: str) -> Jobs:
    ran.clear()
    jobs = Jobs(version=version)

    @jobs.job(max_attempts=1)
    async def ship(context: JobContext, pause: float = 3600) -> str:
        ran[f"start {version}"] += 1
        await context.step("begin", str)
        if pause:
            await context.sleep(pause)
        else:
            await context.wait_for("go")
        return version

    return jobs


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_a_deploy_while_many_jobs_sleep(number: int) -> None:
    runtime = manual_runtime()
    old, new = jobs_of("7"), jobs_of("8")
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("shop", jobs=old)
        handles = await queue.enqueue_many([old.get("ship").bind() for _ in range(number)])  # type: ignore[union-attr]
        await drain(queue, concurrency=50)
        newer = await jet.queue("shop", jobs=new)
        runtime.clock.advance(3600)
        late = await newer.enqueue("ship")
        await drain(newer, concurrency=50)
        counts = await newer.counts()
        assert (counts.stuck, counts.scheduled, ran["start 8"]) == (number, 1, 1)
        info = await handles[0].info()
        assert (info.attempt, info.last_error) == (0, "it waits for a worker of version '7'")
        await drain(newer, within=3600 if number > 100 else 2 * 86_400)
        assert (await newer.counts()).stuck == number
        assert await late.value() == "8"
        await drain(queue, concurrency=50)
        assert {await handle.value() for handle in handles} == {"7"}
        assert ran == {"start 7": 2 * number, "start 8": 2}


async def test_a_worker_that_dies_after_it_gave_a_job_back_has_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(recall: Recall, deliveries: object) -> None: ...

    monkeypatch.setattr(Recall, "tell_versions", dies)
    runtime = manual_runtime()
    old, new = jobs_of("7"), jobs_of("8")
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue, newer = await jet.queue("shop", jobs=old), await jet.queue("shop", jobs=new)
        handle = await queue.enqueue("ship")
        await drain(queue)
        runtime.clock.advance(3600)
        await drain(newer)
        assert (await handle.info()).state == "stuck"
        await drain(queue)
        assert await handle.value() == "7"


async def test_a_loop_that_begins_anew_goes_on_with_any_version() -> None:
    def loop_of(version: str) -> Jobs:
        jobs = Jobs(version=version)

        @jobs.job
        async def loop(context: JobContext, seen: list[str]) -> list[str]:
            await context.sleep(60)
            if len(seen) < 2:
                raise pelton.Continue([*seen, version])
            return seen

        return jobs

    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue, newer = [await jet.queue("loop", jobs=loop_of(version)) for version in "78"]
        handle = await queue.enqueue("loop", [])
        await drain(queue)
        runtime.clock.advance(60)
        await drain(newer)
        assert (await handle.info()).last_error == "it waits for a worker of version '7'"
        await queue.work(max_jobs=1, handle_signals=False)
        await drain(newer, within=120)
        assert await handle.value() == ["7", "8"]


@ON_BOTH
@BOTH_KINDS
async def test_workers_of_two_versions_work_side_by_side(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    old, new = jobs_of("7"), jobs_of("8")
    queue = await jet.queue("shop", jobs=old, exclusive=exclusive)
    newer = await another("shop", jobs=new)
    begun = [await queue.options(key=f"k{n}").enqueue("ship", pause=0) for n in range(12)]
    async with working(queue):
        await until_waiting(queue, *(handle.id for handle in begun))
    async with working(newer, concurrency=4):
        late = await newer.options(key="late").enqueue("ship", pause=0)
        for handle in [late, *begun[:6]]:
            await handle.send("go")
        assert await late.value(timeout=60) == "8"
        async with asyncio.timeout(60):
            while (await newer.counts()).stuck < 6:
                await asyncio.sleep(0.01)
        async with working(queue, concurrency=2):
            for handle in begun[6:]:
                await handle.send("go")
            assert [await handle.value(timeout=60) for handle in begun] == ["7"] * 12
    assert {(await handle.outcome()).attempt for handle in begun} == {1}
    assert ran["start 8"] <= 2


async def test_a_worker_without_a_version_takes_all_and_a_parked_job_is_cancelled(jet: Jet, another: OpenQueue) -> None:
    old, new, none = jobs_of("7"), jobs_of("8"), jobs_of("")
    queue = await jet.queue("shop", jobs=old)
    handles = [await queue.enqueue("ship", pause=0) for _ in range(3)]
    async with working(queue):
        await until_waiting(queue, *(handle.id for handle in handles))
    async with working(await another("shop", jobs=new)):
        for handle in handles:
            await handle.send("go")
        async with asyncio.timeout(60):
            while (await queue.counts()).stuck < 3:
                await asyncio.sleep(0.01)
        assert await handles[0].cancel()
        assert (await handles[0].outcome()).state == "cancelled"
    async with working(await another("shop", jobs=none)):
        await handles[1].cancel()
    async with working(await another("shop", jobs=none)), asyncio.timeout(60):
        assert (await handles[1].outcome()).state == "cancelled"


async def test_what_is_given_back_while_it_is_recalled_is_recalled_again(jet: Jet) -> None:
    recall = VersionRecall((await jet.queue("shop", jobs=jobs_of("7")))._context)
    order, asked, changed = Order(waits="1", version="7"), Signal(), Signal()

    async def recalled(job_id: str, versions: set[str]) -> int:
        # Another worker takes the job, gives it back and says so, before this returns.
        if not asked.generation:
            recall.heed(order)
        asked.notify()
        return 1

    recall._recall.of_versions = recalled  # type: ignore[assignment, method-assign]  # that comes between
    recall.heed(order)
    following = asyncio.ensure_future(recall.follow(changed, lambda: 5))
    async with asyncio.timeout(60):
        while asked.generation < 2:
            await asked.wait(asked.generation)
    following.cancel()
    assert not recall.waiting


@pytest.mark.parametrize("version", [7, None, b"7"])
def test_a_version_is_a_text(version: object) -> None:
    with pytest.raises(pelton.ConfigError, match="version of jobs"):
        Jobs(version=version)  # type: ignore[arg-type]
