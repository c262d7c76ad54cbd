"""Running a queue's jobs in tests."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

import pelton
import pelton.testing
from pelton import ConfigError, Jet, JobContext
from pelton.queue import Queue
from pelton.runtime.loop_thread import LoopThread
from pelton.testing import ManualClock, drain, inline

pytest_plugins = ["pelton.testing.fixtures"]
# The module, whose name in its package is the function's.
draining = sys.modules["pelton.testing.drain"]
ran: list[object] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def pelton_jobs() -> pelton.Jobs:
    jobs = pelton.Jobs()

    @jobs.job
    async def note(what: str) -> str:
        ran.append(what)
        return what

    @jobs.job(max_attempts=3, backoff=pelton.Backoff(base=60, cap=600, jitter=0))
    async def flaky(good: int, context: JobContext) -> int:
        ran.append(context.attempt)
        if context.attempt < good:
            raise ValueError(f"attempt {context.attempt}")
        return context.attempt

    @jobs.job
    def on_thread(wrong: bool) -> None:
        if wrong:
            raise KeyError("thread")

    @jobs.job
    async def again(context: JobContext) -> None:
        raise pelton.RetryJob(delay=5)

    return jobs


async def test_nothing_runs_until_it_is_drained(pelton_queue: Queue) -> None:
    first = await pelton_queue.enqueue("note", what="a")
    later = await pelton_queue.options(delay=timedelta(hours=1)).enqueue("note", what="b")
    await asyncio.sleep(0)
    assert ran == []
    await drain(pelton_queue)
    assert ran == ["a"]
    assert (await first.info()).state == "completed"
    assert (await later.info()).state == "scheduled"


async def test_locks_and_terms_are_kept_while_the_clock_is_turned(pelton_queue: Queue, pelton_jet: Jet) -> None:
    for delay in (50, 120):
        await pelton_queue.options(delay=delay).enqueue("note", what=str(delay))
    async with pelton_jet.lock("press", ttl=30) as press, pelton_jet.elect("boss", ttl=30) as term:
        await drain(pelton_queue, within=120)
        assert ran == ["50", "120"]
        press.check()
        term.check()


async def test_the_clock_is_turned_from_one_due_time_to_the_next(
    pelton_queue: Queue, pelton_clock: ManualClock
) -> None:
    for delay in (3600, 60, 1800, 3601):
        await pelton_queue.options(delay=delay).enqueue("note", what=str(delay))
    start = pelton_clock.monotonic()
    await drain(pelton_queue, within=3600)
    assert ran == ["60", "1800", "3600"]
    assert pelton_clock.monotonic() == start + 3600
    pelton_clock.advance(1)
    await drain(pelton_queue)
    assert ran[-1] == "3601"


async def test_what_jobs_raise_is_raised_unless_a_retry_has_completed(pelton_queue: Queue) -> None:
    await pelton_queue.enqueue("flaky", good=2)
    await pelton_queue.enqueue("on_thread", wrong=True)
    with pytest.raises(ExceptionGroup, match="jobs of queue 'tests' raised") as raised:
        await drain(pelton_queue)
    assert sorted(map(repr, raised.value.exceptions)) == ["KeyError('thread')", "ValueError('attempt 1')"]
    await drain(pelton_queue, raises=False, within=30)
    await pelton_queue.enqueue("flaky", good=3)
    await pelton_queue.enqueue("flaky", good=9)
    with pytest.raises(ExceptionGroup) as raised:
        await drain(pelton_queue, within=3600)
    assert [repr(error) for error in raised.value.exceptions if "attempt" in str(error)] == ["ValueError('attempt 3')"]


async def test_to_ask_for_another_attempt_is_no_mistake(pelton_queue: Queue) -> None:
    handle = await pelton_queue.enqueue("again")
    await drain(pelton_queue, within=7)
    assert (await handle.info()).attempt == 2


async def test_an_exclusive_queue_is_drained_in_order_and_past_a_retry(
    pelton_jet: Jet, pelton_jobs: pelton.Jobs
) -> None:
    queue = await pelton_jet.queue("exclusive", jobs=pelton_jobs, exclusive=True)
    await queue.options(key="k").enqueue("flaky", good=2)
    for what in ("second", "third"):
        await queue.options(key="k").enqueue("note", what=what)
    await queue.enqueue("note", what="free")
    await queue.options(key="other").enqueue("note", what="other")
    await drain(queue, raises=False)
    assert sorted(map(str, ran)) == ["1", "free", "other"]
    await drain(queue, within=60)
    assert ran[3:] == [2, "second", "third"]


async def test_a_paused_queue_has_nothing_to_run(pelton_queue: Queue) -> None:
    await pelton_queue.enqueue("note", what="a")
    await pelton_queue.pause()
    await asyncio.wait_for(drain(pelton_queue), 60)
    assert ran == []
    await pelton_queue.resume()
    await drain(pelton_queue)
    assert ran == ["a"]


async def test_inline_jobs_run_as_they_are_enqueued_and_raise(pelton_queue: Queue, pelton_jobs: pelton.Jobs) -> None:
    note, flaky = pelton_jobs.get("note"), pelton_jobs.get("flaky")
    assert note is not None
    assert flaky is not None
    with inline(pelton_queue):
        handle = await pelton_queue.enqueue(note, "a")
        assert ran == ["a"]
        assert await handle.value() == "a"
        with pytest.raises(ValueError, match="attempt 1"):
            await pelton_queue.options(key="k").enqueue(flaky, 2)
        with pytest.raises(ExceptionGroup):
            await pelton_queue.enqueue_many([flaky.bind(2), flaky.bind(2)])
        await pelton_queue.options(delay=60).enqueue(note, "later")
        assert "later" not in ran
    await pelton_queue.enqueue(note, "b")
    assert "b" not in ran
    await drain(pelton_queue, within=60)
    assert {"b", "later"} <= set(ran)


async def test_a_job_that_enqueues_is_inline_too(pelton_queue: Queue) -> None:
    @pelton_queue.job
    async def outer() -> None:
        await pelton_queue.enqueue("note", what="inner")
        ran.append("outer")

    with inline(pelton_queue):
        await outer.enqueue()
    assert ran == ["inner", "outer"]


async def test_to_turn_the_clock_needs_a_manual_one() -> None:
    async with pelton.open("memory:") as jet:
        queue = await jet.queue("tests")
        await drain(queue)
        with pytest.raises(ConfigError, match="manual_runtime"):
            await drain(queue, within=1)


async def test_the_fixtures_have_public_types(
    pelton_jet: pelton.Jet,
    pelton_queue: pelton.Queue,
    pelton_clock: pelton.testing.ManualClock,
    pelton_runtime: pelton.testing.ManualRuntime,
    pelton_jobs: pelton.Jobs,
) -> None:
    assert pelton_queue.jet is pelton_jet
    assert pelton_runtime.clock is pelton_clock
    kinds = [pelton.Jet, pelton.Queue, pelton.testing.ManualClock, pelton.testing.ManualRuntime, pelton.Jobs]
    fixtures = [pelton_jet, pelton_queue, pelton_clock, pelton_runtime, pelton_jobs]
    assert list(map(type, fixtures)) == kinds


def test_a_clock_tells_its_next_call() -> None:
    clock = ManualClock()
    assert clock.next_call() is None
    gone, _ = clock.call_later(1, lambda: None), clock.call_later(2, lambda: None)
    assert clock.next_call() == 1
    gone.cancel()
    assert clock.next_call() == 2
    clock.advance(3)
    assert clock.next_call() is None


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_fixtures_are_found_by_other_projects(tmp_path: Path, mode: str) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pelton.testing.fixtures"]\n')
    (tmp_path / "test_shop.py").write_text(
        "import pelton, pytest\n"
        "from pelton.testing import drain\n"
        "jobs = pelton.Jobs()\n"
        "@jobs.job\n"
        "async def add(a: int, b: int) -> int: return a + b\n"
        "@pytest.fixture\n"
        "def pelton_jobs(): return jobs\n"
        "@pytest.mark.asyncio\n"
        "async def test_it(pelton_queue, pelton_clock):\n"
        "    job = await pelton_queue.options(delay=5).enqueue(add, 1, 2)\n"
        "    pelton_clock.advance(5)\n"
        "    await drain(pelton_queue)\n"
        "    assert await job.value() == 3\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", f"asyncio_mode={mode}", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


async def test_the_clock_is_turned_once_for_each_due_time(
    pelton_queue: Queue, pelton_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    advance = pelton_clock.advance
    monkeypatch.setattr(pelton_clock, "advance", lambda by: [turns.append(by) if by else None, advance(by)])
    await pelton_queue.schedule("hourly", "note", kwargs={"what": "x"}, cron="0 * * * *")
    # Later than the store looks by itself, and longer than the worker's leases and pulls last.
    await pelton_queue.options(delay=90_000).enqueue("note", what="late")
    await drain(pelton_queue, within=86_400)
    assert ran == ["x"] * 24
    # A few more are those of the store itself.
    assert len(turns) < 30


async def test_jobs_under_a_rate_start_when_it_lets_them(pelton_queue: Queue, pelton_clock: ManualClock) -> None:
    at = list[float]()

    @pelton_queue.job
    async def timed() -> None:
        at.append(round(pelton_clock.monotonic() - start, 3))

    await pelton_queue.limit(rate=pelton.Rate(20))
    start = pelton_clock.monotonic()
    await pelton_queue.enqueue_many([timed.bind() for _ in range(30)])
    await drain(pelton_queue, within=1)
    assert at == [n / 20 for n in range(21)]
    # Longer than the leases of what waits.
    await pelton_queue.unlimit()
    await pelton_queue.limit(job="timed", rate=pelton.Rate(1, per=3600))
    at.clear()
    await drain(pelton_queue, within=3600 * 3)
    assert at == pytest.approx([at[0] + 3600 * n for n in range(len(at))])
    assert len(at) >= 3


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_nap_and_a_batch_need_no_time(pelton_queue: Queue, pelton_clock: ManualClock, concurrency: int) -> None:
    @pelton_queue.job
    async def naps(context: JobContext) -> None:
        await context.sleep(0.5)
        ran.append(pelton_clock.monotonic() - start)

    @pelton_queue.job(batch=10, wait=5)
    async def together(items: list[int]) -> None:
        ran.append(sorted(items))

    start = pelton_clock.monotonic()
    await pelton_queue.enqueue_many([naps.bind(), *map(together.bind, range(3))])
    await asyncio.wait_for(drain(pelton_queue, concurrency=concurrency), 60)
    assert ran == ([[0], [1], [2]] if concurrency == 1 else [[0, 1, 2]])
    await drain(pelton_queue, within=1, concurrency=concurrency)
    assert ran[-1] == 0.5


async def test_what_else_waits_for_the_clock_has_its_time(pelton_queue: Queue, pelton_clock: ManualClock) -> None:
    async def customer() -> None:
        await pelton_clock.sleep(10)
        ran.append(pelton_clock.monotonic() - start)

    start = pelton_clock.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(customer())
        await pelton_queue.options(delay=60).enqueue("note", what="late")
        await drain(pelton_queue, within=60)
    assert ran == [10, "late"]


async def test_a_thread_that_blocks_its_loop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_PATIENCE_S", math.inf)
    begun, asked, over = Event(), Event(), Event()

    async def main() -> None:
        begun.set()
        # Blocked only when it was asked already, and then it does not come to that.
        asked.wait()
        await thread.block(over, 60)

    thread = LoopThread(main, "busy")
    thread.start()
    begun.wait()
    call_soon = thread.call_soon
    monkeypatch.setattr(thread, "call_soon", lambda *args: call_soon(*args) and not asked.set())
    draining._let_threads_catch_up()
    over.set()
    thread.join()


async def test_an_overdue_job_of_a_paused_queue_does_not_hold_the_clock(
    pelton_queue: Queue, pelton_clock: ManualClock
) -> None:
    await pelton_queue.enqueue("flaky", good=2)
    await drain(pelton_queue, raises=False)
    await pelton_queue.pause()
    start = pelton_clock.monotonic()
    await asyncio.wait_for(drain(pelton_queue, within=3600), 60)
    assert (ran, pelton_clock.monotonic()) == ([1], start + 3600)
    await pelton_queue.resume()
    await drain(pelton_queue)
    assert ran == [1, 2]
