"""The child processes of one worker: each runs one job at a time, is used again, and is killed if it must end.

A child that dies costs the attempt of its own job, and no other. Waiting for a child is done on a thread.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

import msgspec

from pelton.api import JobCrashedError, JobError
from pelton.queue.model.states import JobProgress
from pelton.queue.run.child import (
    CALLED,
    HEAD,
    READY,
    RETURNED,
    TOLD,
    UNTIL,
    ChildCall,
    ChildReply,
    ChildTraceback,
    child_main,
)
from pelton.runtime import SystemClock, until_ended

if TYPE_CHECKING:
    from pelton.queue.define.job import JobDefinition
    from pelton.queue.model.records import AttemptRecords

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode
_reply: Final = msgspec.json.Decoder(ChildReply).decode
_told: Final = msgspec.json.Decoder(JobProgress).decode
_PATIENCE_S: Final = 2.0
_START_S: Final = 60.0

_clock: Final = SystemClock()

Told = Callable[[JobProgress], None]
Begin = Callable[[], float]
"""Called on a thread as the last thing before a job begins; returns for how many seconds it may."""


class ChildTimeout(Exception):  # noqa: N818 - its caller says what has taken too long
    """A job has taken too long, and its child was killed."""


class JobChild:
    """One child process, in a group with all that its jobs start. All methods but :meth:`kill` block.

    Its end is that of its process, not of its pipe, which processes that a job has forked hold as well: a thread waits
    for it, ends the rest of the group, and then the pipe.
    """

    def __init__(self) -> None:
        spawning = get_context("spawn")
        self._here, there = spawning.Pipe()
        self._process = spawning.Process(target=child_main, args=(there,), name="pelton-job", daemon=True)
        try:
            self._process.start()
        finally:
            there.close()
        self._gone = threading.Event()
        self._calls = 0
        ending = self._process, self._gone
        # Also when it is collected, and before multiprocessing would wait for it as the program ends.
        Finalize(self, _end_group, ending, exitpriority=0)
        threading.Thread(target=_watch, args=(*ending, ref(self)), name="pelton-child", daemon=True).start()

    @property
    def was_idle(self) -> bool:
        """Whether it has had another call before this one."""
        return self._calls > 1

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._gone.is_set()

    def reap(self) -> int | None:
        """Wait for the end of a child that dies, and return its exit code: negative for a signal; None: it lives."""
        return self._process.exitcode if self._gone.wait(_PATIENCE_S) else None

    def call(self, data: bytes, told: Told, begin: Begin) -> tuple[bytes, bytes]:
        """Run a job, and return the kind of its answer, and the answer; ``begin`` is called before its function is.

        Raises what that raises, EOFError or OSError if the child dies.
        """
        self._calls += 1
        self._here.send_bytes(HEAD.pack(CALLED, self._calls, self._process.pid) + data)
        while True:
            kind, answer = self._next_of(self._calls)
            if kind == TOLD:
                told(_told(answer))
            elif kind == READY:
                until = _clock.boottime() + begin()
                self._here.send_bytes(HEAD.pack(CALLED, self._calls, self._process.pid) + UNTIL.pack(until))
            else:
                return kind, answer

    def _next_of(self, number: int) -> tuple[bytes, bytes]:
        """Return what comes next of the answer to a call; what anything but this child says, or to others, is not."""
        while True:
            data = self._here.recv_bytes()
            if len(data) >= HEAD.size and HEAD.unpack_from(data)[1:] == (number, self._process.pid):
                return data[:1], data[HEAD.size :]

    def kill(self) -> None:
        """End the child, and with it the job that it runs, and what that has started. From any thread."""
        _end_group(self._process, self._gone)

    def hang_up(self) -> None:
        """End the pipe, whoever has it."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._here.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End the child, which runs no job."""
        self.hang_up()
        if self.reap() is None:
            self.kill()
            self.reap()


def _watch(process: BaseProcess, gone: threading.Event, child: ref[JobChild]) -> None:
    process.join()
    _end_group(process, gone)
    gone.set()
    if (left := child()) is not None:
        left.hang_up()


def _end_group(process: BaseProcess, gone: threading.Event) -> None:
    if not gone.is_set():
        # There is none while it starts.
        with suppress(OSError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()


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
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, call: ChildCall, told: Told, begin: Begin, within: float | None) -> ChildReply:
        """Run a job in a child for ``within`` seconds at most; if that is cancelled or too slow, the child is killed.

        Its time begins with the function: before, a new child starts, and imports it, which may take a minute more.
        Then ``begin`` is called. Raises what that and the job raise, JobCrashedError if the child dies, ChildTimeout.
        """
        child = await self._take()
        clock = _CallClock(within)

        has_begun = False

        def begun() -> float:
            nonlocal has_begun
            left = begin()
            has_begun = True
            clock.begun()
            return left

        answering = self._on_thread(child.call, _encode(call), told, begun)
        try:
            async with clock.limit():
                kind, answer = await asyncio.shield(answering)
        except TimeoutError:
            await self._discard(child, answering)
            raise ChildTimeout from None
        except (EOFError, OSError):
            code = await self._on_thread(child.reap)
            if not child.is_gone:
                await self._discard(child, answering)
                raise JobError(
                    f"job {call.id!r} ({call.job!r}) has closed the pipe between its child process and its worker: it "
                    "must not close what it has not opened"
                ) from None
            if not has_begun and child.was_idle:
                # It was dead before it was called.
                return await self.run(call, told, begin, within)
            raise JobCrashedError(call.id, call.job, code) from None
        except BaseException:
            await self._discard(child, answering)
            raise
        self._idle.append(child)
        if kind == RETURNED:
            return _reply(answer)
        raise _raised(answer)

    async def _take(self) -> JobChild:
        while self._idle:
            child = self._idle.pop()
            if not child.is_gone:
                return child
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

    async def _discard(self, child: JobChild, answering: asyncio.Future[Any]) -> None:
        """Kill a child; its job has ended when its process has."""
        child.kill()
        await until_ended(self._on_thread(child.reap))
        await until_ended(answering)

    def _on_thread(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._limit + 1, thread_name_prefix="pelton-child")
        return asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def close(self) -> None:
        """End all children."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(self._on_thread(child.end) for child in idle))
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
