"""One attempt of a job: decode, run, decide, settle.

The settlement publishes what the attempt has to say (its outcome, a dead letter, messages the job emitted) in
the same transaction as the ack of its message, so an attempt has all of its effects or none. A settlement
that is refused means that the lease was lost: another worker has, or had, the job, and everything this
attempt wanted to publish is dropped.

The worker may *interrupt* an attempt: its lease is lost, or the worker stops and the grace is over. An async
job then sees CancelledError, and the attempt is not settled. A CancelledError that nobody asked for is the
job's own, and an error as any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from pelton.api import (
    AckOp,
    AckRejectedError,
    ApiError,
    Delivered,
    JobArgumentsError,
    LeaseLostError,
    MessageTooLargeError,
    Outgoing,
    PeltonError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreForkedError,
    UnknownJobError,
)
from pelton.api.times import Seconds
from pelton.queue.context import JobContext
from pelton.queue.decide import Again, Finish, after_deaths, after_error, describe
from pelton.queue.job import Job, JobRules
from pelton.queue.leases import Lease
from pelton.queue.model import Attempt, DeadLetter, Ending, Envelope, Outcome
from pelton.queue.transaction import JobEnding, JobTransaction

if TYPE_CHECKING:
    from pelton.queue.queue import Queue
    from pelton.queue.supply import Supply

T = TypeVar("T")

_log: Final = logging.getLogger("pelton")
_ASK_AGAIN_S: Final = 0.5
_FOR_GOOD: Final = (StoreFailedError, StoreClosedError, StoreForkedError)
_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_encode: Final = msgspec.json.Encoder().encode
_NOTHING: Final = msgspec.Raw(b"null")


class JobAttempt:
    """A delivered job on its way through a worker."""

    def __init__(
        self, queue: Queue, supply: Supply, worker: str, delivered: Delivered, executor: Callable[[], Executor]
    ) -> None:
        self._queue = queue
        self._supply = supply
        self._names = queue.names
        self._clock = queue.jet.runtime.clock
        self._worker = worker
        self._executor = executor
        self.delivered = delivered
        self.id = str(delivered.seq)
        self.lease: Lease | None = None
        self.context: JobContext | None = None
        self.interrupted = False
        self._cancel: Callable[[], object] | None = None
        self._envelope = Envelope(job="", args=_NOTHING)
        self._known: Attempt | None = None
        self._has_looked_up = False
        self._attempt = delivered.num_delivered
        # Whether the job has completed itself, in a transaction of its own.
        self._has_ended = False
        self._started = 0

    @property
    def lost(self) -> bool:
        """Whether another worker may have the job."""
        return self.lease is not None and self.lease.is_over(self._clock.monotonic(), self._queue.lease)

    def interrupt(self) -> None:
        """Do not start the job, or cancel it where that can be done: a job on a thread goes on."""
        self.interrupted = True
        if self._cancel is not None:
            self._cancel()

    async def run(self) -> None:
        """Run the job to its settlement. Raises CancelledError, unsettled, if interrupted before its end."""
        self._started = self._clock.now()
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
        """Give the job back, to be started by another worker at once; this attempt is not counted."""
        if self._has_ended:
            return
        await self._look_up()
        known = self._known or Attempt(id=self.id, attempt=0)
        record = msgspec.structs.replace(known, returned=known.returned + 1, retry_at=0)
        await self._publish_and_ack([self._attempt_record(record)], self._ack("nak"))

    # --- before

    async def _prepare(self) -> tuple[Job[Any, Any] | None, Finish | Again | None]:
        """Decode the job and see whether it may run at all."""
        try:
            self._envelope = _decode_envelope(self.delivered.data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return None, Finish("failed", f"the message is no job: {error}")
        await self._look_up()
        if self._known is not None:
            self._attempt -= self._known.returned
        job = self._queue.jobs_by_name.get(self._envelope.job)
        rules = job.rules if job is not None else JobRules()
        ended = after_deaths(self._attempt, rules.max_attempts)
        if ended is not None:
            self._attempt -= 1  # this one never begins
        if ended is None and job is None:
            unknown = UnknownJobError(self._envelope.job, sorted(self._queue.jobs_by_name))
            return None, self._after(unknown, rules)
        return job, ended

    async def _look_up(self) -> None:
        """Learn what earlier attempts left, once."""
        if not self._has_looked_up:
            self._known = await self._patiently("looked up", lambda: self._supply.known(self.delivered))
            self._has_looked_up = True

    def _after(self, error: BaseException, rules: JobRules) -> Finish | Again:
        return after_error(error, self._attempt, rules, self._queue.jet.runtime.random)

    # --- the job itself

    async def _call(self, job: Job[Any, Any]) -> object:
        last_error = self._known.error if self._known is not None else ""
        context = JobContext(self._queue.name, self._worker, self.delivered, self._envelope, self._attempt, last_error)
        self.context = context
        arguments = job.decode_arguments(self._envelope.args)
        if job.context_parameter:
            arguments[job.context_parameter] = context
        if self.interrupted or self.lost:
            self.interrupted = True
            raise asyncio.CancelledError
        if job.is_async:
            context.open_transaction = self._transaction
        else:
            return await self._call_on_thread(partial(job.function, **arguments))
        task = asyncio.current_task()
        assert task is not None
        self._cancel = task.cancel
        try:
            if job.rules.timeout is None:
                return await job.function(**arguments)
            async with asyncio.timeout(job.rules.timeout):
                return await job.function(**arguments)
        finally:
            self._cancel = None

    async def _call_on_thread(self, call: Callable[[], object]) -> object:
        loop = asyncio.get_running_loop()
        result, error = await loop.run_in_executor(self._executor(), _caught, call)
        if error is not None:
            raise error
        return result

    def _was_cancelled(self) -> bool:
        """Whether a CancelledError comes from outside: the worker, or an event loop that ends."""
        task = asyncio.current_task()
        return self.interrupted or (task is not None and task.cancelling() > 0)

    # --- after

    async def _settle(self, decision: Finish | Again | None, result: object, job: Job[Any, Any] | None) -> None:
        if isinstance(decision, Again):
            await self._give_back(decision)
        elif decision is not None:
            await self._end(decision.state, decision.error)  # type: ignore[arg-type]  # a Finish names an Ending
        else:
            await self._complete(result, job)

    async def _complete(self, result: object, job: Job[Any, Any] | None) -> None:
        assert job is not None
        assert self.context is not None
        try:
            encoded = msgspec.Raw(_encode(result)) if result is not None else _NOTHING
        except Exception as error:  # a result's own code may run, and raise anything
            refused = JobArgumentsError(job.name, f"its result can't be stored as JSON: {error}")
            await self._end("failed", describe(refused))
            return
        outcome = self._outcome("completed", "", encoded)
        publishes = [*self.context.emitted(), self._ending_record(outcome)]
        try:
            await self._publish_and_ack(publishes, self._ack("ack"))
        except ApiError as error:
            # What the job emitted was refused: the attempt has failed, and nothing of it took effect.
            await self._settle(self._after(error, job.rules), None, job)

    def _transaction(self, timeout: Seconds) -> JobTransaction:
        return JobTransaction(self._queue.jet.backend, timeout, self._ending)

    def _ending(self, result: object) -> JobEnding:
        """Return what completes the job in its own transaction. Raises JobArgumentsError."""
        assert self.context is not None
        self.context.check()
        try:
            encoded = msgspec.Raw(_encode(result)) if result is not None else _NOTHING
        except Exception as error:  # a result's own code may run, and raise anything
            raise JobArgumentsError(self._envelope.job, f"its result can't be stored as JSON: {error}") from error
        records = [*self.context.emitted(), self._ending_record(self._outcome("completed", "", encoded))]
        d = self.delivered
        return JobEnding(records, d.stream, d.consumer, self._ack("ack"), self._lost_lease, self._note_end)

    def _lost_lease(self, refused: PeltonError) -> PeltonError:
        return LeaseLostError(self.id, self._envelope.key, str(refused))

    def _note_end(self, ended: bool) -> None:
        self._has_ended = ended

    async def _end(self, state: Ending, error: str) -> None:
        outcome = self._outcome(state, error, _NOTHING)
        ending, letters = self._ending_record(outcome), [self._letter(outcome)] if state == "failed" else []
        try:
            await self._publish_and_ack([*letters, ending], self._ack("ack"))
        except MessageTooLargeError as refused:
            if not letters:
                raise
            # Trying again would end in the same way, with every worker.
            _log.error("job %s of queue %r leaves no dead letter: %s", self.id, self._queue.name, refused)
            await self._publish_and_ack([ending], self._ack("ack"))

    def _letter(self, outcome: Outcome) -> Outgoing:
        unread = self.delivered if not self._envelope.job else None
        letter = DeadLetter(
            outcome=outcome,
            envelope=self._envelope,
            subject=unread.subject if unread else "",
            data=unread.data if unread else b"",
        )
        return self._names.dead_subject(self.id), _encode(letter), None

    async def _give_back(self, again: Again) -> None:
        delay = int(again.delay * 1e9)
        returned = self._known.returned if self._known is not None else 0
        record = Attempt(
            id=self.id,
            attempt=self._attempt,
            error=again.error,
            returned=returned,
            retry_at=self._clock.now() + delay,
        )
        await self._publish_and_ack([self._attempt_record(record)], self._ack("nak", delay))

    def _outcome(self, state: Ending, error: str, result: msgspec.Raw) -> Outcome:
        return Outcome(
            id=self.id,
            job=self._envelope.job,
            state=state,
            key=self._envelope.key,
            attempt=self._attempt,
            worker=self._worker,
            enqueued_at=self.delivered.time_ns,
            started_at=self._started,
            finished_at=self._clock.now(),
            result=result,
            error=error,
        )

    def _ending_record(self, outcome: Outcome) -> Outgoing:
        return self._names.ending_subject(outcome.state, self.id), _encode(outcome), None

    def _attempt_record(self, record: Attempt) -> Outgoing:
        return self._names.attempt_subject(self.id), _encode(record), None

    def _ack(self, kind: Any, delay_ns: int = 0) -> AckOp:
        d = self.delivered
        return AckOp(
            kind=kind, seq=d.seq, consumer_seq=d.consumer_seq, delay_ns=delay_ns, num_delivered=d.num_delivered
        )

    async def _publish_and_ack(self, publishes: list[Outgoing], ack: AckOp) -> None:
        try:
            await self._patiently("settled", lambda: self._supply.settle(self.delivered, publishes, ack))
        except AckRejectedError as error:
            _log.warning("job %s of queue %r: %s", self.id, self._queue.name, error)

    async def _patiently(self, what: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask a store that can't at the moment again, for as long as the lease is kept; then None."""
        while not self.lost:
            try:
                return await ask()
            except _FOR_GOOD:
                raise
            except StoreError as error:
                _log.warning("job %s of queue %r can't be %s yet: %s", self.id, self._queue.name, what, error)
                await self._clock.sleep(_ASK_AGAIN_S)
        return None


def _caught(call: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Call, and return the error instead of raising it: a future would choke on StopIteration."""
    try:
        return call(), None
    except BaseException as error:  # whatever a job raises is its outcome
        return None, error
