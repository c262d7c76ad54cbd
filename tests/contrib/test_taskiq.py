"""taskiq's own broker interface on a queue: a real receiver, and ``taskiq worker`` as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pelton

pytest.importorskip("taskiq")

from taskiq import SimpleRetryMiddleware
from taskiq.api import run_receiver_task

from pelton.contrib.taskiq import PeltonBroker, PeltonResults


async def test_tasks_are_kicked_run_and_awaited(tmp_path: Path) -> None:
    store = str(tmp_path / "tasks.pelton")
    results: PeltonResults[object] = PeltonResults(store)
    broker = PeltonBroker(store).with_result_backend(results)

    @broker.task(task_name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @broker.task(task_name="fail")
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(pelton.ConfigError, match="startup"):
        broker._started_queue()
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker, sync_workers=1))
    try:
        first = await add.kiq(1, 2)
        later = await add.kicker().with_labels(delay=0.3, key="k").kiq(3, b=4)
        failed = await fail.kiq()
        found = await first.wait_result(timeout=20, check_interval=0.02)
        assert (found.return_value, found.is_err) == (3, False)
        assert (await later.wait_result(timeout=20, check_interval=0.02)).return_value == 7
        error = await failed.wait_result(timeout=20, check_interval=0.02)
        assert error.is_err
        assert "no" in str(error.error)
        async with pelton.open(store) as jet:
            queue = await jet.queue("taskiq")
            async with asyncio.timeout(20):
                while (counts := await queue.counts()).completed < 3:
                    await asyncio.sleep(0.02)
            assert counts.unfinished == 0
            assert {outcome.job async for outcome in queue.history()} == {"add", "fail"}
    finally:
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await broker.shutdown()


async def test_a_waiting_task_is_cancelled_and_a_retried_one_runs_again(tmp_path: Path) -> None:
    store = str(tmp_path / "tasks.pelton")
    broker = PeltonBroker(store).with_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    ran, running, go_on = list[str](), asyncio.Event(), asyncio.Event()

    @broker.task(task_name="note")
    async def note(text: str) -> None:
        ran.append(text)
        running.set()
        await go_on.wait()
        if text == "again" and len(ran) < 3:
            raise ValueError(text)

    await broker.startup()
    later = await note.kicker().with_labels(delay=3600, tenant="t").kiq("later")
    waiting = await note.kiq("waiting")
    assert await broker.cancel(waiting.task_id)
    assert not await broker.cancel(waiting.task_id), "it is not there any more"
    assert not await broker.cancel(later.task_id), "it is a tenant's"
    assert await broker.cancel(later.task_id, tenant="t")
    receiver = asyncio.create_task(run_receiver_task(broker, sync_workers=1))
    try:
        again = await note.kicker().with_labels(retry_on_error=True).kiq("again")
        async with asyncio.timeout(30):
            await running.wait()
            assert not await broker.cancel(again.task_id), "it runs"
            go_on.set()
            async with pelton.open(store) as jet:
                queue = await jet.queue("taskiq")
                while (await queue.counts()).completed < 3:
                    await asyncio.sleep(0.02)
                assert (await queue.counts()).cancelled == 2
    finally:
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await broker.shutdown()
    assert ran == ["again"] * 3


async def test_labels_are_options_of_jobs(tmp_path: Path) -> None:
    store = str(tmp_path / "tasks.pelton")
    broker = PeltonBroker(store)

    @broker.task(task_name="add")
    async def add(a: int) -> int:
        return a

    await broker.startup()
    await add.kicker().with_labels(priority=2, delay=60, key="k").kiq(1)
    await add.kicker().with_labels(ttl=0.001).kiq(2)
    await broker.shutdown()
    async with pelton.open(store) as jet:
        queue = await jet.queue("taskiq")
        [scheduled] = [job async for job in queue.jobs(state="scheduled")]
        assert (scheduled.priority, scheduled.key) == (2, "k")
        async with queue.claims(pelton.JobRules()) as claims:
            assert not await claims.take()
        assert (await queue.counts()).expired == 1


PROGRAM = """
import asyncio, os
from pelton.contrib.taskiq import PeltonBroker, PeltonResults

broker = PeltonBroker("tasks.pelton").with_result_backend(PeltonResults("tasks.pelton"))

@broker.task(task_name="hold")
async def hold(number: int) -> int:
    with open("held", "a") as held:
        print(os.getpid(), file=held)
    while number and not os.path.exists("go"):
        await asyncio.sleep(0.02)
    return number
"""


async def test_a_worker_that_is_killed_loses_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskiq_shop.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with pelton.open("tasks.pelton") as jet:
        await jet.queue("taskiq", lease=1.0)
    command = [sys.executable, "-m", "taskiq", "worker", "taskiq_shop:broker", "--workers", "1"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        shop = import_module("taskiq_shop")

        await shop.broker.startup()
        held = await shop.hold.kiq(5)
        async with asyncio.timeout(60):
            # It is there before it is written.
            while not ((told := tmp_path / "held").exists() and told.read_text()):
                await asyncio.sleep(0.02)
        os.kill(int(told.read_text()), signal.SIGKILL)
        (tmp_path / "go").touch()
        result = await held.wait_result(timeout=60, check_interval=0.05)
        assert result.return_value == 5
        assert len((tmp_path / "held").read_text().split()) == 2
        await shop.broker.shutdown()
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
