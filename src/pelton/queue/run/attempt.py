"""One attempt of a job: decode, run, decide, settle.

The settlement publishes what the attempt produced (its outcome, a dead letter, messages the job emitted) in
the same transaction as the ack of its message, so an attempt has all of its effects or none. A refused
settlement means that the lease was lost: another worker has, or had, the job, and everything this attempt
wanted to publish is dropped.

The worker may *interrupt* an attempt: when its lease is lost, or when the worker stops and the grace period is
over. An async job then sees CancelledError, and the attempt is not settled. A CancelledError that the worker
did not cause is the job's own, and treated like any other error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pelton.api import (
    AckRejectedError,
    ApiError,
    ConfigError,
    Delivered,
    JobResultError,
    JobTimeoutError,
    LeaseLostError,
    MessageTooLargeError,
    PeltonError,
    StoreError,
    UnknownJobError,
)
from pelton.api.store_errors import FINAL_ERRORS
from pelton.api.times import Seconds
from pelton.queue.backing.outage import can_pass
from pelton.queue.define.job import Job
from pelton.queue.enqueue.transaction import JobEnding, JobTransaction
from pelton.queue.model.decide import Again, Decide, Finish, after_error, after_refusal
from pelton.queue.model.failure import describe
from pelton.queue.model.records import AttemptRecords, Ended
from pelton.queue.model.rules import JobRules
from pelton.queue.run.context import JobContext
from pelton.queue.run.failure_log import report
from pelton.queue.run.leases import DeliveryHold, SharedLease

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.ports import JobSource
    from pelton.queue.run.job_threads import JobThreads
    from pelton.runtime import Clock

T = TypeVar("T")

_log: Final = logging.getLogger("pelton")
_ASK_AGAIN_S: Final = 0.5


class AttemptEnv(NamedTuple):
    """What the attempts of one worker share. ``tell_lost``, for any thread, passes on why one lost its lease."""

    queue: QueueContext
    job_source: JobSource
    worker: str
    clock: Clock
    threads: JobThreads[JobAttempt]
    tell_lost: Callable[[JobAttempt, str], None]


class JobAttempt:
    """A delivered job on its way through a worker.

    ``lost``: the lease was lost. ``lease`` is shared with the jobs that were taken with it; none once it is let go of.
    ``on_thread``: its function runs on a thread, and how that ends goes to :meth:`conclude`.
    """

    __slots__ = (
        "_cancel",
        "_env",
        "_has_ended",
        "_has_looked_up",
        "_is_completed",
        "_job",
        "_records",
        "began",
        "context",
        "delivered",
        "id",
        "interrupted",
        "lease",
        "lost",
        "on_thread",
    )  # fmt: skip

    def __init__(self, env: AttemptEnv, delivered: Delivered) -> None:
        self._env = env
        self._records = AttemptRecords(env.queue.names, env.worker, delivered)
        self.delivered = delivered
        self.id = self._records.id
        self.lease: SharedLease[JobAttempt] | None = None
        self.lost = False
        # Of a job that asks for one.
        self.context: JobContext | None = None
        self.interrupted = False
        self.on_thread = False
        # When it began, by the worker's monotonic clock.
        self.began = 0.0
        self._cancel: Callable[[], object] | None = None
        self._has_looked_up = False
        self._job: Job[Any, Any] | None = None
        # Whether its function has returned what can be stored.
        self._is_completed = False
        # Whether the job completed itself, in its own transaction.
        self._has_ended = False

    @property
    def hold(self) -> DeliveryHold:
        """What it holds; for the keeper of leases."""
        return DeliveryHold(self.delivered, self.lose)

    def lose(self, reason: str) -> None:
        """Note, on any thread, that the lease is lost, and tell the worker, once."""
        # One that was let go of meanwhile is settled.
        if not self.lost and self.lease is not None:
            self.lost = True
            self._env.tell_lost(self, reason)

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have the job, known or not."""
        lease = self.lease
        if self.lost or lease is None or not lease.by_clock:
            return self.lost
        return lease.is_over(self._env.clock.boottime())

    def interrupt(self) -> None:
        """Do not start the job, or cancel it if possible: a job on a thread keeps running."""
        self.interrupted = True
        if self._cancel is not None:
            self._cancel()

    async def run(self, task: asyncio.Task[None]) -> Ended | None:
        """Run the job on ``task``, or start it on a thread, and return how it ended.

        None if nothing of it is left to be settled, or ``on_thread``. Raises CancelledError if interrupted before its
        end.
        """
        self._records.started = self._env.clock.now()
        decision = await self._prepare()
        if decision is not None:
            return self._concluded(decision, None)
        assert self._job is not None
        try:
            result = await self._call(self._job, task)
        except BaseException as error:  # whatever a job raises is its outcome
            if isinstance(error, asyncio.CancelledError) and (self.interrupted or task.cancelling() > 0):
                # It comes from outside: the worker, or an event loop that ends.
                raise
            return self.conclude(None, error)
        return None if self.on_thread else self._concluded(None, result)

    def conclude(self, result: object, error: BaseException | None) -> Ended | None:
        """Return how a job ended whose function has returned or raised; None as for :meth:`run`."""
        if error is None:
            return self._concluded(None, result)
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise error
        if isinstance(error, asyncio.CancelledError) and self.interrupted:
            # It was to be started on a thread, and was interrupted before.
            return None if self._has_ended or self.is_lost else self._records.handed_back()
        if self._has_ended:
            _log.warning("job %s raised after it was completed: %s", self.id, describe(error))
        assert self._job is not None
        return self._concluded(self._after(error, self._job.rules), None)

    def _concluded(self, decision: Finish | Again | None, result: object) -> Ended | None:
        if self._has_ended:
            return None
        if self.is_lost:
            _log.warning("job %s of queue %r lost its lease; its result is dropped", self.id, self._env.queue.name)
            return None
        return self._ended(decision, result)

    async def hand_back(self) -> None:
        """Give the job back so that another worker can start it at once; this attempt is not counted."""
        if self._has_ended:
            return
        await self._look_up()
        await self._write_down(self._records.handed_back())

    # --- before

    async def _prepare(self) -> Finish | Again | None:
        """Decode the job and check whether it may run at all."""
        records = self._records
        unreadable = records.read()
        if unreadable is not None:
            report(self._env.queue.name, records, unreadable)
            return unreadable
        if self.delivered.num_delivered > 1:
            await self._look_up()
        self._job = job = self._env.queue.jobs_by_name.get(records.envelope.job)
        rules = job.rules if job is not None else JobRules()
        ended = records.after_deaths(rules)
        if ended is None and job is None:
            return self._after(UnknownJobError(records.envelope.job, sorted(self._env.queue.jobs_by_name)), rules)
        if ended is not None:
            report(self._env.queue.name, records, ended)
        return ended

    async def _look_up(self) -> None:
        """Load what earlier attempts left, once."""
        if not self._has_looked_up:
            known = await self._patiently("looked up", lambda: self._env.job_source.known(self.delivered))
            self._records.learn(known)
            self._has_looked_up = True

    def _after(self, error: BaseException, rules: JobRules, decide: Decide = after_error) -> Finish | Again:
        decision = decide(error, self._records.attempt, rules, self._env.queue.runtime.random)
        if not (self.is_lost or self._has_ended):
            report(self._env.queue.name, self._records, decision, error)
        return decision

    # --- the job itself

    async def _call(self, job: Job[Any, Any], task: asyncio.Task[None]) -> object:
        records = self._records
        envelope, last_error = records.envelope, records.known.error if records.known is not None else ""
        arguments = job.decode_arguments(envelope.args)
        if job.context_parameter:
            self.context = arguments[job.context_parameter] = JobContext(
                self._env.queue.name,
                self._env.worker,
                self.delivered,
                envelope,
                records.attempt,
                last_error,
                partial(self._transaction, job) if job.is_async else None,
            )
        self._check()
        if not job.is_async:
            self.on_thread = True
            self._env.threads.run(self, partial(self._call_on_thread, job.function, arguments))
            return None
        self._cancel = task.cancel
        try:
            return await self._call_in_time(job, job.rules.timeout, arguments)
        finally:
            self._cancel = None

    async def _call_in_time(self, job: Job[Any, Any], limit: float | None, arguments: dict[str, Any]) -> object:
        if limit is None:
            return await job.function(**arguments)
        try:
            # Not ``within``: this one reports whether it cancelled the job, and where the job was.
            async with asyncio.timeout(limit) as timer:
                return await job.function(**arguments)
        except TimeoutError as error:
            if not timer.expired():
                # One of the job's own.
                raise
            # The cause is where the job was.
            raise JobTimeoutError(self.id, job.name, limit) from error.__cause__ or error

    def _call_on_thread(self, function: Callable[..., object], arguments: dict[str, Any]) -> object:
        self._check()
        return function(**arguments)

    def _check(self) -> None:
        """Raise CancelledError for a job that must not start any more."""
        if self.interrupted or self.is_lost:
            self.interrupted = True
            raise asyncio.CancelledError

    # --- after

    def _ended(self, decision: Finish | Again | None, result: object) -> Ended:
        if decision is None:
            assert self._job is not None
            emitted = self.context.emitted() if self.context is not None else ()
            try:
                encoded = self._job.results.encode(result)
                self._is_completed = True
                return self._records.completed(encoded, emitted, self._env.clock.now())
            except JobResultError as refused:
                decision = self._after(refused, self._job.rules)
        return self._records.after(decision, self._env.clock.now())

    async def settle(self, ended: Ended, refused: PeltonError | None = None) -> None:
        """Write down how it ended. ``refused``: what came of a first try, which was made for many at once."""
        while True:
            try:
                await self._write_down(ended, refused)
                return
            except (ApiError, ConfigError) as error:
                ended, refused = self._otherwise(ended, error), None

    def _otherwise(self, ended: Ended, refused: ApiError | ConfigError) -> Ended:
        """Return how it ends if a message was refused: it has failed, or leaves no dead letter."""
        if self._is_completed:
            # Its result, or what it emitted, was refused: the attempt has failed, and none of it took effect.
            self._is_completed = False
            rules = self._job.rules if self._job is not None else JobRules()
            return self._records.after(self._after(refused, rules, after_refusal), self._env.clock.now())
        if not isinstance(refused, MessageTooLargeError) or ended.dead_letter is None:
            raise refused
        # Another attempt would end in the same way, on every worker.
        _log.error("job %s of queue %r leaves no dead letter: %s", self.id, self._env.queue.name, refused)
        return ended.without_dead_letter()

    def _transaction(self, job: Job[Any, Any], context: JobContext, timeout: Seconds) -> JobTransaction:
        return JobTransaction(self._env.queue.backend, timeout, partial(self._ending, job, context))

    def _ending(self, job: Job[Any, Any], context: JobContext, result: object) -> JobEnding:
        """Return what completes the job in its own transaction. Raises JobResultError."""
        context.check()
        encoded = job.results.encode(result)
        ended = self._records.completed(encoded, context.emitted(), self._env.clock.now())
        return JobEnding(ended, self._lost_lease, self._note_end)

    def _lost_lease(self, refused: PeltonError) -> PeltonError:
        return LeaseLostError(self.id, self._records.envelope.key, str(refused))

    def _note_end(self, ended: bool) -> None:
        self._has_ended = ended

    async def _write_down(self, ended: Ended, refused: PeltonError | None = None) -> None:
        try:
            await self._patiently("settled", lambda: self._env.job_source.settle(ended), refused)
        except AckRejectedError as error:
            _log.warning("job %s of queue %r: %s", self.id, self._env.queue.name, error)

    async def _patiently(
        self, what: str, ask: Callable[[], Awaitable[T]], refused: PeltonError | None = None
    ) -> T | None:
        """Retry while the store is temporarily unavailable, for as long as the lease is kept; then return None."""
        while refused is not None or not self.is_lost:
            try:
                if refused is not None:
                    raise refused
                return await ask()
            except FINAL_ERRORS:
                raise
            except PeltonError as error:
                if not (isinstance(error, StoreError) or can_pass(error)):
                    raise
                _log.warning("job %s of queue %r can't be %s yet: %s", self.id, self._env.queue.name, what, error)
                refused = None
                await self._env.clock.sleep(_ASK_AGAIN_S)
        return None
