"""The worker: threads and tasks, several at once, without hoarding, failing loudly."""

import asyncio
import threading
from typing import Any

import pytest

import pelton
from pelton import Jet
from pelton.api import ConfigError, ConsumerNotFoundError, StoreBusyError, StoreClosedError, StoreFullError
from pelton.queue import JobContext, Queue
from tests.queue.conftest import OpenQueue
from tests.queue.helpers import ROOT, Child, drain, ended, working
from tests.queue.roles import QUEUE, register


async def test_threads_run_in_parallel_and_leave_the_loop_free(queue: Queue) -> None:
    together, freed = threading.Barrier(3), threading.Event()

    @queue.job
    def job() -> None:
        together.wait(10)
        assert freed.wait(10)

    @queue.job
    async def free() -> None:
        while together.n_waiting:
            await asyncio.sleep(0)
        freed.set()

    await job.enqueue_many([()] * 3)
    await free.enqueue()
    await drain(queue, concurrency=4)
    assert (await queue.counts()).completed == 4


async def test_async_jobs_run_together(queue: Queue) -> None:
    together = asyncio.Barrier(8)

    @queue.job
    async def job() -> None:
        await together.wait()

    await job.enqueue_many([()] * 8)
    await drain(queue, concurrency=8)


async def test_no_more_run_than_asked_for(queue: Queue) -> None:
    running = peak = 0

    @queue.job
    async def job() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1

    await job.enqueue_many([()] * 100)
    await drain(queue, concurrency=3)
    assert peak == 3


async def test_several_workers_share_a_queue(queue: Queue) -> None:
    together = asyncio.Barrier(2)

    @queue.job
    async def job(context: JobContext) -> str:
        await together.wait()
        return context.worker

    handles = await job.enqueue_many([()] * 10)
    async with working(queue, queue, concurrency=1):
        outcomes = await asyncio.gather(*(handle.outcome(timeout=60) for handle in handles))
    assert len({outcome.value() for outcome in outcomes}) == 2


async def test_several_processes_share_a_queue(path: str) -> None:
    async with pelton.open(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=True, lease=5)
        register(queue)
        quick = queue.jobs_by_name["quick"]
        with Child("work", path, "5") as one, Child("work", path, "5") as two:
            await asyncio.gather(one.says("ready"), two.says("ready"))
            handles = await quick.enqueue_many([(1,)] * 300, keys=[f"k{n % 20}" for n in range(300)])
            await asyncio.gather(*(handle.outcome(timeout=60) for handle in handles[-20:]))
            one.process.terminate()
            two.process.terminate()
            assert (await one.ends(), await two.ends()) == (0, 0)
        await drain(queue)
        outcomes = await ended(queue)
        assert sorted(int(outcome.id) for outcome in outcomes) == list(range(1, 301))
        assert {outcome.value() for outcome in outcomes} <= {
            one.process.pid,
            two.process.pid,
            __import__("os").getpid(),
        }


async def test_a_busy_worker_hoards_nothing(keyed: Queue, another: OpenQueue) -> None:
    """Two consumers serve an exclusive queue; together they must not take more than there is room for."""
    other = await another("keyed")
    started = asyncio.Queue[str]()
    finish = asyncio.Event()

    async def job(context: JobContext) -> None:
        started.put_nowait(context.worker)
        await finish.wait()

    queued = keyed.job(job)
    other.job(job)
    async with working(keyed, other, concurrency=2):
        await queued.enqueue_many([()] * 4, keys=["a", "", "b", ""])
        workers = [await asyncio.wait_for(started.get(), 60) for _ in range(4)]
        assert len(set(workers)) == 2
        assert (await keyed.counts()).running == 4
        finish.set()


async def test_neither_keyed_nor_free_jobs_starve(keyed: Queue) -> None:
    order = list[str]()

    @keyed.job
    async def job(context: JobContext) -> None:
        order.append("keyed" if context.key else "free")
        await asyncio.sleep(0.001)

    await job.enqueue_many([()] * 80, keys=[f"k{n}" for n in range(40)] + [""] * 40)
    await drain(keyed, concurrency=1)
    assert {"keyed", "free"} == set(order[:30])


async def test_an_idle_worker_is_woken(queue: Queue, another: OpenQueue) -> None:
    @queue.job
    async def job() -> None: ...

    elsewhere = await another("garage")
    far = elsewhere.job(name="job")(lambda: None)
    async with working(queue):
        await (await job.enqueue()).outcome(timeout=60)
        handle = await far.enqueue()
        await handle.outcome(timeout=60)


async def test_until_empty_waits_for_retries_and_for_other_workers(queue: Queue, another: OpenQueue) -> None:
    other = await another("garage")
    started, finish = asyncio.Event(), asyncio.Event()

    @other.job
    async def slow() -> None:
        started.set()
        await finish.wait()

    await slow.enqueue()
    queue.job(name="slow")(lambda: None)
    async with working(other):
        await started.wait()
        draining = asyncio.create_task(drain(queue))
        done, _ = await asyncio.wait([draining], timeout=0.3)
        assert not done
        finish.set()
        await draining


async def test_an_empty_queue_is_drained_at_once(queue: Queue, keyed: Queue) -> None:
    await drain(queue)
    await drain(keyed)


async def test_a_store_closed_under_a_worker_ends_it_loudly(path: str) -> None:
    jet = await pelton.open(path, sync="off")
    queue = await jet.queue("q")
    started, finish = asyncio.Event(), asyncio.Event()

    @queue.job
    async def job() -> None:
        started.set()
        await finish.wait()

    await job.enqueue()
    work = asyncio.create_task(queue.work(handle_signals=False))
    await started.wait()
    await jet.close()
    finish.set()
    with pytest.raises(StoreClosedError):
        await asyncio.wait_for(work, 60)


async def test_an_idle_worker_notices_that_its_store_is_closed(path: str) -> None:
    jet = await pelton.open(path, sync="off")
    queue = await jet.queue("q")
    work = asyncio.create_task(queue.work(handle_signals=False))
    await asyncio.sleep(0)
    await jet.close()
    with pytest.raises(StoreClosedError):
        await asyncio.wait_for(work, 60)


async def test_a_queue_deleted_under_a_worker_ends_it_loudly(queue: Queue, jet: Jet) -> None:
    work = asyncio.create_task(queue.work(handle_signals=False))
    await asyncio.sleep(0)
    await (await jet.stream("JOBS_garage")).delete_consumer("workers")
    with pytest.raises(ConsumerNotFoundError):
        await asyncio.wait_for(work, 60)


@pytest.mark.parametrize("error", [StoreBusyError("x"), StoreFullError("x")])
async def test_a_store_that_cannot_at_the_moment_is_asked_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    @queue.job
    async def job() -> int:
        return 1

    handle = await job.enqueue()
    backend = queue.jet.backend
    failures = {"pull": 1, "settle": 1}
    for name in failures:
        real = getattr(backend, name)

        async def failing(*args: object, _real: object = real, _name: str = name) -> object:
            if failures[_name]:
                failures[_name] -= 1
                raise error
            return await _real(*args)  # type: ignore[operator]

        monkeypatch.setattr(backend, name, failing)
    await drain(queue)
    assert (await handle.outcome()).value() == 1


def test_children_find_their_roles() -> None:
    assert (ROOT / "tests" / "queue" / "roles.py").exists()


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": "8"}, {"concurrency": 2.5}, {"grace": -1}, {"grace": "x"}, {"grace": None}],
)
async def test_a_worker_that_cannot_be_is_refused(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"queue 'garage': {next(iter(options))} is"):
        await queue.work(**options)
