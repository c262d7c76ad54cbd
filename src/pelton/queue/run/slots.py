"""How a worker works: its settings, its slots, and the calls that a slot does not make itself.

**The slots of a worker: which jobs wait for one, have one, or have ended and are not settled yet.** A settlement costs
a transaction, however few attempts it has. So an ended job gives its slot to the next one at once, and what has ended
is settled together when no job is left to start. This is bounded by a number, because after a crash these jobs run
again, and by time. A worker with one slot runs one job after the other: each is settled before the next one starts. In
a store file one settlement follows the other, so what ends during one waits for it; on a cluster, where settlements do
not share anything, an ended job keeps its slot, and none waits.

A slot whose jobs never suspend runs one after another and needs no help; one whose job suspends leaves the rest of
the work to other slots. Which of both it is shows only afterwards. So one slot is woken, and each slot that finds
work wakes others, twice as many each time: quick jobs cost no wake-ups, and slow ones all run after a few rounds of
the event loop. No wake-up is lost: a slot looks for work and then waits, without suspending in between, and a slot that
starts work with which others could help wakes them.

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
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import msgspec

from pelton.api import JobCancelledError, JobError
from pelton.queue.run.leased_jobs import EndedAttempt, J
from pelton.runtime import Signal, is_interrupt

if TYPE_CHECKING:
    from pelton.queue.registry import BatchJob
    from pelton.runtime import Runtime


class BatchedJob(Protocol):
    """A job of a batch, before and as it begins."""

    async def prepare(self) -> None:
        """Do what takes time before the job begins."""

    def begin(self) -> None:
        """Note that its function is called now. Raises CancelledError, JobCancelledError if it must not be."""


class JobBatch:
    """Items that are waited for together."""

    def __init__(self) -> None:
        self.entries: list[tuple[BatchedJob, Any, asyncio.Future[Any]]] = []
        self.full: Signal = Signal()
        self.task: asyncio.Task[None] | None = None

    def on_leave(self, _: object) -> None:
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
        future.add_done_callback(batch.on_leave)
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
            results = _check_results(job.name, found, len(entries))
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


def _check_results(name: str, found: Any, count: int) -> list[Any]:
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


def _on_fork() -> None:
    for copies in list(_all):
        copies.is_one = True


os.register_at_fork(after_in_child=_on_fork)


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
            called = _run_call(job, call)
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


def _run_call(job: T, call: Callable[[], object]) -> Called[T]:
    try:
        return Called(job, call(), None)
    except BaseException as error:  # whatever a job raises is its outcome
        return Called(job, None, error)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. ``grace`` in seconds; after ``max_jobs`` it takes no more.

    ``until_empty``: until no job is left; ``until_idle``: until none can start now. ``on_error`` as for `LeasedJobs`.
    ``on_idle`` is called when none can start now, with the seconds until one may (infinity: not known); while it
    returns true, the worker looks again.
    """

    concurrency: int = 8
    until_empty: bool = False
    until_idle: bool = False
    on_error: Callable[[str, BaseException], None] | None = None
    on_idle: Callable[[float], bool] | None = None
    handle_signals: bool = True
    grace: float = 30.0
    max_jobs: int | None = None


_SHARE: Final = 7
_MOST: Final = 448
# In an exclusive queue, where nobody else can have what shares its key with a job that is held.
_KEYED_SHARE: Final = 5
_MOST_KEYED: Final = 320
_LONGEST_S: Final = 0.01


class EndedAttempts(Generic[J]):
    """The ended attempts of a worker with ``concurrency`` slots; ``together``: settlements share a transaction.

    ``exclusive``: the queue has keys.
    """

    def __init__(self, concurrency: int, *, together: bool, exclusive: bool) -> None:
        self._together = together
        # How many ended attempts may be without a slot.
        share, most = (_KEYED_SHARE, _MOST_KEYED) if exclusive else (_SHARE, _MOST)
        self._most = min(share * concurrency, most) if together and concurrency > 1 else 0
        self._limit = concurrency + self._most
        self._concurrency = concurrency
        self._ended: list[EndedAttempt[J]] = []
        # Those that are being settled, too.
        self._number = 0
        self._settlements = 0
        # When the first of them has ended, in seconds since boot.
        self._since = 0.0
        # When they have waited for so long that no other job should start before; infinity: there is none, or not now.
        self.due_at: float = inf

    def __len__(self) -> int:
        """How many have ended and wait for their settlement."""
        return len(self._ended)

    def add(self, ended: EndedAttempt[J], now: float) -> None:
        """Add one that has ended by now (seconds since boot)."""
        is_first = not self._ended
        self._ended.append(ended)
        self._number += 1
        if is_first:
            self._since = now
            self._look()

    def active(self, running: int) -> int:
        """Return how many of those that are not settled hold a slot."""
        return running - min(self._number, self._most)

    def has_room(self, running: int) -> bool:
        """Whether another job can start when ``running`` jobs are not settled."""
        return running < self._limit and running - self._number < self._concurrency

    def free(self, running: int) -> int:
        """Return how many jobs can start when ``running`` jobs are not settled."""
        return min(self._concurrency - running + self._number, self._limit - running)

    @property
    def may_settle(self) -> bool:
        """Whether there is something to settle, and now is the time."""
        return bool(self._ended) and not (self._together and self._settlements)

    def _look(self) -> None:
        self.due_at = self._since + _LONGEST_S if self.may_settle else inf

    def begin(self) -> list[EndedAttempt[J]]:
        """Return those to settle now; call :meth:`end` after that."""
        taken, self._ended = self._ended, []
        self._settlements += 1
        self._look()
        return taken

    def note_settled(self, count: int) -> None:
        self._number -= count

    def end(self) -> None:
        """Note that a settlement is over."""
        self._settlements -= 1
        self._look()


class IdleSlots:
    """The slots of one worker that have nothing to do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.resting: list[asyncio.Future[None]] = []
        # How many were woken and have not looked for work yet.
        self.coming: int = 0
        self._next = 1

    async def wait(self) -> None:
        """Return when there may be work."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.resting.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self.coming -= 1
            elif waiter in self.resting:
                self.resting.remove(waiter)

    def wake(self, most: int) -> None:
        """Wake at most ``most`` slots, unless woken ones have not looked yet: those will wake others."""
        if self.coming or not self.resting:
            return
        count = min(most, self._next, len(self.resting))
        if count > 0:
            self._next = 2 * count
            self._wake(count)

    def wake_anew(self, most: int) -> None:
        """Wake a slot for new work; it wakes others as they are needed."""
        self._next = 1
        self.wake(most)

    def wake_all(self) -> None:
        self._wake(len(self.resting))

    def _wake(self, count: int) -> None:
        while count and self.resting:
            waiter = self.resting.pop()
            if not waiter.done():
                waiter.set_result(None)
                self.coming += 1
                count -= 1


class JobSlots(Generic[J]):
    """The slots of a worker that runs ``concurrency`` jobs; ``together`` and ``exclusive`` as of its ended attempts.

    ``waiting`` jobs were taken and can start; ``running`` ones have a slot until they are settled.
    """

    def __init__(self, concurrency: int, *, together: bool, exclusive: bool) -> None:
        self.waiting: deque[J] = deque()
        self.running: dict[J, None] = {}
        self.unsettled: EndedAttempts[J] = EndedAttempts(concurrency, together=together, exclusive=exclusive)
        self.idle: IdleSlots = IdleSlots()

    @property
    def active(self) -> int:
        """How many jobs hold a slot."""
        return self.unsettled.active(len(self.running))

    def startable(self) -> int:
        """Return how many jobs can start now."""
        return min(len(self.waiting), self.unsettled.free(len(self.running)))

    def wake(self) -> None:
        """Wake a slot for jobs that have come, or that can start now."""
        self.idle.wake_anew(self.startable())
