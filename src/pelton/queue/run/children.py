"""The child processes of one worker: each runs one job at a time, is used again, and is killed to end its job.

A child that dies costs the attempt of its own job, and no other. Waiting for a child is done on a thread.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from pelton.api import JobCrashedError, JobError
from pelton.queue.model.states import JobProgress
from pelton.queue.run.child import BEGUN, RETURNED, TOLD, ChildCall, ChildReply, ChildTraceback, child_main

if TYPE_CHECKING:
    from pelton.queue.define.job import JobDefinition
    from pelton.queue.model.records import AttemptRecords

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode
_reply: Final = msgspec.json.Decoder(ChildReply).decode
_told: Final = msgspec.json.Decoder(JobProgress).decode
_PATIENCE_S: Final = 2.0
_START_S: Final = 60.0

Told = Callable[[JobProgress], None]


class ChildTimeout(Exception):  # noqa: N818 - its caller says what has taken too long
    """A job has taken too long, and its child was killed."""


class JobChild:
    """One child process. All methods but :meth:`kill` block."""

    def __init__(self) -> None:
        spawning = get_context("spawn")
        self._here, there = spawning.Pipe()
        self._process = spawning.Process(target=child_main, args=(there,), name="pelton-job", daemon=True)
        try:
            self._process.start()
        finally:
            # Or the end of the child would not be the end of its pipe.
            there.close()

    def reap(self) -> int | None:
        """Wait for the end of a child that dies, and return its exit code: negative for a signal."""
        self._process.join(_PATIENCE_S)
        return self._process.exitcode

    def call(self, data: bytes, told: Told, begun: Callable[[], None]) -> bytes:
        """Run a job, and return the answer; ``begun`` is called when its function is.

        Raises EOFError or OSError if the child dies.
        """
        self._here.send_bytes(data)
        while True:
            answer = self._here.recv_bytes()
            if answer[:1] == TOLD:
                told(_told(answer[1:]))
            elif answer[:1] == BEGUN:
                begun()
            else:
                return answer

    def kill(self) -> None:
        """End the child, and with it the job that it runs. From any thread."""
        self._process.kill()

    def end(self) -> None:
        """End the child, which runs no job."""
        self._here.close()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _CallClock:
    """The time that a call may take: ``within`` seconds from when its function was begun."""

    def __init__(self, within: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._within = within
        self._timer: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None]:
        """Raise TimeoutError when the time is over."""
        async with asyncio.timeout(None if self._within is None else self._within + _START_S) as self._timer:
            try:
                yield
            finally:
                self._timer = None

    def begun(self) -> None:
        """Note, on any thread, that the function was begun."""
        with suppress(RuntimeError):
            # The loop may be closed by now.
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._timer is not None and self._within is not None and not self._timer.expired():
            self._timer.reschedule(self._loop.time() + self._within)


class JobChildren:
    """Up to ``limit`` children, made when they are needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[JobChild] = []
        self._reaping: set[asyncio.Future[int | None]] = set()
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, call: ChildCall, told: Told, within: float | None) -> ChildReply:
        """Run a job in a child for ``within`` seconds at most; if that is cancelled or too slow, the child is killed.

        Its time begins with the function: before, a new child starts, and imports it, which may take a minute more.
        Raises what the job raises, JobCrashedError if the child dies, ChildTimeout.
        """
        child = await self._take()
        clock = _CallClock(within)
        answering = self._on_thread(child.call, _encode(call), told, clock.begun)
        try:
            async with clock.limit():
                answer = await asyncio.shield(answering)
        except TimeoutError:
            await self._discard(child)
            await asyncio.gather(answering, return_exceptions=True)
            raise ChildTimeout from None
        except (EOFError, OSError):
            raise JobCrashedError(call.id, call.job, await self._discard(child)) from None
        except BaseException:
            child.kill()
            answering.add_done_callback(lambda done: done.cancelled() or done.exception())
            reaping = self._on_thread(child.reap)
            self._reaping.add(reaping)
            reaping.add_done_callback(self._reaping.discard)
            raise
        self._idle.append(child)
        if answer[:1] == RETURNED:
            return _reply(answer[1:])
        raise _raised(answer[1:])

    async def _take(self) -> JobChild:
        if self._idle:
            return self._idle.pop()
        starting = self._on_thread(JobChild)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The next job can use it.
            starting.add_done_callback(self._keep)
            raise

    def _keep(self, started: asyncio.Future[JobChild]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._idle.append(started.result())

    async def _discard(self, child: JobChild) -> int | None:
        child.kill()
        return await self._on_thread(child.reap)

    def _on_thread(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._limit + 1, thread_name_prefix="pelton-child")
        return asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def close(self) -> None:
        """End all children."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(self._on_thread(child.end) for child in idle), *self._reaping)
        if self._executor is not None:
            self._executor.shutdown(wait=False)


def _raised(data: bytes) -> BaseException:
    try:
        error, where = pickle.loads(data)
    except Exception as wrong:  # a class that only the child can import
        return JobError(f"the error of its child process can't be read: {wrong}")
    assert isinstance(error, BaseException)
    if where and error.__cause__ is None:
        error.__cause__ = ChildTraceback(f"\n{where}")
    return error


def child_call(queue: str, worker: str, job: JobDefinition[Any, Any], records: AttemptRecords) -> ChildCall:
    """Return the call of an attempt."""
    envelope, known = records.envelope, records.known
    return ChildCall(
        module=job.function.__module__,
        function=job.function.__qualname__,
        job=job.name,
        args=envelope.args,
        queue=queue,
        worker=worker,
        id=records.id,
        key=envelope.key,
        attempt=records.attempt,
        last_error=known.error if known is not None else "",
        enqueued_at=records.delivered.time_ns,
        token=records.delivered.token,
        meta=envelope.meta,
    )
