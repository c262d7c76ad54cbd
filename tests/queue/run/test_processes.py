"""Jobs in child processes: a job that crashes, hangs or is cancelled costs its child, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pelton
from pelton import ConfigError, Jet, JobResultError
from pelton.queue import Queue
from pelton.queue.run.children import ChildCall, JobChild, JobChildren
from tests.queue import no_import, slow_import
from tests.queue import process_jobs as some
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import ROOT, drain, working


@pytest.fixture
async def queue(jet: Jet) -> Queue:
    return await jet.queue("garage", jobs=some.jobs)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_zombie(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.startswith("Z")


async def eventually(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.02)


@ON_BOTH
async def test_jobs_run_in_children_that_are_used_again(queue: Queue) -> None:
    assert some.square.in_process
    handles = [await queue.options(key="k").enqueue(some.square, n) for n in range(6)]
    await drain(queue, concurrency=2)
    results: list[dict[str, Any]] = [await handle.value() for handle in handles]
    assert [result["n"] for result in results] == [n * n for n in range(6)]
    assert [result["seen"] for result in results] == [[handle.id, "k", 1, "garage", {}] for handle in handles]
    pids = {result["pid"] for result in results}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    await eventually(lambda: all(map(is_gone, pids)))


async def test_a_poison_job_costs_its_child_and_no_neighbour(queue: Queue) -> None:
    poison = [await queue.enqueue(some.poison, how) for how in ("exit", "fault")]
    good = [await queue.enqueue(some.square, n) for n in range(4)]
    await drain(queue, concurrency=3)
    first, second = [await handle.outcome() for handle in poison]
    assert (first.state, first.attempt, second.state, second.attempt) == ("failed", 2, "failed", 2)
    assert first.error.startswith("JobCrashedError: the process of job '1' ('poison') exited (3)")
    assert "was killed by signal 11" in second.error
    assert [(await handle.outcome()).attempt for handle in good] == [1] * 4


@pytest.mark.parametrize("how", ["exit", "raise"])
async def test_a_child_that_does_not_start_costs_an_attempt_with_an_error(
    jet: Jet, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_IMPORT", how)
    queue = await jet.queue("absent", jobs=no_import.jobs)
    handle = await queue.enqueue(no_import.never)
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 2)
    assert [error.attempt for error in outcome.errors] == [1, 2]
    assert all({"exit": "exited (3)", "raise": "not in a child"}[how] in error.error for error in outcome.errors)


async def test_a_timeout_kills_the_child(queue: Queue) -> None:
    handle = await queue.enqueue(some.endless)
    good = await queue.enqueue(some.square, 2)
    await drain(queue, concurrency=1)
    outcome = await handle.outcome()
    assert outcome.error.startswith("JobTimeoutError")
    assert "0.2 s" in outcome.error
    assert (await good.value())["n"] == 4


@ON_BOTH
async def test_the_time_of_a_job_begins_with_its_function(jet: Jet) -> None:
    queue = await jet.queue("slow", jobs=slow_import.jobs)
    async with working(queue, concurrency=1):
        assert await (await queue.enqueue(slow_import.quick, 1)).value(timeout=30) == 1
        outcome = await (await queue.enqueue(slow_import.quick, -1)).outcome(timeout=30)
    assert "JobTimeoutError" in outcome.error


async def test_cancel_kills_the_child(queue: Queue, tmp_path: Path) -> None:
    handle = await queue.enqueue(some.long, str(tmp_path / "pid"))
    good = await queue.enqueue(some.square, 2)
    async with working(queue, concurrency=1):
        await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        assert await handle.cancel()
        assert (await handle.outcome(timeout=60)).state == "cancelled"
        assert (await good.value(timeout=60))["n"] == 4
    await eventually(lambda: is_gone(int((tmp_path / "pid").read_text())))


async def test_a_stopped_worker_kills_and_hands_back(queue: Queue, tmp_path: Path) -> None:
    handle = await queue.enqueue(some.long, str(tmp_path / "pid"))
    async with working(queue, concurrency=1, grace=0.1):
        await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    await eventually(lambda: is_gone(int((tmp_path / "pid").read_text())))
    assert ((await handle.info()).state, (await handle.info()).attempt) == ("pending", 0)


async def test_a_job_that_has_ended_is_not_interrupted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    children, began, answered, call = JobChildren(1), threading.Event(), threading.Event(), JobChild.call

    def begin() -> float:
        began.set()
        return 60.0

    def noted(child: JobChild, *args: Any) -> tuple[bytes, bytes]:
        answer = call(child, *args)
        answered.set()
        return answer

    monkeypatch.setattr(JobChild, "call", noted)
    job = {"module": some.__name__, "function": "square", "job": "square", "args": msgspec.Raw(b'{"n": 3}')}
    texts = dict.fromkeys(("queue", "worker", "id", "key", "last_error"), "")
    running = asyncio.ensure_future(
        children.run(
            ChildCall(**job, **texts, attempt=1, enqueued_at=0, token=1, meta={}), lambda told: None, begin, None
        )
    )
    await asyncio.to_thread(began.wait)
    # It is told so before it hears of the answer.
    answered.wait()
    running.cancel()
    assert msgspec.json.decode((await running).result)["n"] == 9
    await children.close()


async def test_errors_come_back_with_their_traceback(queue: Queue) -> None:
    whats = ("key", "local", "hostile", "result")
    key, local, hostile, result = [await queue.enqueue(some.broken, what) for what in whats]
    await drain(queue)
    assert (await key.outcome()).error == "KeyError: 'key'"
    assert "in broken" in (await key.outcome()).traceback
    assert "its constructor needs two" in (await local.outcome()).error
    assert "its message can't be read" in (await hostile.outcome()).error
    assert JobResultError.__name__ in (await result.outcome()).error


async def test_a_child_asks_for_a_retry_and_emits(queue: Queue, jet: Jet) -> None:
    await jet.create_stream("effects", subjects=["effects.>"])
    handle = await queue.enqueue(some.asks)
    await drain(queue)
    assert await handle.value() == 2
    assert (await (await jet.stream("effects")).get_message(1)).data == b"from a child"


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
async def test_a_copy_that_a_job_forks_answers_nothing(queue: Queue, how: str) -> None:
    handles = [await queue.enqueue(some.forked, n, how) for n in range(3, 7)]
    await drain(queue, concurrency=1)
    assert [await handle.value() for handle in handles] == [9, 16, 25, 36]


@pytest.mark.parametrize("how", ["exit", "timeout"])
async def test_what_a_job_has_started_ends_with_it(queue: Queue, tmp_path: Path, how: str) -> None:
    left = tmp_path / "left"
    handle = await queue.enqueue(some.left_behind, how, str(left))
    async with working(queue, concurrency=1):
        error = (await handle.outcome(timeout=60)).error
        assert error.startswith({"exit": "JobCrashedError", "timeout": "JobTimeout"}[how])
        await eventually(lambda: is_gone(int(left.read_text())))


async def test_what_a_job_has_started_ends_with_its_worker(queue: Queue, path: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    await queue.enqueue(some.starts_others, str(started))
    worker = subprocess.Popen([sys.executable, "-m", some.__name__, path], cwd=ROOT)
    try:
        await eventually(started.exists)
    finally:
        worker.kill()
        worker.wait()
    # Nobody here reaps them.
    await eventually(lambda: all(is_gone(pid) or is_zombie(pid) for pid in map(int, started.read_text().split())))


async def test_a_job_uses_processes_of_its_own(queue: Queue) -> None:
    pooled, terminated = await queue.enqueue(some.pooled, [-1, -2, -3]), await queue.enqueue(some.terminates)
    await drain(queue, concurrency=1)
    assert await pooled.value() == [1, 2, 3]
    assert await terminated.value() == -signal.SIGTERM


async def test_a_job_that_closes_the_pipe_of_its_child_fails(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"untouched")
    closes, good = await queue.enqueue(some.closes, str(tmp_path / "precious")), await queue.enqueue(some.square, 2)
    await drain(queue, concurrency=1)
    assert "exited (1)" in (await closes.outcome()).error
    assert (tmp_path / "precious").read_bytes() == b"untouched"
    assert (await good.value())["n"] == 4


async def test_a_child_is_as_before_for_the_next_job(queue: Queue) -> None:
    handles = [await queue.enqueue(some.meddles, what) for what in ("signals", "stdout")]
    left = await queue.enqueue(some.left_over)
    await drain(queue, concurrency=1)
    assert [(await handle.outcome()).error for handle in handles] == ["", "ValueError: stdout (attempt 1 of 1)"]
    assert await left.value() == (0.0, True)


async def test_an_idle_child_that_dies_costs_no_attempt(queue: Queue) -> None:
    async with working(queue, concurrency=1):
        pid = (await (await queue.enqueue(some.square, 2)).value(timeout=60))["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: is_gone(pid))
        outcome = await (await queue.enqueue(some.left_over)).outcome(timeout=60)
    assert (outcome.state, outcome.attempt) == ("completed", 1)


async def test_arguments_that_a_child_cannot_take_wait(queue: Queue) -> None:
    """It has imported a later version of the module."""

    def older(m: int) -> None: ...

    older.__module__, older.__qualname__ = some.__name__, "forked"
    handle = await queue.job(name="older", process=True, max_attempts=1)(older).enqueue(1)
    async with working(queue), asyncio.timeout(20):
        while not (info := await handle.info()).last_error:
            await asyncio.sleep(0.01)
    assert (info.attempt, info.last_error.split(":")[0]) == (0, "JobArgumentsError")


def top_level() -> None: ...


async def test_what_no_child_can_run_is_refused() -> None:
    jobs = pelton.Jobs()

    async def coroutine() -> None: ...

    def local() -> None: ...

    with pytest.raises(ConfigError, match="not async"):
        jobs.job(process=True)(coroutine)
    with pytest.raises(ConfigError, match="top level"):
        jobs.job(process=True)(local)
    with pytest.raises(ConfigError, match="process=True"):
        jobs.job(timeout=1)(top_level)
    assert jobs.job(process=True, timeout=1)(top_level).in_process
