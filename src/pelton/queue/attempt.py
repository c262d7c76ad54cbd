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
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from pelton.queue.context import JobContext
from pelton.queue.decide import Again, Decide, Finish, after_error, after_refusal
from pelton.queue.failure import describe
from pelton.queue.failure_log import report
from pelton.queue.job import Job, JobRules
from pelton.queue.leases import JobLease
from pelton.queue.outage import can_pass
from pelton.queue.records import AttemptRecords, Ended
from pelton.queue.transaction import JobEnding, JobTransaction

if TYPE_CHECKING:
    from pelton.queue.job_source import JobSource
    from pelton.queue.queue import Queue

T = TypeVar("T")

_log: Final = logging.getLogger("pelton")
_ASK_AGAIN_S: Final = 0.5


class JobAttempt:
    """A delivered job on its way through a worker."""

    def __init__(
        self, queue: Queue, job_source: JobSource, worker: str, delivered: Delivered, executor: Callable[[], Executor]
    ) -> None:
        self._queue = queue
        self._job_source = job_source
        self._clock = queue.jet.runtime.clock
        self._worker = worker
        self._executor = executor
        self._records = AttemptRecords(queue.names, worker, delivered)
        self.delivered = delivered
        self.id = self._records.id
        self.lease: JobLease | None = None
        self.context: JobContext | None = None
        self.interrupted = False
        self._cancel: Callable[[], object] | None = None
        self._has_looked_up = False
        # Whether the job completed itself, in its own transaction.
        self._has_ended = False

    @property
    def lost(self) -> bool:
        """Whether another worker may have the job."""
        return self.lease is not None and self.lease.is_over(self._clock.boottime())

    def interrupt(self) -> None:
        """Do not start the job, or cancel it if possible: a job on a thread keeps running."""
        self.interrupted = True
        if self._cancel is not None:
            self._cancel()

    async def run(self) -> None:
        """Run the job and settle it. Raises CancelledError, unsettled, if interrupted before its end."""
        self._records.started = self._clock.now()
        job, decision = await self._prepare()
        result: object = None
        if decision is None:
            assert job is not None
            try:
                result = await self._call(job)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # whatever a job raises is its outcome
                if isinstance(error, asyncio.CancelledError) and self._was_cancelled():
                    raise
                if self._has_ended:
                    _log.warning("job %s raised after it was completed: %s", self.id, describe(error))
                decision = self._after(error, job.rules)
        if self._has_ended:
            return
        if self.lost:
            _log.warning("job %s of queue %r lost its lease; its result is dropped", self.id, self._queue.name)
            return
        await self._settle(decision, result, job)

    async def hand_back(self) -> None:
        """Give the job back so that another worker can start it at once; this attempt is not counted."""
        if self._has_ended:
            return
        await self._look_up()
        await self._write_down(self._records.handed_back())

    # --- before

    async def _prepare(self) -> tuple[Job[Any, Any] | None, Finish | Again | None]:
        """Decode the job and check whether it may run at all."""
        records = self._records
        unreadable = records.read()
        if unreadable is not None:
            report(self._queue.name, records, unreadable)
            return None, unreadable
        await self._look_up()
        job = self._queue.jobs_by_name.get(records.envelope.job)
        rules = job.rules if job is not None else JobRules()
        ended = records.after_deaths(rules)
        if ended is None and job is None:
            unknown = UnknownJobError(records.envelope.job, sorted(self._queue.jobs_by_name))
            return None, self._after(unknown, rules)
        if ended is not None:
            report(self._queue.name, records, ended)
        return job, ended

    async def _look_up(self) -> None:
        """Load what earlier attempts left, once."""
        if not self._has_looked_up:
            self._records.learn(await self._patiently("looked up", lambda: self._job_source.known(self.delivered)))
            self._has_looked_up = True

    def _after(self, error: BaseException, rules: JobRules, decide: Decide = after_error) -> Finish | Again:
        decision = decide(error, self._records.attempt, rules, self._queue.jet.runtime.random)
        if not (self.lost or self._has_ended):
            report(self._queue.name, self._records, decision, error)
        return decision

    # --- the job itself

    async def _call(self, job: Job[Any, Any]) -> object:
        records = self._records
        envelope, last_error = records.envelope, records.known.error if records.known is not None else ""
        context = JobContext(
            self._queue.name,
            self._worker,
            self.delivered,
            envelope,
            records.attempt,
            last_error,
            partial(self._transaction, job) if job.is_async else None,
        )
        self.context = context
        arguments = job.decode_arguments(envelope.args)
        if job.context_parameter:
            arguments[job.context_parameter] = context
        if self.interrupted or self.lost:
            self.interrupted = True
            raise asyncio.CancelledError
        if not job.is_async:
            return await self._call_on_thread(partial(job.function, **arguments))
        task = asyncio.current_task()
        assert task is not None
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

    async def _call_on_thread(self, call: Callable[[], object]) -> object:
        loop = asyncio.get_running_loop()
        result, error = await loop.run_in_executor(self._executor(), _caught, call)
        if error is not None:
            raise error
        return result

    def _was_cancelled(self) -> bool:
        """Whether a CancelledError comes from outside: from the worker, or from an event loop that is closing."""
        task = asyncio.current_task()
        return self.interrupted or (task is not None and task.cancelling() > 0)

    # --- after

    async def _settle(self, decision: Finish | Again | None, result: object, job: Job[Any, Any] | None) -> None:
        if decision is None:
            await self._complete(result, job)
            return
        ended = self._records.after(decision, self._clock.now())
        try:
            await self._write_down(ended)
        except MessageTooLargeError as refused:
            if ended.dead_letter is None:
                raise
            # Another attempt would end in the same way, on every worker.
            _log.error("job %s of queue %r leaves no dead letter: %s", self.id, self._queue.name, refused)
            await self._write_down(ended.without_dead_letter())

    async def _complete(self, result: object, job: Job[Any, Any] | None) -> None:
        assert job is not None
        assert self.context is not None
        try:
            encoded = job.results.encode(result)
        except JobResultError as refused:
            await self._settle(self._after(refused, job.rules), None, job)
            return
        try:
            await self._write_down(self._records.completed(encoded, self.context.emitted(), self._clock.now()))
        except (ApiError, ConfigError) as error:
            # Its result, or what it emitted, was refused: the attempt has failed, and none of it took effect.
            await self._settle(self._after(error, job.rules, after_refusal), None, job)

    def _transaction(self, job: Job[Any, Any], timeout: Seconds) -> JobTransaction:
        return JobTransaction(self._queue.jet.backend, timeout, partial(self._ending, job))

    def _ending(self, job: Job[Any, Any], result: object) -> JobEnding:
        """Return what completes the job in its own transaction. Raises JobResultError."""
        assert self.context is not None
        self.context.check()
        encoded = job.results.encode(result)
        ended = self._records.completed(encoded, self.context.emitted(), self._clock.now())
        return JobEnding(ended, self._lost_lease, self._note_end)

    def _lost_lease(self, refused: PeltonError) -> PeltonError:
        return LeaseLostError(self.id, self._records.envelope.key, str(refused))

    def _note_end(self, ended: bool) -> None:
        self._has_ended = ended

    async def _write_down(self, ended: Ended) -> None:
        try:
            await self._patiently("settled", lambda: self._job_source.settle(ended))
        except AckRejectedError as error:
            _log.warning("job %s of queue %r: %s", self.id, self._queue.name, error)

    async def _patiently(self, what: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Retry while the store is temporarily unavailable, for as long as the lease is kept; then return None."""
        while not self.lost:
            try:
                return await ask()
            except FINAL_ERRORS:
                raise
            except PeltonError as error:
                if not (isinstance(error, StoreError) or can_pass(error)):
                    raise
                _log.warning("job %s of queue %r can't be %s yet: %s", self.id, self._queue.name, what, error)
                await self._clock.sleep(_ASK_AGAIN_S)
        return None


def _caught(call: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Call, and return the error instead of raising it: a future cannot carry StopIteration."""
    try:
        return call(), None
    except BaseException as error:  # whatever a job raises is its outcome
        return None, error
