"""The worker: takes jobs, runs them in slots, keeps their leases, stops gracefully.

Design: one fetcher for each channel asks for as many jobs as there are free slots, and a few more when jobs are short
(``appetite.py``), so that quick jobs do not wait for the store and slow ones are not hoarded. A slot is a task that
runs one attempt after another; when none can start, it settles those that have ended, together (``core.py``). How many
may end before they are settled is decided in ``ended_attempts.py``. A separate thread keeps the leases (``leases.py``).

States: working; stopping (no more jobs are taken, waiting ones are handed back, running ones are notified and have
their grace); cancelling (async jobs are cancelled and handed back, threads are waited for: a thread cannot be killed,
and while it runs its lease is kept, so that no other worker starts its job).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from pelton.api import JobCancelledError, JobError, PeltonError
from pelton.queue.backing.outage import Outage
from pelton.queue.limits.parking import Parking
from pelton.queue.model.orders import Order, Orders
from pelton.queue.model.records import Ended, job_id_of
from pelton.queue.run.appetite import Appetite
from pelton.queue.run.attempt import AttemptEnv, JobAttempt
from pelton.queue.run.batches import JobBatches
from pelton.queue.run.children import JobChildren
from pelton.queue.run.core import EndedAttempt, HeldJobs
from pelton.queue.run.ended_attempts import EndedAttempts
from pelton.queue.run.idle_slots import IdleSlots
from pelton.queue.run.job_threads import Called, JobThreads
from pelton.queue.run.order_reader import OrderReader
from pelton.queue.run.progress import Sweeper
from pelton.queue.run.ranked_takes import RankedFetcher
from pelton.queue.run.roll_call import RollCall
from pelton.queue.run.signals import watch_signals
from pelton.queue.run.start_gate import StartGate
from pelton.queue.run.worker_settings import WorkerSettings
from pelton.runtime import Home, Signal

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.ports import FlowFollower

_SETTLED_LOOK_S: Final = 0.2


class Worker:
    """Runs the jobs of one queue in this process."""

    def __init__(
        self, queue: QueueContext, settings: WorkerSettings, flows: Callable[[Callable[[], None]], FlowFollower]
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._runtime = queue.runtime
        self._clock = queue.runtime.clock
        self._loop = asyncio.get_running_loop()
        self.home = Home(self._loop)
        self._held = HeldJobs(queue, self._attempt, on_error=settings.on_error)
        self._job_source = self._held.source
        self._threads = JobThreads(settings.concurrency, self._called)
        self._children = JobChildren(settings.concurrency)
        # How many jobs are there.
        self._on_threads = 0
        self._orders = Orders()
        self._order_reader = OrderReader(queue, self._heed)
        self._begun = Signal()
        self._parking: Parking[JobAttempt] = Parking(
            queue, self._held.admission, settings.concurrency, keeps_all=settings.until_idle
        )
        self._sweeper = Sweeper(queue)
        self._roll_call = RollCall(queue, self._held.worker, settings.concurrency, self._how_many)
        batches = JobBatches(queue.runtime, settings.concurrency)
        self._env = AttemptEnv(
            queue, self._clock, self._held, self._threads, self._children, batches,
            StartGate(self._held, self._orders, self._parking), self._tell_lost,
        )  # fmt: skip
        self._outage = Outage(queue.name, self._clock)
        self._waiting: deque[JobAttempt] = deque()
        self._surplus: list[JobAttempt] = []
        # Those that have a slot: until they are settled.
        self._running: dict[JobAttempt, None] = {}
        self._unsettled: EndedAttempts[JobAttempt] = EndedAttempts(
            settings.concurrency, together=queue.backend.planning.atomic_batches
        )
        # When a job has started the last time, in seconds since boot.
        self._started_at = 0.0
        self._idle = IdleSlots()
        self._taken = Signal()
        self._stop = Signal()
        self._stopping = False
        # Whether what it runs is to hurry: not when it only takes no more.
        self._is_told = False
        self._left = settings.max_jobs or -1
        self._failure: BaseException | None = None
        # When a channel brought jobs the last time, in seconds since boot.
        self._taken_in_at = float("-inf")
        self._ends_by_itself = settings.until_empty or settings.until_idle
        self._appetite = Appetite(settings.concurrency, queue.lease)
        self._fetcher = RankedFetcher(
            self._held, queue.runtime, self._wanted, self._taken, self._appetite.request, self._take_in
        )
        self._is_shared = len(self._job_source.channels) > 1
        self._served = ""
        self._flows = flows(self._carried_on)
        # The channels that had nothing, since something was taken or ran.
        self._dry: set[str] = set()

    # --- life

    async def run(self) -> None:
        """Work until stopped. Raises the store's error if the store fails for good."""
        self._held.start()
        self._roll_call.start()
        unwatch = watch_signals(self.stop) if self._settings.handle_signals else None
        slots = [self._spawn(self._slot(), f"slot {n}") for n in range(self._settings.concurrency)]
        fetchers = [self._spawn(self._fetch(channel), "fetcher") for channel in self._job_source.channels]
        fetchers.append(self._spawn(self._order_reader.follow(self._begun.notify), "orders"))
        fetchers.append(self._spawn(self._flows.follow(), "flows"))
        fetchers.append(self._spawn(self._parking.follow(self._unpark), "limits"))
        fetchers.append(self._spawn(self._fetcher.run(), "fetcher of jobs with a priority"))
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
        endings.push_async_callback(self._job_source.close)
        endings.push_async_callback(self._held.admission.close)
        endings.push_async_callback(self._order_reader.close)
        return endings

    def stop(self) -> None:
        """Take no more jobs, tell those that run, and let :meth:`run` finish."""
        for attempt in self._running:
            if attempt.context is not None:
                attempt.context.stop()
        self._is_told = True
        self._retire()

    def _count_down(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._retire()

    def _retire(self) -> None:
        """Take no more jobs, and let those that run take as long as they want."""
        self._stopping = self._roll_call.stopping = True
        self._stop.notify()
        self._idle.wake_all()
        self._taken.notify()

    async def _wind_down(self, fetchers: list[asyncio.Task[None]], slots: list[asyncio.Task[None]]) -> None:
        for fetcher in fetchers:
            fetcher.cancel()
        try:
            await asyncio.gather(*fetchers, return_exceptions=True)
            await self._hand_back_waiting()
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

    async def _hand_back_waiting(self) -> None:
        waiting = [*self._waiting, *self._surplus, *self._parking.clear()]
        self._waiting.clear()
        self._surplus.clear()
        with suppress(PeltonError):
            await self._hand_back(waiting)

    def _end_threads(self) -> None:
        self._held.stop()
        # Jobs still run here only if the worker was cancelled while stopping.
        self._threads.close(wait=not self._running)

    def _spawn(self, coroutine: Any, what: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._runtime.spawn(coroutine, f"pelton {self._queue.name} {what}")
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

    # --- orders

    def _heed(self, order: Order) -> None:
        """Take note of an order, and end the job that it cancels if it is held here."""
        self._orders.heed(order)
        if order.flows:
            self._flows.notice()
        self._taken.notify()
        if order.limit is not None:
            self._held.admission.heed(order.limit, over=order.over)
        if order.pause_all and not order.over:
            self._unpark(self._parking.clear())
        if order.pause_all:
            self._roll_call.tell()
        if order.cancel:
            for attempt in self._held.held():
                records = attempt.records
                if job_id_of(records.delivered) == order.cancel:
                    attempt.cancel(JobCancelledError(order.cancel, records.envelope.key, order.reason))
                    self._unpark([attempt] if self._parking.remove(attempt) else [])

    # --- taking jobs

    async def _fetch(self, channel: str) -> None:
        # No job starts that is known to be cancelled or paused.
        await self._begun.wait(0)
        while not self._stopping:
            seen = self._taken.generation
            if self._served == channel and self._is_shared:
                # The other channel's turn: neither starves.
                await self._clock.sleep(0)
            wanted = self._wanted()
            if wanted <= 0:
                if self._settings.until_idle and (self._orders.is_all_paused or await self._is_over(channel)):
                    self.stop()
                await self._taken.wait(seen)
                continue
            asked = self._clock.boottime()
            try:
                if self._ends_by_itself:
                    found = await self._fetcher.now(channel)
                    if not found and await self._is_over(channel):
                        self.stop()
                else:
                    found = await self._fetcher.take(channel, wanted)
            except PeltonError as error:
                await self._outage.wait(error)
                continue
            self._outage.is_over()
            if found:
                self._served = channel
                await self._take_in(found, asked)
            elif self._ends_by_itself and not self._stopping:
                # Until one of our jobs has ended, or some time has passed.
                await self._taken.wait_at_most(self._clock, _SETTLED_LOOK_S, seen)

    def _wanted(self) -> int:
        if self._orders.is_all_paused:
            return 0
        wanted = self._appetite.wanted(self._active, len(self._waiting))
        room = self._parking.room() if self._held.admission.is_on else None
        return wanted if room is None else min(wanted, room - len(self._waiting))

    def _unpark(self, attempts: list[JobAttempt]) -> None:
        """Start jobs that have waited for a limit, before those that were taken after them."""
        self._waiting.extendleft(reversed(attempts))
        self._idle.wake_anew(self._startable())
        # There may be room for others.
        self._taken.notify()

    async def _take_in(self, found: list[JobAttempt], asked: float) -> None:
        """Accept what fits; when two channels were asked to fill the same slots, hand the rest back."""
        self._roll_call.taken += len(found)
        room = len(found)
        if self._taken_in_at >= asked:
            room = max(self._appetite.room(self._active, len(self._waiting)), 0)
        self._taken_in_at = self._clock.boottime()
        self._waiting.extend(found[:room])
        self._dry.clear()
        self._idle.wake_anew(self._startable())
        surplus = found[room:]
        if not surplus:
            return
        try:
            await self._hand_back(surplus)
        finally:
            # A stopping worker hands back the rest.
            self._surplus += [attempt for attempt in surplus if self._held.is_held(attempt)]

    def _attempt(self, records: AttemptRecords) -> JobAttempt:
        return JobAttempt(self._env, records)

    def _tell_lost(self, attempt: JobAttempt, reason: str) -> None:
        """Pass on what the keeper's thread has found."""
        self._loop.call_soon_threadsafe(self._lose, attempt, reason)

    async def _is_over(self, channel: str) -> bool:
        if ready := self._parking.ready():
            # Something was returned to a limit.
            self._unpark(ready)
        if self._running or self._waiting or self._held.admission.is_writing:
            # What ends may let another job start.
            self._dry.clear()
            return False
        self._dry.add(channel)
        if self._settings.until_idle and len(self._dry) == len(self._job_source.channels):
            # It may have enqueued jobs meanwhile.
            return await self._flows.is_idle() and len(self._dry) == len(self._job_source.channels)
        if not self._settings.until_empty or (quiet := await self._flows.quiet()) is None:
            return False
        return await self._job_source.is_empty() and quiet == await self._flows.quiet()

    def _carried_on(self) -> None:
        """Take note that a flow went on: it may have enqueued jobs."""
        self._dry.clear()
        self._taken.notify()

    # --- running jobs

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        unsettled = self._unsettled
        while True:
            if self._startable() > 0 and not self._stopping and not unsettled.is_due(self._started_at):
                attempt = self._waiting.popleft()
                self._running[attempt] = None
                self._taken.notify()
                self._count_down()
                # Should the job suspend, others go on: with what waits, and with what is to be settled.
                self._idle.wake(self._startable() or len(unsettled))
                await self._run(attempt, task)
            elif unsettled.may_settle:
                await self._settle()
            elif self._stopping and not self._on_threads:
                return
            else:
                await self._idle.wait()

    def _how_many(self) -> tuple[int, int, float]:
        now = self._clock.boottime()
        oldest = min((attempt.began for attempt in self._running if attempt.began), default=now)
        return self._active, len(self._held.held()), now - oldest

    @property
    def _active(self) -> int:
        return self._unsettled.active(len(self._running))

    def _startable(self) -> int:
        """Return how many jobs can start now."""
        return min(len(self._waiting), self._unsettled.free(len(self._running)))

    async def _run(self, attempt: JobAttempt, task: asyncio.Task[None]) -> None:
        attempt.began = self._started_at = self._clock.boottime()
        ended: Ended | None = None
        try:
            held = self._held
            if not attempt.is_lost and (not held.is_doubtful(attempt, attempt.began) or await held.confirm(attempt)):
                ended = await attempt.run(task)
            if self._stopping and self._parking.remove(attempt):
                ended, attempt.is_parked = attempt.handed_back(), False
        except asyncio.CancelledError:
            if not attempt.interrupted:
                raise
            _clear(task)
            await attempt.look_up()
            ended = attempt.handed_back()
        finally:
            if attempt.interrupted or attempt.cancelled is not None or attempt.asleep is not None:
                _clear(task)
            if attempt.on_thread:
                self._on_threads += 1
            elif attempt.is_parked:
                attempt.is_parked = False
                del self._running[attempt]
                # It was not started after all.
                self._left += self._left > 0
                self._taken.notify()
            elif ended is None:
                self._finish((attempt,))
        if ended is not None:
            self._has_ended(attempt, ended)

    def _has_ended(self, attempt: JobAttempt, ended: Ended) -> None:
        now = self._clock.boottime()
        self._appetite.ran(now - attempt.began)
        self._unsettled.add(EndedAttempt(attempt, ended), now)

    def _called(self, called: Sequence[Called[JobAttempt]]) -> None:
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
                self._has_ended(attempt, ended)
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
            await self._held.settle(taken, self._settled)
        except BaseException:
            self._settled([one.job for one in taken if one.job in self._running])
            raise
        finally:
            self._unsettled.end()

    def _settled(self, attempts: Sequence[JobAttempt]) -> None:
        self._unsettled.settled(len(attempts))
        self._finish(attempts)

    def _finish(self, attempts: Sequence[JobAttempt]) -> None:
        """Let go of attempts that are over."""
        if not attempts:
            return
        self._roll_call.finished += len(attempts)
        for attempt in attempts:
            del self._running[attempt]
            if attempt.context is not None:
                attempt.context.close()
                if attempt.leaves_traces:
                    self._sweeper.sweep(attempt.records.id)
            # It names its attempt: so both go at once, and not when somebody looks for cycles.
            attempt.context = None
        self._held.release(attempts)
        if self._orders.is_all_paused and not self._running:
            self._roll_call.tell()
        self._taken.notify()
        if self._waiting:
            self._idle.wake_anew(self._startable())

    async def _hand_back(self, attempts: Sequence[JobAttempt]) -> None:
        """Give jobs back that were not started, so that another worker can start them at once."""
        tried = [attempt for attempt in attempts if attempt.records.delivered.num_delivered > 1]
        await asyncio.gather(*(attempt.look_up() for attempt in tried))
        ended = [(attempt, attempt.handed_back()) for attempt in attempts]
        self._held.release([attempt for attempt, end in ended if end is None])
        await self._held.settle([EndedAttempt(attempt, end) for attempt, end in ended if end is not None])

    def _lose(self, attempt: JobAttempt, reason: str) -> None:
        """Notify the job of a lost lease, before another worker can hold it."""
        if attempt.context is not None:
            attempt.context.lose(reason)
        attempt.interrupt()
        self._unpark([attempt] if self._parking.remove(attempt) else [])


def _clear(task: asyncio.Task[None]) -> None:
    """Clear cancellations that were handled; the slot continues with other jobs."""
    while task.cancelling():
        task.uncancel()
