"""The worker: runs jobs in slots, keeps their leases, stops gracefully.

Design: ``fetch.py`` takes as many jobs as can start soon. A slot is a task that runs one attempt after another; when
none can start, it settles those that have ended, together (``leased_jobs.py``). How many may end before they are
settled is decided in ``slots.py``. A separate thread keeps the leases (``leases.py``).

States: working; stopping (no more jobs are taken, waiting ones are handed back, running ones are notified and have
their grace); cancelling (async jobs are cancelled and handed back, threads are waited for: a thread cannot be killed,
and while it runs its lease is kept, so that no other worker starts its job).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import JobCancelledError, JobError, PeltonError, headers
from pelton.jet.backlogs import MINUTE, note_backlogs
from pelton.queue.model.limits import Order
from pelton.queue.model.records import Ended
from pelton.queue.model.states import WorkerReport
from pelton.queue.run.attempt import AttemptEnv, JobAttempt
from pelton.queue.run.children import JobChildren
from pelton.queue.run.fetch import JobIntake, order_reader
from pelton.queue.run.leased_jobs import EndedAttempt, LeasedJobs
from pelton.queue.run.slots import Called, Copies, JobBatches, JobSlots, JobThreads, WorkerSettings
from pelton.queue.scan import note_trend
from pelton.runtime import Home, Signal, StopSignals, memory_bytes

if TYPE_CHECKING:
    from pelton.queue.job import JobLookup
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.fetch import FlowFollower
    from pelton.runtime import Timer

_log: Final = logging.getLogger("pelton.queue")
_encode: Final = msgspec.json.Encoder().encode
# How often a worker tells of itself while nothing runs, and while something does: who looks wants to see what hangs.
_EVERY_S: Final = 10.0
_BUSY_S: Final = 1.0
_BETWEEN_S: Final = 0.5
_MOST_TOLD: Final = 100
_MOST_SWEPT: Final = 1000
# So it is seen for three rounds.
_TTL: Final = headers.encode({headers.TTL: "30s"})


class RollCall:
    """Tells others of one worker: what ``present`` returns."""

    def __init__(self, queue: QueueContext, worker: str, present: Callable[[], WorkerReport]) -> None:
        self._queue = queue
        self._subject = queue.names.worker_subject(worker)
        self._present = present
        self._soon: Timer | None = None
        self._is_due = False
        self._task: asyncio.Task[None] | None = None
        self._now = Signal()

    def start(self) -> None:
        self._task = self._queue.runtime.spawn(self._tell_on(), f"pelton {self._queue.name} roll call")

    def tell(self) -> None:
        """Tell now, not only at the next round."""
        self._now.notify()

    def tell_soon(self) -> None:
        """Tell now, or as soon as half a second has passed since the last time that this was asked for."""
        self._is_due = self._soon is not None
        if self._soon is None:
            self.tell()
            self._soon = self._queue.clock.call_later(_BETWEEN_S, self._told_soon)

    def _told_soon(self) -> None:
        self._soon = None
        if self._is_due:
            self.tell_soon()

    async def stop(self) -> None:
        """Leave: others see the worker no more."""
        if self._soon is not None:
            self._soon.cancel()
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(PeltonError):
            await (await self._queue.jet.stream(self._queue.names.running)).purge(filter=self._subject)

    async def _tell_on(self) -> None:
        clock = self._queue.clock
        minute = clock.now() // MINUTE
        while True:
            seen, told = self._now.generation, clock.boottime()
            try:
                await self._queue.backend.publish(self._subject, _encode(self._present()), _TTL)
                if minute != (minute := clock.now() // MINUTE):
                    await note_backlogs(self._queue.jet)
                    await note_trend(self._queue.jet, self._queue.names)
            except PeltonError as error:
                name = self._queue.name
                _log.debug("a worker of queue %r is not seen: %s", name, error, extra={"queue": name})
            while await self._now.wait_at_most(clock, min(_BUSY_S, _EVERY_S), seen) == seen:
                if clock.boottime() - told >= _EVERY_S or self._present().running:
                    break


Stop = Callable[[], None]


class Sweeper:
    """Removes what jobs have left that have ended. What it misses is removed by its age."""

    def __init__(self, queue: QueueContext, jobs: JobLookup) -> None:
        self._queue = queue
        self._jobs = jobs
        # Whether it may have called others.
        self._todo: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None

    def sweep(self, job_id: str, *, may_have_called: bool) -> None:
        """Remove the steps and the progress of a job, and cancel the jobs that it has called and waited for, soon."""
        if len(self._todo) < _MOST_SWEPT or may_have_called:
            self._todo[job_id] = may_have_called
        if self._task is None:
            self._task = self._queue.runtime.spawn(self._remove(), f"pelton {self._queue.name} sweeper")

    async def close(self) -> None:
        """Wait until all is removed."""
        while self._task is not None:
            await self._task

    async def _remove(self) -> None:
        try:
            stream = await self._queue.jet.stream(self._queue.names.running)
            while self._todo:
                job_id, may_have_called = next(iter(self._todo.items()))
                del self._todo[job_id]
                if may_have_called:
                    await self._jobs.cancel_called(job_id)
                await stream.purge(filter=self._queue.names.traces_of(job_id))
        except PeltonError as error:
            name = self._queue.name
            _log.debug("what jobs of queue %r have left is not removed: %s", name, error, extra={"queue": name})
            self._todo.clear()
        finally:
            self._task = None


class SignalWatch:
    """The signal handling of one event loop while workers run on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._stops: list[Stop] = []
        # Also wakes the loop, which may be waiting.
        self._signals = StopSignals(lambda: loop.call_soon_threadsafe(self._stop_all))

    def join(self, stop: Stop) -> None:
        """Call ``stop`` on a signal."""
        self._stops.append(stop)
        if not self._signals.taken:
            self._signals.take()

    def leave(self, stop: Stop) -> None:
        """No longer call ``stop``."""
        self._stops.remove(stop)
        if not self._stops:
            self._signals.give_back()

    def _stop_all(self) -> None:
        for stop in list(self._stops):
            stop()


_watches: list[SignalWatch] = []


def watch_signals(stop: Stop) -> Callable[[], None]:
    """Call ``stop`` on SIGTERM or SIGINT, unless the program handles them, until the returned function is called."""
    if threading.current_thread() is not threading.main_thread():
        # The loop of another thread receives no signals, and must not replace that of the main thread.
        return lambda: None
    loop = asyncio.get_running_loop()
    # Signals belong to the process and its main thread, which runs one loop at a time: one watch is enough.
    if not _watches or _watches[0].loop is not loop:
        _watches[:] = [SignalWatch(loop)]
    watch = _watches[0]
    watch.join(stop)
    return lambda: watch.leave(stop)


# A job that sleeps for longer is given back meanwhile.
_LONGEST_NAP_S: Final = 1.0


class Worker:
    """Runs the jobs of one queue in this process."""

    def __init__(
        self, queue: QueueContext, settings: WorkerSettings, flows: Callable[[Callable[[], None]], FlowFollower]
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._clock = queue.runtime.clock
        self._loop = asyncio.get_running_loop()
        self.home: Home = Home(self._loop)
        self._held = LeasedJobs[JobAttempt](
            queue, None, settings.on_error, settings.concurrency, parks_all=settings.until_idle
        )
        self._threads = JobThreads(settings.concurrency, self._on_called)
        self._children = JobChildren(settings.concurrency)
        # The number of jobs that run on threads.
        self._on_threads = 0
        self._orders = self._held.orders
        self._parking = self._held.parking
        now = self._clock.now()
        self._report = WorkerReport(
            name=self._held.worker, host=socket.gethostname(), pid=os.getpid(), started_at=now, seen_at=now,
            concurrency=settings.concurrency,
        )  # fmt: skip
        self._finished = 0
        self._roll_call = RollCall(queue, self._held.worker, self._present)
        joined = None if settings.on_idle is None else lambda: self._taken.notify()
        batches = JobBatches(queue.runtime, settings.concurrency, joined)
        self._env = AttemptEnv(
            queue, self._clock, self._held, self._threads, self._children, batches,
            self._tell_lost, None if settings.max_jobs is None else self._begins,
            self._is_cancelled, Copies(), _LONGEST_NAP_S if settings.on_idle is None else 0.0,
        )  # fmt: skip
        together = queue.backend.planning.atomic_batches
        self._slots = JobSlots[JobAttempt](settings.concurrency, together=together, exclusive=queue.exclusive)
        self._waiting, self._running = self._slots.waiting, self._slots.running
        self._unsettled, self._idle = self._slots.unsettled, self._slots.idle
        self._intake = JobIntake(
            queue, settings, self._held, self._slots, batches, flows,
            self.stop, self._startable,
        )  # fmt: skip
        self._taken: Signal = self._intake.changed
        self._sweeper = Sweeper(queue, self._intake.flows.jobs)
        self._order_reader = order_reader(queue, self._heed, self._intake.begun.notify)
        # When a slot has looked for work the last time, in seconds since boot.
        self._now = self._clock.boottime()
        self._stop = Signal()
        self._stopping = False
        # Whether what it runs is to hurry: not when it only takes no more.
        self._is_told = False
        # How many jobs it may still begin, without those in ``_undecided``: they may be put off, or not run at all.
        self._is_limited = settings.max_jobs is not None
        self._left: float = inf if settings.max_jobs is None else settings.max_jobs
        self._undecided: dict[JobAttempt, None] = {}
        self._failure: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None

    # --- life

    async def run(self) -> None:
        """Work until stopped. Raises the store's error if the store fails for good."""
        self._task = asyncio.current_task()
        self._held.start(partial(JobAttempt, env=self._env))
        self._roll_call.start()
        unwatch = watch_signals(self.stop) if self._settings.handle_signals else None
        slots = [self._spawn(self._slot(), f"slot {n}") for n in range(self._settings.concurrency)]
        fetchers = [self._spawn(self._intake.fetch(channel), "fetcher") for channel in self._held.source.channels]
        fetchers.append(self._spawn(self._order_reader.follow(), "orders"))
        fetchers += [self._spawn(part.follow(), "flows and signals") for part in self._intake.flows.parts]
        fetchers.append(self._spawn(self._parking.follow(self._intake.unpark), "limits"))
        fetchers.append(self._spawn(self._intake.fetch_ranked(), "fetcher of jobs with a priority"))
        if self._queue.jobs.versions:
            fetchers.append(self._spawn(self._intake.recall_versions(), "versions"))
        try:
            while not self._stopping:
                await self._stop.wait(self._stop.generation)
        except BaseException:
            self.stop()
            raise
        finally:
            async with self._endings(unwatch):
                await self._wind_down(fetchers, slots)
        if self._failure is not None:
            raise self._failure

    def _endings(self, unwatch: Callable[[], None] | None) -> AsyncExitStack:
        """Return what ends with the worker, last first.

        Its threads end whatever else fails: they would keep the leases of jobs that nobody runs.
        """
        endings = AsyncExitStack()
        endings.callback(self._end_threads)
        if unwatch is not None:
            endings.callback(unwatch)
        endings.push_async_callback(self._children.close)
        endings.push_async_callback(self._sweeper.close)
        endings.push_async_callback(self._roll_call.stop)
        endings.push_async_callback(self._held.close)
        return endings

    def stop(self) -> None:
        """Take no more jobs, tell those that run, and let :meth:`run` finish."""
        for attempt in self._running:
            if attempt.context is not None:
                attempt.context.stop()
        self._is_told = True
        self._retire()

    def _startable(self) -> float:
        """Return how many more jobs may begin here than are about to."""
        return self._left - len(self._undecided) - len(self._waiting)

    def _begins(self, attempt: JobAttempt) -> None:
        """Count a job that begins, or that ends without; after the last one, take no more."""
        if attempt in self._undecided:
            del self._undecided[attempt]
            self._left -= 1
            if self._left <= 0:
                self._retire()

    def _retire(self) -> None:
        """Take no more jobs, and let those that run take as long as they want."""
        self._stopping = True
        self._stop.notify()
        self._idle.wake_all()
        self._intake.close()

    async def _wind_down(self, fetchers: list[asyncio.Task[None]], slots: list[asyncio.Task[None]]) -> None:
        for fetcher in fetchers:
            fetcher.cancel()
        try:
            await asyncio.gather(*fetchers, return_exceptions=True)
            await self._intake.hand_back_waiting()
            await self._until_told(slots)
            await asyncio.wait(slots, timeout=self._settings.grace)
            for attempt in list(self._running):
                attempt.interrupt()
            await asyncio.gather(*slots, return_exceptions=True)
        except asyncio.CancelledError:
            # Cancelling a worker that is already stopping ends its grace.
            for slot in slots:
                slot.cancel()
            raise

    async def _until_told(self, slots: list[asyncio.Task[None]]) -> None:
        """Wait until the worker is told to stop, or what it runs has ended."""
        while not self._is_told and not all(slot.done() for slot in slots):
            await self._stop.wait(self._stop.generation)

    def _end_threads(self) -> None:
        self._held.stop()
        # Jobs still run here only if the worker was cancelled while stopping.
        self._threads.close(wait=not self._running)

    def _spawn(self, coroutine: Any, what: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._queue.runtime.spawn(coroutine, f"pelton {self._queue.name} {what}")
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """End the worker if a fetcher or slot ends too early.

        A worker that only looks alive is of no use.
        """
        if task.cancelled():
            error: BaseException | None = None
            if not self._stopping:
                error = JobError(
                    f"a job of queue {self._queue.name!r} has cancelled its worker's own task; raise instead"
                )
        else:
            error = task.exception()
        if error is not None:
            self._fail(error)
        self._stop.notify()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()

    def _heed(self, order: Order) -> None:
        """Take note of an order, and end the job that it cancels if it is held here."""
        cancelled = self._held.heed(order)
        self._intake.flows.heed(order)
        self._intake.versions.heed(order)
        if order.stop == self._held.worker:
            self.stop()
        self._taken.notify()
        if order.pause_all and not order.over:
            self._intake.unpark(self._parking.clear())
        if order.pause_all:
            self._roll_call.tell()
        for attempt in cancelled:
            attempt.cancel(JobCancelledError(order.cancel, attempt.records.envelope.key, order.reason))
            self._intake.unpark([attempt] if self._parking.remove(attempt) else [])

    # --- running jobs

    def _tell_lost(self, attempt: JobAttempt, reason: str) -> None:
        """Pass on what the keeper's thread has found."""
        self._loop.call_soon_threadsafe(self._lose, attempt, reason)

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            if (attempt := self._start_next()) is not None:
                ended: Ended | None = None
                try:
                    ended = await attempt.run(task)
                except asyncio.CancelledError:
                    if not attempt.interrupted:
                        raise
                    ended = await self._end_interrupted(attempt, task)
                finally:
                    if ended is None or self._undecided:
                        ended = self._leave_slot(attempt, ended)
                if ended is not None:
                    self._on_end(attempt, ended)
                if task.cancelling():
                    await self._clear(task)
                continue
            if self._unsettled.may_settle:
                await self._settle()
            elif self._stopping and not self._on_threads:
                return
            else:
                await self._idle.wait()
            self._now = self._clock.boottime()

    def _start_next(self) -> JobAttempt | None:
        """Give a slot to the next job, if one can start now, and nothing is to be settled before."""
        is_over = self._stopping or (self._is_limited and len(self._undecided) >= self._left)
        unsettled, idle = self._unsettled, self._idle
        if is_over or not self._waiting or self._now >= unsettled.due_at or not unsettled.has_room(len(self._running)):
            return None
        attempt = self._waiting.popleft()
        attempt.began = self._now
        self._running[attempt] = None
        if self._is_limited:
            self._undecided[attempt] = None
        self._taken.notify()
        if idle.resting and not idle.coming:
            # Should the job suspend, others go on: with what waits, and with what is to be settled.
            idle.wake(self._slots.startable() or len(unsettled))
        return attempt

    def _present(self) -> WorkerReport:
        now, wall = self._clock.boottime(), self._clock.now()
        began = sorted((attempt for attempt in self._running if attempt.began), key=attrgetter("began"))
        oldest = began[0].began if began else now
        told = [(one.records.delivered, wall - int((now - one.began) * 1e9)) for one in began[:_MOST_TOLD]]
        return msgspec.structs.replace(
            self._report,
            seen_at=wall,
            taken=self._intake.taken,
            finished=self._finished,
            running=self._slots.active,
            held=len(self._held.held_jobs()),
            oldest_running=now - oldest,
            stopping=self._stopping,
            memory=memory_bytes(),
            parked=self._parking.parked_jobs(),
            began=[(delivered.seq, delivered.num_delivered, at) for delivered, at in told],
        )

    async def _end_interrupted(self, attempt: JobAttempt, task: asyncio.Task[None]) -> Ended | None:
        """Return the end of an attempt that the worker has interrupted: it is not counted."""
        await self._clear(task)
        await self._held.look_up([attempt])
        return self._held.handed_back(attempt)

    def _leave_slot(self, attempt: JobAttempt, ended: Ended | None) -> Ended | None:
        """Let an attempt leave its slot that may have no end yet; return the end that it has now."""
        if attempt.on_thread:
            self._on_threads += 1
        elif attempt.is_parked:
            attempt.is_parked = False
            if self._stopping and self._parking.remove(attempt):
                ended = self._held.handed_back(attempt)
            else:
                del self._running[attempt]
                self._taken.notify()
                self._roll_call.tell_soon()
        if ended is None and attempt in self._running and not attempt.on_thread:
            self._finish((attempt,))
        if attempt in self._undecided:
            self._did_not_begin(attempt, ended)
        return ended

    async def _clear(self, task: asyncio.Task[None]) -> None:
        """Clear cancellations that were for an attempt, or by it; the slot continues with other jobs."""
        while task.cancelling():
            task.uncancel()
        try:
            # One may not have been raised yet.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_cancelled():
                raise

    def _is_cancelled(self) -> bool:
        """Whether the worker's own task was cancelled, or has ended: slots are not cancelled otherwise."""
        task = self._task
        return task is not None and (task.cancelling() > 0 or task.done())

    def _did_not_begin(self, attempt: JobAttempt, ended: Ended | None) -> None:
        if ended is not None and ended.is_over:
            self._begins(attempt)
            return
        del self._undecided[attempt]
        if self._waiting:
            self._slots.wake()

    def _on_end(self, attempt: JobAttempt, ended: Ended) -> None:
        self._now = now = self._clock.boottime()
        self._intake.appetite.ran(now - attempt.began)
        self._unsettled.add(EndedAttempt(attempt, ended), now)

    def _on_called(self, called: Sequence[Called[JobAttempt]]) -> None:
        """Take over jobs that have ended on threads."""
        self._on_threads -= len(called)
        for attempt, result, error in called:
            ended: Ended | None = None
            try:
                ended = attempt.conclude(result, error)
            except BaseException as failure:  # as one of a job on a slot's task, it ends the worker
                self._fail(failure)
            if ended is None:
                self._finish((attempt,))
            else:
                self._on_end(attempt, ended)
        if self._stopping and not self._on_threads:
            self._idle.wake_all()
        else:
            self._idle.wake_anew(1)

    async def _settle(self) -> None:
        """Settle all attempts that have ended so far."""
        taken = self._unsettled.begin()
        # There may be room for others, which then come in the same transaction.
        self._taken.notify()
        try:
            await self._held.settle(taken, self._on_settled)
        except BaseException:
            self._on_settled([one.job for one in taken if one.job in self._running])
            raise
        finally:
            self._unsettled.end()

    def _on_settled(self, attempts: Sequence[JobAttempt]) -> None:
        self._unsettled.note_settled(len(attempts))
        self._finish(attempts)

    def _finish(self, attempts: Sequence[JobAttempt]) -> None:
        """Let go of attempts that are over."""
        if not attempts:
            return
        self._finished += len(attempts)
        for attempt in attempts:
            del self._running[attempt]
            if attempt.context is not None:
                attempt.context.close()
            if attempt.leaves_traces:
                self._sweeper.sweep(attempt.records.id, may_have_called=attempt.may_have_called)
            # It names its attempt: so both go at once, and not when somebody looks for cycles.
            attempt.context = None
        self._held.release(attempts)
        if self._orders.is_all_paused and not self._running:
            self._roll_call.tell()
        self._taken.notify()
        if self._waiting:
            self._slots.wake()

    def _lose(self, attempt: JobAttempt, reason: str) -> None:
        """Notify the job of a lost lease, before another worker can hold it."""
        if attempt.context is not None:
            attempt.context.lose(reason)
        attempt.interrupt()
        self._intake.unpark([attempt] if self._parking.remove(attempt) else [])
