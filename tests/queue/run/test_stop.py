"""Stopping: gracefully, on request and by signals, and without burning attempts."""

import asyncio
import os
import signal
import threading
from collections.abc import Sequence

import pytest

import pelton
from pelton.api import PullRequest
from pelton.queue import JobContext, JobCounts, Queue
from pelton.queue.model.records import records_of
from pelton.queue.run.attempt import JobAttempt
from pelton.queue.run.fetch import Appetite, JobIntake
from pelton.queue.run.leased_jobs import LeasedJobs
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import Child, drain, working
from tests.queue.roles import QUEUE, register


async def test_a_running_job_is_told_and_finishes_within_its_grace(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.job
    async def job(context: JobContext) -> str:
        started.set()
        while not context.stopping:
            await asyncio.sleep(0)
        return "finished"

    handle = await job.enqueue()
    async with working(queue):
        await started.wait()
    assert (await handle.outcome()).value() == "finished"


async def test_after_the_grace_an_async_job_is_cancelled_and_handed_back(queue: Queue) -> None:
    started, cancelled = asyncio.Event(), 0

    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> int:
        nonlocal cancelled
        started.set()
        if cancelled < 3:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled += 1
        return context.attempt

    handle = await job.enqueue()
    for _ in range(3):
        started.clear()
        async with working(queue, grace=0):
            await started.wait()
        assert await queue.counts() == JobCounts(pending=1)
    await drain(queue)
    assert (await handle.outcome()).value() == 1  # being handed back burns no attempt


@ON_BOTH
async def test_a_job_with_its_own_id_that_was_not_begun_burns_no_attempt(another: OpenQueue) -> None:
    queue = await another("garage")

    @queue.job(max_attempts=1)
    async def job(context: JobContext) -> int:
        return context.attempt

    handle = await queue.options(delay=0.01).enqueue(job)
    source = queue._context.source_for("w")
    (taken,) = await source.take(source.channels[0], PullRequest(batch=1, expires_ns=5 * 10**9))
    await source.settle(records_of(queue.names, "w", taken.delivered).handed_back())
    await drain(queue)
    assert (await handle.outcome()).value() == 1


async def test_what_is_being_handed_back_when_it_stops_burns_no_attempt(
    keyed: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    handing, go_on = asyncio.Event(), asyncio.Event()
    hand_back = LeasedJobs.hand_back

    async def slowly(held: LeasedJobs[JobAttempt], attempts: Sequence[JobAttempt]) -> None:
        handing.set()
        await go_on.wait()
        await hand_back(held, attempts)

    async def for_nobody(intake: JobIntake, found: list[JobAttempt], asked: float) -> None:
        monkeypatch.setattr(Appetite, "room", lambda appetite, running, waiting: 0)
        # As if the other channel had filled the slots meanwhile.
        intake._taken_in_at = asked
        await take_in(intake, found, asked)

    take_in = JobIntake._take_in
    with monkeypatch.context() as patch:
        patch.setattr(LeasedJobs, "hand_back", slowly)
        patch.setattr(JobIntake, "_take_in", for_nobody)

        @keyed.job(max_attempts=1)
        async def job() -> None: ...

        await keyed.enqueue_many([job.options(key=key).bind() for key in "ab"])
        work = asyncio.create_task(keyed.work(concurrency=2, handle_signals=False))
        await asyncio.wait_for(handing.wait(), 60)
        keyed.stop()
        # The fetchers are gone by the time the rest is handed back.
        while [task for task in asyncio.all_tasks() if task.get_name().endswith("fetcher")]:
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(work, 60)
    monkeypatch.undo()
    assert await keyed.counts() == JobCounts(pending=2)
    await drain(keyed)
    assert await keyed.counts() == JobCounts(completed=2)


async def test_a_job_that_finishes_although_cancelled_has_finished(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.job
    async def job() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "in the end"
        return "never"

    handle = await job.enqueue()
    async with working(queue, grace=0):
        await started.wait()
    assert (await handle.outcome()).value() == "in the end"


async def test_a_thread_is_waited_for_beyond_the_grace(queue: Queue) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    finish = threading.Event()

    @queue.job
    def job() -> str:
        loop.call_soon_threadsafe(started.set)
        finish.wait(10)
        return "finished"

    handle = await job.enqueue()
    work = asyncio.create_task(queue.work(handle_signals=False, grace=0))
    await started.wait()
    queue.stop()
    done, _ = await asyncio.wait([work], timeout=0.1)
    assert not done
    finish.set()
    await work
    assert (await handle.outcome()).value() == "finished"


async def test_jobs_taken_and_not_started_are_handed_back(queue: Queue) -> None:
    """Quick jobs are prefetched; when the worker stops they are free again at once, without an attempt counted."""
    ran = list[int]()

    @queue.job(max_attempts=1)
    async def job(n: int) -> None:
        ran.append(n)
        if n == 300:
            queue.stop()

    await job.enqueue_many([(n,) for n in range(1000)])
    await queue.work(concurrency=2, handle_signals=False)
    counts = await queue.counts()
    assert (counts.running, counts.failed) == (0, 0)
    assert counts.completed == len(ran) < 1000
    await drain(queue, concurrency=2)
    assert sorted(ran) == list(range(1000))
    assert await queue.counts() == JobCounts(completed=1000)


async def test_stop_ends_every_worker_of_the_queue(queue: Queue) -> None:
    workers = [asyncio.create_task(queue.work(handle_signals=False)) for _ in range(3)]
    await asyncio.sleep(0)
    queue.stop()
    await asyncio.wait_for(asyncio.gather(*workers), 60)
    queue.stop()  # harmless


async def test_cancelling_work_stops_it_gracefully(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.job
    async def job(context: JobContext) -> str:
        started.set()
        while not context.stopping:
            await asyncio.sleep(0)
        return "finished"

    handle = await job.enqueue()
    work = asyncio.create_task(queue.work(handle_signals=False))
    await started.wait()
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled()
    assert (await handle.outcome()).value() == "finished"


@pytest.mark.parametrize("pause", [0, 0.05])
async def test_cancelling_twice_ends_it_now(queue: Queue, pause: float) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @queue.job
    async def job() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await job.enqueue()
    work = asyncio.create_task(queue.work(handle_signals=False))
    await started.wait()
    work.cancel()
    await asyncio.sleep(pause)
    work.cancel()
    done, _ = await asyncio.wait([work], timeout=5)
    assert done
    await asyncio.wait_for(ended.wait(), 60)
    assert not [thread for thread in threading.enumerate() if thread.name == "pelton-leases"]


async def test_a_signal_stops_all_workers_of_the_process_and_handlers_are_put_back(queue: Queue, keyed: Queue) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for number in (signal.SIGTERM, signal.SIGINT):
        workers = [asyncio.create_task(each.work()) for each in (queue, keyed)]
        await asyncio.sleep(0)
        os.kill(os.getpid(), number)
        await asyncio.wait_for(asyncio.gather(*workers), 60)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_worker_that_does_not_handle_signals_leaves_them_alone(queue: Queue) -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with working(queue):
        await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGTERM) is before


async def opened(path: str, job: str, lease: float = 5) -> tuple[pelton.Jet, object]:
    jet = await pelton.open(path, sync="off")
    queue = await jet.queue(QUEUE, exclusive=True, lease=lease)
    register(queue)
    return jet, await queue.jobs_by_name[job].enqueue(key="k")


async def test_sigterm_lets_an_async_job_finish(path: str) -> None:
    jet, handle = await opened(path, "hold")
    with Child("work", path, "5") as child:
        await child.says("started 1")
        child.process.send_signal(signal.SIGTERM)
        await child.says("stopping")
        child.tell("finish")
        assert await child.ends() == 0
    assert (await handle.outcome(timeout=60)).value() == "attempt 1"  # type: ignore[attr-defined]
    await jet.close()


async def test_sigint_hands_an_endless_job_back_after_the_grace(path: str) -> None:
    jet, handle = await opened(path, "endless")
    for _ in range(2):
        with Child("work", path, "5", "0.05") as child:
            await child.says("started 1")  # the second time as well
            child.process.send_signal(signal.SIGINT)
            assert await child.says("cancelled") == "cancelled kept"
            await child.says("done")
            assert await child.ends() == 0
        assert (await handle.info()).state == "pending"  # type: ignore[attr-defined]
    await jet.close()


async def test_sigterm_waits_for_a_thread(path: str) -> None:
    jet, handle = await opened(path, "thread", lease=1)
    with Child("work", path, "1", "0.01") as child:
        await child.says("started 1")
        child.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(1.5)  # longer than the lease: it is kept
        child.tell("finish")
        assert await child.says("kept") == "kept stopping"
        assert await child.ends() == 0
    assert (await handle.outcome(timeout=60)).value() == "attempt 1"  # type: ignore[attr-defined]
    await jet.close()


async def test_a_second_signal_does_what_it_did_before(path: str) -> None:
    jet, _ = await opened(path, "endless")
    with Child("work", path, "5", "600") as child:
        await child.says("started 1")
        child.process.send_signal(signal.SIGTERM)
        while child.process.poll() is None:
            await asyncio.sleep(0.05)
            child.process.send_signal(signal.SIGTERM)
        assert child.process.returncode == -signal.SIGTERM
    await jet.close()


@pytest.mark.parametrize("order", ["first", "of-the-loop", "late"])
async def test_a_program_that_handles_signals_itself_keeps_them(path: str, order: str) -> None:
    """A web server whose lifespan runs a worker: the first SIGTERM is the server's, however the two were started."""
    jet, handle = await opened(path, "hold")
    with Child("serve", path, "5", order) as child:
        await child.says("serving")
        child.process.send_signal(signal.SIGTERM)
        await child.says("told")
        await child.says("stopping")
        child.tell("finish")
        assert await child.says("after") == f"after {order != 'of-the-loop'}"
        assert await child.ends() == 0
    assert (await handle.outcome(timeout=60)).value() == "attempt 1"  # type: ignore[attr-defined]
    await jet.close()


async def test_after_so_many_jobs_a_worker_takes_no_more_and_lets_those_finish_that_run(queue: Queue) -> None:
    go, ended = asyncio.Event(), list[bool]()

    @queue.job
    async def job(context: JobContext) -> None:
        await go.wait()
        ended.append(context.stopping)

    await job.enqueue_many([()] * 5)
    work = asyncio.create_task(queue.work(handle_signals=False, concurrency=3, max_jobs=2, grace=0.01))
    done, _ = await asyncio.wait([work], timeout=0.2)  # longer than the grace, which it is not told of
    assert not done
    go.set()
    await asyncio.wait_for(work, 60)
    assert ended == [False, False]
    assert (await queue.counts()).pending == 3


async def test_a_worker_that_takes_no_more_is_still_stopped(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.job
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    handle = await endless.enqueue()
    work = asyncio.create_task(queue.work(handle_signals=False, max_jobs=1, grace=0))
    await started.wait()
    queue.stop()
    await asyncio.wait_for(work, 60)
    info = await handle.info()
    assert (info.state, info.attempt) == ("pending", 0)


async def test_the_number_of_jobs_is_checked(queue: Queue) -> None:
    with pytest.raises(pelton.ConfigError, match="max_jobs"):
        await queue.work(max_jobs=0)
