"""An event loop on a thread: it takes calls from any thread, ends with its function, and does not survive a fork."""

import asyncio
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from pelton.runtime import LoopThread


class Service:
    """A function that runs until it is told to return."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.started = threading.Event()
        self.thread = LoopThread(self._serve, "a service")

    async def _serve(self) -> None:
        self.started.set()
        await self.end.wait()

    def stop(self) -> None:
        self.thread.call_soon(self.end.set)
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    service.thread.start()
    yield service
    service.stop()


def test_a_call_runs_on_the_thread(service: Service) -> None:
    called, found = threading.Event(), list[tuple[str, bool, int]]()

    def call(number: int) -> None:
        found.append((threading.current_thread().name, service.thread.is_here, number))
        called.set()

    assert service.thread.call_soon(call, 7)
    assert called.wait(10)
    assert found == [("a service", True, 7)]
    assert not service.thread.is_here


def test_a_call_is_kept_for_a_loop_that_has_not_begun_yet() -> None:
    order = list[str]()

    async def main() -> None:
        await asyncio.sleep(0)
        order.append("main")

    thread = LoopThread(main, "a")
    assert not thread.call_soon(order.append, "too early")
    thread.start()
    thread.call_soon(order.append, "call")
    thread.join()
    assert "main" in order
    assert "too early" not in order


async def test_work_is_awaited_from_another_loop(service: Service) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def failing() -> None:
        raise ValueError("no")

    assert await service.thread.run(work()) == "a service"
    with pytest.raises(ValueError, match="no"):
        await service.thread.run(failing())


async def test_whoever_stops_waiting_cancels_the_work(service: Service) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = asyncio.create_task(service.thread.run(work()))
    assert await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(cancelled.wait, 10)


async def test_after_its_end_nothing_is_taken(service: Service) -> None:
    await asyncio.to_thread(service.stop)
    assert not service.thread.is_alive
    assert not service.thread.call_soon(print)
    with pytest.raises(RuntimeError, match="'a service' is not running"):
        await service.thread.run(asyncio.sleep(0))
    service.thread.join()


def test_its_end_cancels_the_tasks_that_are_left() -> None:
    ended = list[str]()

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("left")

    async def main() -> None:
        task = asyncio.create_task(left())
        await asyncio.sleep(0)
        assert not task.done()

    thread = LoopThread(main, "a")
    thread.start()
    thread.join()
    assert ended == ["left"]


def test_an_error_that_ends_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        raise ValueError("broken")

    thread = LoopThread(main, "a")
    with caplog.at_level(logging.ERROR, "pelton"):
        thread.start()
        thread.join()
    assert [record.message for record in caplog.records] == ["the event loop of thread 'a' ended"]
    assert caplog.records[0].exc_info is not None


def test_it_does_not_wait_for_itself(service: Service) -> None:
    joined = threading.Event()

    def join() -> None:
        service.thread.join()
        joined.set()

    service.thread.call_soon(join)
    assert joined.wait(10)


def test_one_that_never_started_has_nothing_to_wait_for() -> None:
    thread = LoopThread(lambda: asyncio.sleep(0), "a")
    thread.join()
    assert not thread.is_alive


def test_it_is_a_daemon(service: Service) -> None:
    assert next(each for each in threading.enumerate() if each.name == "a service").daemon


def test_after_a_fork_the_child_has_none(service: Service) -> None:
    assert service.started.wait(10)
    child = os.fork()
    if child == 0:
        refused = service.thread.is_inherited and not service.thread.is_alive and not service.thread.call_soon(print)
        service.thread.join()
        os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not service.thread.is_inherited
    assert service.thread.is_alive
