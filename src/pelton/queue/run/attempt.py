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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from pelton.api import (
    Continue,
    JobArgumentsError,
    JobCancelledError,
    JobResultError,
    JobTimeoutError,
    LeaseLostError,
    PeltonError,
    headers,
)
from pelton.api.job_errors import describe
from pelton.api.times import Seconds
from pelton.queue.enqueuer import announce_taken, has_listeners
from pelton.queue.job import AsyncJob, Job, blocking
from pelton.queue.model.records import AfterAttempt, Ended, PutOff
from pelton.queue.model.states import NOTHING, JobProgress
from pelton.queue.registry import BatchJob
from pelton.queue.run.blocking import BlockingContext, ChildRequests, VerbRunner
from pelton.queue.run.children import ChildTimeout, child_call
from pelton.queue.run.context import JobContext
from pelton.queue.run.leased_jobs import LeasedJob, LeasedJobs, log_job
from pelton.queue.run.slots import Copies
from pelton.queue.run.steps import JobSteps
from pelton.queue.run.undo import JobUndone, undo_again
from pelton.queue.transaction import JobEnding, JobTransaction
from pelton.runtime import is_interrupt

if TYPE_CHECKING:
    from pelton.api import Outgoing
    from pelton.api.tracing import Tracing
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.children import JobChildren
    from pelton.queue.run.slots import JobBatches, JobThreads
    from pelton.runtime import Clock

T = TypeVar("T")

_log: Final = logging.getLogger("pelton.queue")
_UNTRACED: Final = nullcontext()
_encode: Final = msgspec.json.Encoder().encode
_BETWEEN_S: Final = 0.5
_LONGEST_NOTE: Final = 1024
# Should nobody remove it: the worker of its job died, and the job was cancelled.
_TTL: Final = headers.encode({headers.TTL: "168h"})


class ProgressNotes:
    """The progress of one attempt. If updates come faster than they can be stored, only the latest is stored."""

    is_used: bool

    __slots__ = ("_is_closed", "_latest", "_loop", "_queue", "_subject", "_task", "is_used")

    def __init__(self, queue: QueueContext, job_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._subject = queue.names.progress_subject(job_id)
        self._loop = loop
        self._latest: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_used = False

    def tell(self, fraction: float, note: str) -> None:
        """Store progress soon; from any thread."""
        self._latest = _encode(JobProgress(fraction, note[:_LONGEST_NOTE], self._queue.clock.now()))
        if not self.is_used or self._task is None:
            self.is_used = True
            with suppress(RuntimeError):
                # The loop is closed: nobody waits for this job either.
                self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Store nothing more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None and self._latest is not None and not self._is_closed:
            self._task = self._queue.runtime.spawn(self._store(), f"pelton {self._queue.name} progress")

    async def _store(self) -> None:
        while self._latest is not None:
            data, self._latest = self._latest, None
            try:
                await self._queue.backend.publish(self._subject, data, _TTL)
            except PeltonError as error:
                name = self._queue.name
                _log.debug("progress of queue %r is not stored: %s", name, error, extra={"queue": name})
            await self._queue.clock.sleep(_BETWEEN_S)
        self._task = None
        # A thread may have told something after the look, and have seen the task.
        self._begin()


class AttemptEnv(NamedTuple):
    """What the attempts of one worker share.

    ``tell_lost``, for any thread, passes on why one lost its lease; ``begins`` is called with each that no limit holds,
    if they are counted; ``is_cancelled`` returns whether the worker was. ``longest_nap`` in seconds, for the steps.
    """

    queue: QueueContext
    clock: Clock
    held: LeasedJobs[JobAttempt]
    threads: JobThreads[JobAttempt]
    children: JobChildren
    batches: JobBatches
    tell_lost: Callable[[JobAttempt, str], None]
    begins: Callable[[JobAttempt], None] | None
    is_cancelled: Callable[[], bool]
    copies: Copies
    longest_nap: float

    def jet_for(self, *, is_async: bool, loop: asyncio.AbstractEventLoop) -> Any:
        """Return the open store as a job gets it: its blocking face on a thread."""
        return self.queue.jet if is_async else blocking(self.queue.jet, loop)


class JobAttempt(LeasedJob, eq=False, kw_only=True):
    """A delivered job on its way through a worker.

    ``context``: of a job that asks for one. ``cancelled``: why it was, while it was held here. ``asleep``: until when
    it sleeps, and the record of that. ``on_thread``: its function runs on a thread, and how that ends goes to
    :meth:`conclude`. ``is_parked``: it waits for a limit, and has no slot of the worker. ``began`` in seconds since
    boot.
    """

    env: AttemptEnv
    context: JobContext | None = None
    # Of a plain function that asks for its context.
    verbs: VerbRunner | None = None
    interrupted: bool = False
    cancelled: JobCancelledError | None = None
    asleep: tuple[PutOff, Sequence[Outgoing]] | None = None
    on_thread: bool = False
    is_parked: bool = False
    began: float = 0.0
    # What follows after it has undone what it did.
    undone: AfterAttempt | None = None
    # What is cancelled to end it, while that is possible.
    _task: asyncio.Task[None] | None = None
    # Whether its function has returned what can be stored.
    _is_completed: bool = False
    # Whether the job completed itself, in its own transaction.
    _has_ended: bool = False
    # Whether the attempt ends its job, once it is settled.
    _is_over: bool = False

    def lose(self, reason: str) -> None:
        """Note, on any thread, that the lease is lost, and tell the worker, once."""
        # One that was released meanwhile is settled.
        if not self.lost and self.lease is not None:
            self.lost = True
            if (context := self.context) is not None:
                # At once: the job may keep the event loop from telling it.
                context.lose(reason)
            self.env.tell_lost(self, reason)

    def interrupt(self) -> None:
        """Do not start the job, or cancel it if possible: a job on a thread keeps running."""
        self.interrupted = True
        self._end_waits()
        if self._task is not None:
            self._task.cancel()

    def cancel(self, cancelled: JobCancelledError) -> None:
        """Do not start the job, or end it: an async one is cancelled, one on a thread is told."""
        if self.records.undoing is not None:
            return
        self.cancelled = cancelled
        if self.context is not None:
            self.context.cancel(cancelled)
        self._end_waits()
        if self._task is not None:
            self._task.cancel()

    def fall_asleep(self, why: PutOff, kept: Sequence[Outgoing]) -> None:
        """End the attempt, and give the job back until it wakes."""
        self.asleep = why, kept
        # A child is used again.
        if not self._end_waits() and self._task is not None:
            self._task.cancel()

    def _end_waits(self) -> bool:
        """End the verbs of a plain function, and begin no more; return whether it is one."""
        if self.verbs is not None:
            self.verbs.close()
        return self.verbs is not None

    @property
    def leaves_traces(self) -> bool:
        """Whether the job has ended, and has left steps or progress."""
        if self.lost or not (self._has_ended or self._is_over):
            return False
        # Who cancels a job sends it a signal.
        has_left = self.context is not None and (self.context.has_left or self.records.delivered.num_delivered > 1)
        return has_left or self.cancelled is not None

    @property
    def may_have_called(self) -> bool:
        """Whether the job may have called others, in this attempt or before."""
        context = self.context
        return context is not None and (context.has_called or self.records.delivered.num_delivered > 1)

    async def run(self, task: asyncio.Task[None]) -> Ended | None:
        """Run the job on ``task``, or start it on a thread, and return how it ended.

        None if nothing is left to be settled, or ``on_thread``. Raises CancelledError if interrupted before its end.
        """
        env, held = self.env, self.env.held
        if self.lost or (held.by_clock and held.is_late(self)):
            self.report_not_begun()
            return None
        if (refusal := await held.judge(self)) is not None:
            return self._end_with(refusal, None)
        if self.records.undoing is not None:
            self.cancelled = None
        if held.admission.is_on:
            ended = await self._admit(task)
            if ended is not None or self.is_parked:
                return ended
        if env.begins is not None:
            env.begins(self)
        self._task = task
        try:
            result = await self._call()
        except BaseException as error:  # whatever a job raises is its outcome
            if env.copies.is_one:
                env.copies.end(error)
            if self.context is not None:
                await self.context.steps.look_for_undo()
            return self._conclude_error(error)
        finally:
            self._task = None
        if env.copies.is_one:
            env.copies.end(None)
        return None if self.on_thread else self.conclude(result, None)

    def _conclude_error(self, error: BaseException) -> Ended | None:
        if isinstance(error, asyncio.CancelledError):
            if self.cancelled is not None and not self.interrupted:
                return self.conclude(None, self.cancelled)
            if self.asleep is not None:
                return self._gone_to_sleep(*self.asleep)
            if self.interrupted or self.env.is_cancelled():
                # It comes from outside: the worker, or an event loop that ends. Otherwise the job has cancelled itself.
                raise error
        return self.conclude(None, error)

    async def _admit(self, task: asyncio.Task[None]) -> Ended | None:
        """Take the slots of the queue's limits; a job that is held back is parked, or put off."""
        self._task = task
        try:
            held_back = await self.env.held.admission.enter(self)
        except asyncio.CancelledError:
            if self.cancelled is None or self.interrupted:
                raise
            # Nobody has looked: if there is nothing, the next delivery ends it.
            self.records.has_undo = self.records.delivered.num_delivered > 1
            return self.conclude(None, self.cancelled)
        finally:
            self._task = None
        if held_back is None:
            return None
        if has_listeners(self.env.queue):
            await announce_taken(self.env.queue, "held", self.records, self.env.held.worker, held_back.limit.name)
        put_off = self.env.held.parking.hold_back(self, held_back)
        self.is_parked = put_off is None
        return None if put_off is None else self._end_with(put_off, None)

    def conclude(self, result: object, error: BaseException | None) -> Ended | None:
        """Return how a job ended whose function has returned or raised; None as for :meth:`run`."""
        if self._end_waits():
            # What it does after it has caught what ends it makes no difference.
            if self.asleep is not None and self.cancelled is None:
                return self._gone_to_sleep(*self.asleep)
            if self.asleep is not None or (isinstance(error, asyncio.CancelledError) and not self.interrupted):
                error = self.cancelled or error
        if error is None:
            return self._end_with(self.undone, result)
        if not self.on_thread and (isinstance(error, GeneratorExit) or is_interrupt(error)):
            raise error
        if isinstance(error, asyncio.CancelledError) and self.interrupted:
            # It was to be started on a thread, and was interrupted before.
            return self.env.held.handed_back(self)
        if self._has_ended:
            log_job(self.records, "raised after it was completed: %s", describe(error))
            return None
        if isinstance(error, Continue) and self.context is not None and self.records.undoing is None:
            assert self.definition is not None, "its function has run"
            try:
                args = self.definition.bind(*error.call_args, **error.call_kwargs).args
            except JobArgumentsError as wrong:
                error = wrong
            else:
                log_job(self.records, "begins anew", level=logging.INFO)
                return None if self.env.held.is_late(self) else self.records.begin_anew(args, self.env.clock.now())
        is_of_child = self.definition is not None and self.definition.in_process and isinstance(error, Exception)
        if is_of_child and not (self.records.has_begun or isinstance(error, JobCancelledError)):
            # A child that does not start, or cannot import the function, costs an attempt: it may never.
            self.records.begin(self.env.clock.now())
        decision = self.env.held.after(self, error) if self.records.undoing is None else undo_again(self.records, error)
        return self._end_with(decision, None)

    def report_not_begun(self) -> None:
        """Log that the lease was over before the job began."""
        log_job(self.records, "was not begun: its lease was over; it is redelivered")

    def _end_with(self, decision: AfterAttempt | None, result: object) -> Ended | None:
        if self._has_ended:
            return None
        if self.lost or (self.env.held.by_clock and self.env.held.is_late(self)):
            log_job(self.records, "lost its lease; its result is dropped")
            return None
        now = self.env.clock.now()
        if decision is None:
            emitted = self.context.emitted_messages() if self.context is not None else ()
            try:
                ended = self.records.after_result(
                    NOTHING if result is None else self._encode_result(result), emitted, now
                )
                self._is_completed = self._is_over = True
                return ended
            except JobResultError as refused:
                decision = self.env.held.after(self, refused)
        ended = self.records.after(decision, now)
        self._is_over = ended.is_over
        return ended

    def _encode_result(self, result: object) -> msgspec.Raw:
        assert self.definition is not None
        if self.definition.in_process and isinstance(result, msgspec.Raw):
            # The child has encoded it.
            return result
        return self.definition.results.encode(result)

    def _gone_to_sleep(self, why: PutOff, kept: Sequence[Outgoing]) -> Ended | None:
        if self._has_ended or self.env.held.is_late(self):
            return None
        assert self.definition is not None
        why = msgspec.structs.replace(why, version=self.definition.hooks.version)
        return self.records.put_off(why, self.env.clock.now(), kept)

    # --- the job itself

    def _call(self) -> Awaitable[object]:
        """Call the function of a job, and return what it does; on a thread, only begin to."""
        env, job = self.env, self.definition
        assert job is not None, "a job that is unknown here does not run"
        arguments = job.arguments.decode(self.records.envelope.args)
        backend = env.queue.jet.backend
        is_plain = type(job) is AsyncJob and not (job.context_parameter or job.rules.timeout or job.hooks.has_run)
        lease = self.lease
        if (
            not is_plain
            or backend.tracing is not None
            or env.held.source.beginnings.is_written
            or backend.might_reach(env.queue.names.events)
            or self.interrupted
            or self.cancelled is not None
            or self.lost
            or lease is None
            or lease.is_doubtful(env.clock.boottime())
        ):
            return self._call_with_all(job, arguments, backend.tracing)
        # That was the look at its lease: nothing comes between.
        env.held.begin(self)
        found: Awaitable[object] = job.function(**arguments)
        return found

    async def _call_with_all(self, job: Job[Any, Any], arguments: dict[str, Any], tracing: Tracing | None) -> object:
        """Call a function with what is around it, and with its context, wherever it runs."""
        env = self.env
        function: Callable[..., Any] = job.function
        if is_batch := isinstance(job, BatchJob):
            function = partial(env.batches.run, job, self)
        if job.context_parameter or job.hooks.has_run or tracing is not None:
            self.context = self._context(job, tracing)
            if job.context_parameter:
                arguments[job.context_parameter] = self.context
        if job.in_process:
            function = partial(self._call_child, job)
        begins_here = not (is_batch or job.in_process)
        if not begins_here:
            self._check()
        elif (
            env.held.source.beginnings.is_written
            or has_listeners(env.queue)
            # What comes after that is seen as it begins, and it is given back.
            or env.held.is_doubtful(self)
        ):
            await self.prepare()
        if job.hooks.has_run:
            function = job.hooks.around(function, self.context, is_async=job.is_async or job.in_process)
        span: AbstractContextManager[None] = (
            _UNTRACED if tracing is None or self.context is None else tracing.running(self.context)
        )
        if not (job.is_async or job.in_process):
            if self.records.undoing is not None and self.context is not None:
                function = partial(self._undo_on_thread, job, function)
            self.on_thread = True
            env.threads.run(self, partial(self._call_on_thread, function, arguments, span))
            return None
        try:
            with span:
                if begins_here:
                    self.begin()
                return await self._call_in_time(job, function, arguments)
        finally:
            self._task = None
            if self.context is not None:
                await self.context.end()

    def _context(self, job: Job[Any, Any], tracing: Tracing | None) -> JobContext:
        env, records, loop = self.env, self.records, asyncio.get_running_loop()
        kind: Callable[..., JobContext] = JobContext
        if not job.is_async:
            self.verbs = VerbRunner(loop)
            kind = partial(BlockingContext, verbs=self.verbs)
        return kind(
            records,
            partial(self._transaction, job) if job.is_async else None,
            partial(JobSteps, env.queue, env.held, self, env.longest_nap, self.fall_asleep),
            partial(ProgressNotes, env.queue, records.id, loop),
            tracing,
            partial(env.jet_for, is_async=job.is_async, loop=loop),
            partial(job.hooks.state, env.queue.jet),
        )

    async def _call_in_time(
        self, job: Job[Any, Any], function: Callable[..., Any], arguments: dict[str, Any]
    ) -> object:
        if self.records.undoing is not None and self.context is not None:
            self.undone = await self._undo(job, function, arguments)
            return None
        limit = None if job.in_process else job.rules.timeout
        if limit is None:
            return await function(**arguments)
        try:
            # Not ``within``: this one reports whether it cancelled the job, and where the job was.
            async with asyncio.timeout(limit) as timer:
                return await function(**arguments)
        except TimeoutError as error:
            if not timer.expired():
                # One of the job's own.
                raise
            # The cause is where the job was.
            raise JobTimeoutError(self.records.id, job.name, limit) from error.__cause__ or error

    def _call_on_thread(
        self, function: Callable[..., object], arguments: dict[str, Any], span: AbstractContextManager[None]
    ) -> object:
        with span:
            self.begin()
            try:
                return function(**arguments)
            except BaseException:
                if (context := self.context) is not None and self.verbs is not None:
                    self.verbs.run(lambda: context.steps.look_for_undo(), is_last=True)
                raise

    def _undo_on_thread(self, job: Job[Any, Any], function: Callable[..., object], **arguments: Any) -> None:
        """Start a function on its thread, and undo there what it has registered."""
        assert self.verbs is not None
        self.undone = self.verbs.run(lambda: self._undo(job, function, arguments))

    async def _undo(self, job: Job[Any, Any], function: Callable[..., Any], arguments: dict[str, Any]) -> AfterAttempt:
        assert self.records.undoing is not None
        assert self.context is not None, "it has a memory"
        steps = self.context.steps
        if self.on_thread:
            function = partial(steps.on_thread, function, (), arguments)
            arguments = {}
        return await steps.undo.run(self.records.undoing, job.rules, partial(function, **arguments))

    async def _call_child(self, job: Job[Any, Any], **_arguments: Any) -> object:
        """Call a function in a child process, which decodes its arguments; return its result, still encoded.

        The context hears what the child emits, and how far it is. Raises what the job raises, JobCrashedError,
        JobTimeoutError.
        """
        env, records, limit = self.env, self.records, job.rules.timeout
        loop = asyncio.get_running_loop()

        def begin() -> float:
            asyncio.run_coroutine_threadsafe(self.prepare(), loop).result()
            self.begin()
            return env.held.seconds_left(self)

        def tell(told: JobProgress) -> None:
            # On a thread: the context is gone when the attempt has ended.
            if (context := self.context) is not None:
                context.progress(told.fraction, told.note)

        call = child_call(job, records)
        asked = None
        if isinstance(self.context, BlockingContext):

            async def undo(registered: bytes) -> None:
                left = partial(env.held.seconds_left, self)
                await env.children.run(msgspec.structs.replace(call, undo=registered), tell, left, None)

            asked = ChildRequests(self.context, undo).answer
        try:
            reply = await env.children.run(call, tell, begin, limit, asked)
        except ChildTimeout:
            assert limit is not None, "or there is none"
            raise JobTimeoutError(records.id, job.name, limit) from None
        if self.context is not None:
            self.context.add_emitted(reply.emitted)
        return reply.result

    async def prepare(self) -> None:
        """Do what takes time before the job begins: make sure that it is held, and tell that it begins."""
        env = self.env
        if has_listeners(env.queue):
            await announce_taken(env.queue, "started", self.records, env.held.worker)
        await env.held.make_sure([self])

    def begin(self) -> None:
        """Note that the function is called now, on any thread, as the last thing before.

        Raises CancelledError for a job that must not start any more, JobCancelledError.
        """
        self._check()
        self.env.held.begin(self)

    def _check(self) -> None:
        """Raise CancelledError for a job that must not start any more, or JobCancelledError."""
        if not self.interrupted and self.env.held.is_doubtful(self):
            self.interrupted = True
            self.report_not_begun()
        if self.interrupted or self.cancelled is not None:
            if self.records.has_begun:
                # A child was told to begin, and was late.
                self.records.has_begun = False
                self.env.held.source.beginnings.forget(self.records.delivered, has_begun=False)
            raise asyncio.CancelledError if self.interrupted or self.cancelled is None else self.cancelled

    # --- after

    def take_back(self, refused: PeltonError) -> bool:
        """Note that a message was refused; return whether it was one of the completion."""
        was_completed, self._is_completed = self._is_completed, False
        return was_completed

    def _transaction(self, job: Job[Any, Any], context: JobContext, timeout: Seconds) -> JobTransaction:
        if self.records.undoing is not None:
            raise JobUndone
        return JobTransaction(self.env.queue.backend, timeout, partial(self._ending, job, context))

    def _ending(self, job: Job[Any, Any], context: JobContext, result: object) -> JobEnding:
        """Return what completes the job in its own transaction. Raises JobResultError."""
        context.check()
        encoded = job.results.encode(result)
        ended = self.records.after_result(encoded, context.emitted_messages(), self.env.clock.now())
        return JobEnding(ended, self._lost_lease, self._note_end)

    def _lost_lease(self, refused: PeltonError) -> PeltonError:
        return LeaseLostError(self.records.id, self.records.envelope.key, str(refused))

    def _note_end(self, ended: bool) -> None:
        self._has_ended = ended
        self.is_settled = ended
