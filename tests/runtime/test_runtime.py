"""Background tasks are kept and their errors reported; the system's clock and entropy are what they claim."""

import asyncio
import gc
import logging
import time

import pytest

from pelton.runtime import Clock, Runtime, Signal, system_runtime


async def test_spawned_task_survives_collection_and_is_forgotten_when_done() -> None:
    runtime, signal = system_runtime(), Signal()
    task = runtime.spawn(signal.wait(0), "waiter")
    assert task.get_name() == "waiter"
    await asyncio.sleep(0)
    gc.collect()
    assert len(runtime.tasks) == 1
    signal.notify()
    assert await task == 1
    assert len(runtime.tasks) == 0


async def test_the_error_of_a_spawned_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("no such car")

    task = system_runtime().spawn(fail(), "repair")
    await asyncio.wait([task])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "repair" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no such car"


async def test_a_cancelled_task_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    task = system_runtime().spawn(Signal().wait(), "waiter")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert caplog.records == []


async def test_what_is_to_be_finished_goes_on_where_the_caller_is_cancelled() -> None:
    runtime, signal, done = system_runtime(), Signal(), asyncio.Event()

    async def work() -> None:
        await signal.wait()
        done.set()

    caller = asyncio.ensure_future(runtime.finish(work(), "work"))
    for _ in range(3):
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    signal.notify()
    await done.wait()


async def test_what_is_finished_tells_its_caller_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("no such car")

    async def succeed() -> int:
        return 7

    assert await system_runtime().finish(succeed(), "repair") == 7
    with pytest.raises(ValueError, match="no such car"):
        await system_runtime().finish(fail(), "repair")
    assert caplog.records == []


async def test_system_clock() -> None:
    clock: Clock = system_runtime().clock
    before, started = time.time_ns(), clock.monotonic()
    fired = asyncio.Event()
    clock.call_later(0, fired.set)
    clock.call_later(0, pytest.fail).cancel()
    await fired.wait()
    await clock.sleep(0)
    assert before <= clock.now() <= time.time_ns()
    assert clock.monotonic() >= started


def test_two_runtimes_share_no_ids() -> None:
    one, other = system_runtime(), system_runtime()
    assert isinstance(one, Runtime)
    assert one.ids.new()[:12] != other.ids.new()[:12]
