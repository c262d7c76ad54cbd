"""Calls of jobs that a slot does not make itself: of a batch together, and on threads.

**Batches of one worker: jobs that have a slot wait for each other, and share a call.** Each job stays what it is: it
holds its own lease, is cancelled, timed out and settled by itself. A batch has at most as many jobs as the worker has
slots. A job that is cancelled before its batch starts leaves it; a call is cancelled when none of its jobs waits any
more.

**Copies of a process that a job makes with ``os.fork()``: each ends where it would come back from the job.** It has
everything that the process has: its jobs, its connections, its event loop. What it did with them, it would do in the
name of the other.

**Sync jobs on threads, which exchange lists with the event loop: jobs in one direction, their ends in the other.** A
thread takes one job after another until none is left, and the event loop is woken once for all that have ended since it
last looked. So quick jobs cost neither a thread nor a wake-up each. A thread that takes a job and leaves others calls
one more thread before it runs its own: slow jobs are soon all on threads.

No call is lost: ``_coming`` is cleared by a thread before it looks for jobs, and read after a job was added; the same
holds for ``_told`` and the ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from pelton.api import JobCancelledError, JobError
from pelton.runtime import Signal, is_interrupt

if TYPE_CHECKING:
    from pelton.queue.define.registry import BatchJob
    from pelton.runtime import Runtime


class BatchedJob(Protocol):
    """A job of a batch, before and as it begins."""

    async def prepare(self) -> None:
        """Do what takes time before the job begins."""
        ...

    def begin(self) -> None:
        """Note that its function is called now. Raises CancelledError, JobCancelledError if it must not be."""
        ...


class JobBatch:
    """Items that are waited for together."""

    def __init__(self) -> None:
        self.entries: list[tuple[BatchedJob, Any, asyncio.Future[Any]]] = []
        self.full: Signal = Signal()
        self.task: asyncio.Task[None] | None = None

    def left(self, _: object) -> None:
        """End the call if nobody waits for it."""
        if self.task is not None and all(future.cancelled() for _, _, future in self.entries):
            self.task.cancel()


class JobBatches:
    """The batches that one worker gathers and runs; ``joined`` is called whenever a job waits for one to be full."""

    def __init__(self, runtime: Runtime, limit: int, joined: Callable[[], None] | None = None) -> None:
        self._runtime = runtime
        self._limit = limit
        self._joined = joined
        # Those that can still be joined.
        self._open: dict[str, JobBatch] = {}

    async def run(self, job: BatchJob[Any, Any], member: BatchedJob, item: Any) -> Any:
        """Run a job in the next batch; returns its result, or raises its error."""
        batch = self._open.get(job.name)
        if batch is None:
            batch = self._open[job.name] = JobBatch()
            batch.task = self._runtime.spawn(self._gather(job, batch), f"pelton batch of {job.name}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch.entries.append((member, item, future))
        if len(batch.entries) >= min(job.size, self._limit):
            del self._open[job.name]
            batch.full.notify()
        elif self._joined is not None:
            self._joined()
        future.add_done_callback(batch.left)
        return await future

    @property
    def gathered(self) -> int:
        """How many jobs wait for their batches to be full."""
        return sum(not future.done() for batch in self._open.values() for _, _, future in batch.entries)

    def run_gathered(self) -> None:
        """Run the batches that are not full: nothing else will come."""
        while self._open:
            self._open.popitem()[1].full.notify()

    async def _gather(self, job: BatchJob[Any, Any], batch: JobBatch) -> None:
        try:
            await batch.full.wait_at_most(self._runtime.clock, job.wait, 0)
        finally:
            if self._open.get(job.name) is batch:
                del self._open[job.name]
        await asyncio.gather(*(member.prepare() for member, _, future in batch.entries if not future.done()))
        entries = [entry for entry in batch.entries if _begins(*entry)]
        if not entries:
            return
        try:
            found = await job.function([item for _, item, _ in entries])
            results = _checked(job.name, found, len(entries))
        except asyncio.CancelledError:
            for _, _, future in entries:
                future.cancel()
            raise
        except BaseException as error:  # whatever a job raises is its outcome
            if is_interrupt(error):
                raise
            results = [error] * len(entries)
        for (_, _, future), result in zip(entries, results, strict=True):
            if future.done():
                continue
            if isinstance(result, StopIteration):
                # No future holds one.
                future.set_exception(JobError(f"job {job.name!r}: its function returned {result!r}"))
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


def _begins(member: BatchedJob, _: Any, future: asyncio.Future[Any]) -> bool:
    """Begin a job of a batch, unless it has left it or must not start any more."""
    if future.done():
        return False
    try:
        member.begin()
    except asyncio.CancelledError:
        future.cancel()
    except JobCancelledError as cancelled:
        future.set_exception(cancelled)
    return not future.done()


def _checked(name: str, found: Any, count: int) -> list[Any]:
    """Return a result for each job. Raises JobError."""
    if found is None:
        return [None] * count
    if not isinstance(found, list | tuple) or len(found) != count:
        what = f"{len(found)} results" if isinstance(found, list | tuple) else f"{found!r:.80}"
        raise JobError(f"job {name!r}: its function was given {count} items, and returned {what}: return one for each")
    return list(found)


class Copies:
    """Tells the process in which it was made from its copies. ``is_one``: this is a copy, which is to :meth:`end`."""

    def __init__(self) -> None:
        self.is_one: bool = False
        _all.add(self)

    def end(self, error: BaseException | None) -> None:
        """End a copy, as its program would that has returned, or raised ``error``."""
        if not self.is_one:
            return
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            with suppress(BaseException):
                traceback.print_exception(error)
        flush()
        os._exit(code & 0xFF)


_all: Final[WeakSet[Copies]] = WeakSet()


def _copied() -> None:
    for copies in list(_all):
        copies.is_one = True


os.register_at_fork(after_in_child=_copied)


def flush() -> None:
    """Write what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # A job may have closed or replaced it.
        with suppress(Exception):
            stream.flush()


T = TypeVar("T")


class Called(NamedTuple, Generic[T]):
    """What a call on a thread has returned or raised; ``error`` is None if it has returned."""

    job: T
    result: object
    error: BaseException | None


class JobThreads(Generic[T]):
    """Up to ``limit`` threads for the jobs of one worker. ``done`` is called on the event loop."""

    def __init__(self, limit: int, done: Callable[[list[Called[T]]], None]) -> None:
        self._limit = limit
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._todo: deque[tuple[T, Callable[[], object]]] = deque()
        self._ended: deque[Called[T]] = deque()
        self._coming = False
        self._told = False
        self._executor: ThreadPoolExecutor | None = None
        self._copies = Copies()

    def run(self, job: T, call: Callable[[], object]) -> None:
        """Run a job's call on a thread."""
        self._todo.append((job, call))
        if not self._coming:
            self._call_another()

    def close(self, *, wait: bool) -> None:
        """End the threads; ``wait`` for jobs that still run."""
        if self._executor is not None:
            self._executor.shutdown(wait=wait)

    def _call_another(self) -> None:
        self._coming = True
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._limit, thread_name_prefix="pelton-job")
        with suppress(RuntimeError):
            # The threads were ended: the worker was cancelled, and nobody waits for the jobs that are left.
            self._executor.submit(self._work)

    # --- on the threads

    def _work(self) -> None:
        self._coming = False
        while True:
            try:
                job, call = self._todo.popleft()
            except IndexError:
                return
            if self._todo and not self._coming:
                self._call_another()
            called = _called(job, call)
            if self._copies.is_one:
                self._copies.end(called.error)
            self._ended.append(called)
            # Otherwise a finished job would be kept alive for as long as the thread waits, or the next one takes.
            del job, call, called
            if not self._told:
                self._told = True
                with suppress(RuntimeError):
                    # The loop is closed: nobody waits for this job either.
                    self._loop.call_soon_threadsafe(self._tell)

    # --- on the event loop

    def _tell(self) -> None:
        self._told = False
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if ended:
            self._done(ended)


def _called(job: T, call: Callable[[], object]) -> Called[T]:
    try:
        return Called(job, call(), None)
    except BaseException as error:  # whatever a job raises is its outcome
        return Called(job, None, error)
