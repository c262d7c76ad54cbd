"""Taking jobs, holding their leases, and settling them in batches: the core of the worker and of the claims.

Jobs that are taken together share a lease, which a thread renews until the last of them is released. Attempts that have
ended are settled together, on an embedded store in one transaction, yet independently: one that was lost, or whose
messages are refused, does not affect the others. While the store is busy or away, what is left is tried again for as
long as its leases are kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from pelton.api import (
    AckRejectedError,
    ApiError,
    ConfigError,
    Discard,
    JobArgumentsError,
    MessageTooLargeError,
    PeltonError,
    RetryJob,
    UnknownJobError,
    WrongLastSequenceError,
)
from pelton.api.job_errors import frames_of_job, is_raised, trace
from pelton.jet import ack_of
from pelton.jet.registers import ASK_AGAIN_S, can_pass, is_busy, until_answered
from pelton.queue.job import Job
from pelton.queue.model.limits import Order, Orders
from pelton.queue.model.options import JobRules
from pelton.queue.model.records import (
    SKIPPED,
    AfterAttempt,
    Again,
    AttemptRecords,
    Decide,
    Ended,
    PutOff,
    after_deaths,
    after_error,
    after_refusal,
    job_id_of,
)
from pelton.queue.model.states import Finish
from pelton.queue.run.admission import Admission
from pelton.queue.run.leases import AnyLease, LeaseKeeper, SharedLease, SlotExtender
from pelton.queue.run.parking import LatePutOffs, Parking, other_version
from pelton.queue.run.undo import is_to_undo, learn_round
from pelton.queue.scan import has_overlap
from pelton.runtime import steady_now

if TYPE_CHECKING:
    from pelton.api import PullRequest
    from pelton.queue.job_source import JobSource
    from pelton.queue.model.states import Timetable
    from pelton.queue.registry import QueueContext

_log: Final = logging.getLogger("pelton.queue")


def report(records: AttemptRecords, decision: AfterAttempt, error: BaseException | None = None) -> None:
    """Log an attempt with the traceback of its error, if the job raised it; ``error`` None: it never started."""
    level, then = _consequence(decision, error)
    shown = error if error is not None and level > logging.INFO and is_raised(error) else None
    written = "" if shown is None or _can_be_written(shown) else f"\n{trace(shown)}"
    if written:
        # A handler that writes UTF-8 would fail on the exception itself, and log nothing.
        shown = None
    _log.log(
        level,
        "job %s (%r) of queue %r, attempt %d: %s: %s%s",
        records.id,
        records.envelope.job,
        records.queue,
        records.attempt,
        then,
        decision.reason if isinstance(decision, PutOff) else decision.error,
        written,
        exc_info=None if shown is None else (type(shown), shown, frames_of_job(shown)),
        extra={**_log_fields(records), "traceback": "" if error is None else trace(error)},
    )


def log_job(records: AttemptRecords, text: str, *args: object, level: int = logging.WARNING) -> None:
    """Log what has happened to a job; ``text`` follows its id and the name of its queue."""
    _log.log(level, f"job %s of queue %r {text}", records.id, records.queue, *args, extra=_log_fields(records))


def _log_fields(records: AttemptRecords) -> dict[str, object]:
    """Return what a handler that stores fields, and not text, wants to have."""
    envelope = records.envelope
    # As W3C's Trace Context writes it: version, trace, span, flags.
    parent = envelope.meta.get("traceparent", "").split("-")
    of_trace = {"trace_id": parent[1]} if len(parent) > 1 else {}
    return {
        "queue": records.queue,
        "job": envelope.job,
        "id": records.id,
        "key": envelope.key,
        "attempt": records.attempt,
        **of_trace,
    }


def _can_be_written(error: BaseException) -> bool:
    """Whether an error's traceback has a UTF-8 form: names of files may hold lone surrogates."""
    lines = format_exception(error)
    try:
        "".join(lines).encode()
    except UnicodeEncodeError:
        return False
    return True


def _consequence(decision: AfterAttempt, error: BaseException | None) -> tuple[int, str]:
    if isinstance(decision, PutOff):
        return logging.INFO, "is given back" if decision.delay is None else f"starts again in {decision.delay:.3g} s"
    if isinstance(decision, Again):
        # A job that asks for a retry has not gone wrong.
        level = logging.INFO if isinstance(error, RetryJob) else logging.WARNING
        return level, f"failed and is tried again in {decision.delay:.3g} s"
    if decision.state == "cancelled":
        return logging.WARNING if isinstance(error, Discard) else logging.INFO, "cancelled"
    if decision.state == "expired":
        return logging.WARNING, "expired"
    return logging.ERROR, "failed for good and is a dead letter"


_MOST_UNKNOWN: Final = 100
_OTHER: Final = "queue %r has jobs named %r of another version than this worker's (%s): they wait for one of theirs"
_asked, _delivered = attrgetter("asked"), attrgetter("delivered")


class LeasedJob(msgspec.Struct, eq=False):
    """A job that this process holds under a lease.

    ``lost``: another worker may have it. ``lease`` is shared with the jobs that were taken with it; None once it was
    released. ``definition``: its function and rules, if this program knows them. ``has_looked_up``: what earlier
    attempts left was read. ``is_settled``: how its attempt ended is stored.
    """

    records: AttemptRecords
    lease: AnyLease | None = None
    definition: Job[Any, Any] | None = None
    lost: bool = False
    has_looked_up: bool = False
    is_settled: bool = False

    def lose(self, reason: str) -> None:
        """Note, on any thread, that the lease is lost."""
        # One that was released meanwhile is settled.
        self.lost = self.lost or self.lease is not None

    def take_back(self, refused: PeltonError) -> bool:
        """Note that a message was refused; return whether it was one of a completion, which then has no effect."""
        raise NotImplementedError


J = TypeVar("J", bound=LeasedJob)


class EndedAttempt(msgspec.Struct, Generic[J], frozen=True, gc=False):
    """How the attempt of a job has ended."""

    job: J
    ended: Ended


class LeasedJobs(Generic[J]):
    """The jobs that one worker holds. ``make`` returns the job of a delivery's records.

    ``rules`` apply to every job, whatever its name; None: each registered job has its own, others are unknown.
    ``on_error`` is called with a job's id and what its attempt raised. ``parked`` jobs wait here for each limit, or all
    (``parks_all``). Call :meth:`start` first.
    """

    def __init__(
        self,
        queue: QueueContext,
        rules: JobRules | None = None,
        on_error: Callable[[str, BaseException], None] | None = None,
        parked: int = 0,
        parks_all: bool = False,
    ) -> None:
        self._queue = queue
        self._make: Callable[[AttemptRecords], J]
        self._rules = rules
        self._own_jobs = queue.jobs.own
        self._on_error = on_error
        self._clock = queue.clock
        self.worker: str = f"{os.getpid()}-{queue.runtime.ids.new()[-6:]}"
        self.source: JobSource = queue.source_for(self.worker)
        self.admission: Admission = Admission(queue, self.worker)
        self._put_offs = LatePutOffs(queue)
        self._extender = SlotExtender(
            self.source.extender, queue.backend, self.admission.register, self.admission.slots, self.worker, self._clock
        )
        self._keeper = LeaseKeeper(self._extender, self._clock, queue.lease, lambda: queue.backend.restarted_at)
        self.by_clock: bool = not queue.backend.planning.refuses_late_acks
        # What is cancelled or paused, as far as it is known here.
        self.orders: Orders = Orders()
        self.parking: Parking[J] = Parking(queue, self.admission, self.orders, parked, keeps_all=parks_all)
        # The names of jobs that a warning was given for, and which.
        self._unknown: set[tuple[str, str]] = set()
        # Each lists its jobs.
        self._leases: dict[AnyLease, None] = {}

    def start(self, make: Callable[[AttemptRecords], J]) -> None:
        """Start keeping leases; ``make`` returns the job of a delivery's records."""
        self._make = make
        self._keeper.start()

    def stop(self) -> None:
        """Stop keeping leases; those that are left run out."""
        self._keeper.stop()

    async def close(self) -> None:
        """Leave the limits, and take no more; leases are kept until :meth:`stop`."""
        await self._put_offs.close()
        await self.admission.close()
        await self.source.close()
        await self.source.beginnings.close()

    def heed(self, order: Order) -> list[J]:
        """Take note of an order; return the jobs held here that it cancels."""
        self.orders.heed(order)
        self._put_offs.heed(order)
        self.admission.heed(order)
        if order.weight is not None:
            self.source.weigh(order.weight.tenant, order.weight.weight)
        if not order.cancel or order.over:
            return []
        return [job for job in self.held_jobs() if job_id_of(job.records.delivered) == order.cancel]

    # --- taking and holding

    def room(self, wanted: int, waiting: int = 0) -> int:
        """Return how many of ``wanted`` jobs are worth taking beside those that wait, by pauses and limits."""
        if self.orders.is_all_paused:
            return 0
        room = self.parking.room() if self.admission.is_on else None
        return wanted if room is None else min(wanted, room - waiting)

    async def take(self, channel: str, request: PullRequest) -> list[J]:
        """Take jobs, and hold them from then on."""
        make, names, worker = self._make, self._queue.names, self.worker
        await self._queue.time.refresh(names.jobs)
        asked = self._clock.boottime()
        jobs: list[J] = []
        found = await self.source.take(channel, request)
        # Afterwards: the clock may have jumped while it waited.
        own, now = steady_now(self._clock), self._queue.time.steady()
        # Mostly all at once: only some sources tell of each from when on it is held, and may have several consumers.
        for since, group in groupby(found, _asked):
            together = [
                make(AttemptRecords(names, worker, one, now, own, str(one.seq), one.num_delivered))
                for one in map(_delivered, group)
            ]
            if since is None:
                self._hold(together, asked)
            else:
                self._hold_each(together, since)
            jobs += together
        return jobs

    def _hold_each(self, jobs: Sequence[J], since: float) -> None:
        """Hold jobs of any consumers: a lease is on jobs of one."""
        by_consumer: dict[str, list[J]] = {}
        for job in jobs:
            by_consumer.setdefault(job.records.delivered.consumer, []).append(job)
        for together in by_consumer.values():
            self._hold(together, since)

    def _hold(self, jobs: Sequence[J], since: float) -> None:
        lease: AnyLease = SharedLease(jobs, since, self._queue.lease, by_clock=self.by_clock)
        for job in jobs:
            job.lease = lease
        self._leases[lease] = None
        self._keeper.hold(lease)

    def held_jobs(self) -> list[J]:
        return [job for lease in self._leases for job in lease.holders]

    def is_held(self, job: LeasedJob) -> bool:
        """Whether a job is held here, lost or not."""
        return job.lease in self._leases

    def is_late(self, job: LeasedJob) -> bool:
        """Whether another worker may have the job, known or not."""
        lease = job.lease
        if job.lost or lease is None or not self.by_clock:
            return job.lost
        return lease.is_over(self._clock.boottime())

    def is_doubtful(self, job: LeasedJob) -> bool:
        """Whether another worker may have the job, by the time since boot: this process may have been paused."""
        lease = job.lease
        if job.lost or lease is None:
            return job.lost
        return lease.is_doubtful(self._clock.boottime())

    def seconds_left(self, job: LeasedJob) -> float:
        """Return for how many seconds the job is held if its lease is not extended."""
        return job.lease.clock.seconds_left(self._clock.boottime()) if job.lease is not None else 0.0

    async def is_sure(self, job: LeasedJob) -> bool:
        """Whether the job is held, now; the store is asked when that is in doubt."""
        while self.is_doubtful(job):
            if job.lost or not await self._confirm(job):
                return False
        return True

    async def _confirm(self, job: LeasedJob) -> bool:
        """Check a doubtful lease; return whether the job is still held."""
        lease, asked = job.lease, self._clock.boottime()
        assert lease is not None
        if lease.is_over(asked):
            lease.lose("it was not extended in time")
            return False
        held = lease.kept_by()
        d = lease.delivered
        try:
            acks = [ack_of(one.records.delivered, "progress") for one in held]
            answers = await self._extender.ack(d.stream, d.consumer, acks)
        except PeltonError as error:
            if not can_pass(error):
                raise
            job.lose(str(error))
            return False
        for one, refused in zip(held, answers, strict=True):
            if refused is None:
                lease.clock.confirm(asked)
            else:
                one.lose(str(refused))
        return not job.lost

    def release(self, jobs: Iterable[LeasedJob]) -> None:
        """Hold jobs no longer, settled or not."""
        released, beginnings = list(jobs), self.source.beginnings
        is_written = beginnings.is_written
        beginnings.end(
            [job.records.delivered for job in released if job.is_settled and (is_written or job.records.has_begun)]
        )
        for job in released:
            if not job.is_settled and (job.records.has_begun or is_written):
                beginnings.forget(job.records.delivered, has_begun=job.records.has_begun)
            # They name each other: so they go at once, and not when somebody looks for cycles.
            lease, job.lease = job.lease, None
            if lease is not None:
                del lease.holders[job]
                if not lease.holders:
                    self._keeper.release(lease)
                    del self._leases[lease]
        self.source.forget(job.records.delivered for job in released)
        if self.admission.slots:
            self.admission.leave(released)

    def confirm_waits(self) -> None:
        """Note from now on of jobs that wait for signals that they are given back: servers do not say so."""
        self._put_offs.is_on = True

    # --- before a job begins

    async def look_up(self, jobs: Iterable[LeasedJob]) -> None:
        """Load what earlier attempts of jobs left, once; while the store is busy or away, try while they are held."""
        tried = [job for job in jobs if job.records.delivered.num_delivered > 1 and not job.has_looked_up]
        await asyncio.gather(*map(self._look_up, tried))

    async def _look_up(self, job: LeasedJob) -> None:
        while not self.is_late(job):
            try:
                job.records.learn(await self.source.earlier_attempt(job.records.delivered))
            except PeltonError as error:
                if not is_busy(error):
                    raise
                log_job(job.records, "can't be looked up yet: %s", error)
                await self._clock.sleep(ASK_AGAIN_S)
            else:
                job.has_looked_up = True
                return

    async def judge(self, job: LeasedJob) -> AfterAttempt | None:
        """Read a job, and return how it ends if it is not to start, whatever the limits; None if it is.

        It does not if it can't or may not run at all, was cancelled, is paused, or overlaps with another one of its
        schedule. Ask at each delivery, before its function is called.
        """
        records, rules, was_there = job.records, self._rules, job.records.delivered.num_delivered > 1
        if was_there and not job.has_looked_up:
            await self._look_up(job)
        # First, because this reads what the others need to know.
        decision = records.read()
        if decision is None and rules is None:
            # Mostly one of its own: others are looked for.
            job.definition = found = self._own_jobs.get(name := records.envelope.job) or self._queue.jobs.get(name)
            if found is None:
                return self._wait_for_one_who_knows(job)
            rules = found.rules
            if found.context_parameter and was_there:
                await until_answered(self._clock, partial(learn_round, self._queue, records))
        if decision is None and rules is not None:
            ordered = self._order_for(job) if self.orders.has_any else None
            if records.known is not None and (decision := records.known.undo) is not None:
                by_order = decision.by_order or isinstance(ordered, Finish)
                decision = msgspec.structs.replace(decision, by_order=by_order)
            elif records.attempt > rules.max_attempts:
                decision = after_deaths(records.attempt, rules.max_attempts)
            # Who ends a job need not wait for its version, unless there is something to undo.
            other = self._other_version(job) if was_there else None
            if was_there and await is_to_undo(self._queue, records, job.definition, decision or ordered):
                return other
            if decision is None and (ordered or other) is not None:
                return ordered or other
        if decision is not None:
            report(records, decision)
            return decision
        return None if (timetable := records.envelope.timetable) is None else await self._skip(job, timetable)

    def _order_for(self, job: LeasedJob) -> AfterAttempt | None:
        envelope = job.records.envelope
        if (cancelled := self.orders.cancellation(job.records.id, envelope.key)) is not None:
            return self.after(job, cancelled)
        if pause := self.orders.pause_of(envelope.key, envelope.job):
            return PutOff(None, "it is paused", pause=pause)
        return None

    def _wait_for_one_who_knows(self, job: LeasedJob) -> AfterAttempt:
        """Give back a job whose name is unknown here: another program runs it, or a later version of this one."""
        name = job.records.envelope.job
        self._warn_of(
            name,
            "queue %r has jobs named %r, which this worker does not know (known: %s): they wait for one that does",
            ", ".join(self._queue.jobs.names) or "none",
        )
        error = UnknownJobError(name, self._queue.jobs.names)
        return after_error(error, job.records.attempt, JobRules(), self._queue.runtime.random)

    def _other_version(self, job: LeasedJob) -> PutOff | None:
        """Return how a job is given back that goes on with another version of its function."""
        own = "" if job.definition is None else job.definition.hooks.version
        if (other := other_version(job.records.known, own, self._queue.runtime.random)) is not None:
            self._warn_of(job.records.envelope.job, _OTHER, own)
            self._put_offs.is_on = True
        return other

    def _warn_of(self, name: str, text: str, why: str) -> None:
        """Warn of jobs of a name that this worker can't run, once."""
        if (name, text) not in self._unknown and len(self._unknown) < _MOST_UNKNOWN:
            self._unknown.add((name, text))
            _log.warning(text, self._queue.name, name, why, extra={"queue": self._queue.name, "job": name})

    async def _skip(self, job: LeasedJob, timetable: Timetable) -> Finish | None:
        """Return the end of a job of a schedule that is not to run beside an earlier one, or right after it."""
        if timetable.overlap != "skip" or job.records.attempt > 1:
            return None
        if not await has_overlap(self._queue, job.records.delivered):
            return None
        report(job.records, SKIPPED)
        return SKIPPED

    async def make_sure(self, jobs: Sequence[J]) -> list[J]:
        """Store that jobs begin, where that is stored, and return those that are still held then."""
        beginnings = self.source.beginnings
        while beginnings.is_written and (held := [job for job in jobs if not self.is_late(job)]):
            try:
                await beginnings.write([job.records.delivered for job in held])
                break
            except PeltonError as error:
                if not is_busy(error):
                    raise
                await self._clock.sleep(ASK_AGAIN_S)
        return [job for job in jobs if await self.is_sure(job)]

    def begin(self, job: LeasedJob) -> None:
        """Note, on any thread, that a job's function is called now: the last thing before."""
        records, marks = job.records, self.source.beginnings.marks
        if marks is not None:
            marks.mark(records.delivered.seq, records.delivered.num_delivered)
        records.has_begun, records.started = True, self._clock.now()

    # --- after that

    def after(self, job: LeasedJob, error: BaseException, decide: Decide = after_error) -> AfterAttempt:
        """Decide what follows an attempt that raised, and log it."""
        records = job.records
        if self._on_error is not None:
            self._on_error(records.id, error)
        rules = self._rules or (job.definition.rules if job.definition is not None else JobRules())
        decision = decide(error, records.attempt, rules, self._queue.runtime.random)
        if isinstance(error, JobArgumentsError) and error.is_stored:
            text = "queue %r has jobs named %r whose arguments this worker cannot take (%s): they wait for one that can"
            self._warn_of(records.envelope.job, text, error.reason)
        if not self.is_late(job):
            report(records, decision, error)
        return decision

    def handed_back(self, job: LeasedJob) -> Ended | None:
        """Return the end of an attempt that is not counted; None if the job has ended all the same, or is lost."""
        return None if job.is_settled or self.is_late(job) else job.records.handed_back()

    async def hand_back(self, jobs: Sequence[J]) -> None:
        """Give jobs back that were not started, so that another worker can start them at once."""
        await self.look_up(jobs)
        ended = [(job, self.handed_back(job)) for job in jobs]
        self.release([job for job, end in ended if end is None])
        await self.settle([EndedAttempt(job, end) for job, end in ended if end is not None])

    async def settle(
        self, endings: Sequence[EndedAttempt[J]], done: Callable[[Sequence[J]], None] | None = None
    ) -> Sequence[J]:
        """Store how jobs ended; return those that were lost, none of which had any effect.

        ``done`` is called with jobs that are over, as soon as they are; without it they are released. Raises
        PeltonError if the store fails for good, or if a message can never be stored; the jobs that are left stay held.
        """
        let_go, lost, failures = done or self.release, list[J](), list[PeltonError]()
        while endings:
            late = self._late([ending.job for ending in endings])
            lost += late
            kept = [ending for ending in endings if ending.job not in late] if late else endings
            answers = await self._ask([ending.ended for ending in kept])
            settled = [ending for ending, refused in zip(kept, answers, strict=True) if refused is None]
            for ending in settled:
                ending.job.is_settled = True
            let_go([ending.job for ending in settled])
            if self._put_offs.is_on:
                self._put_offs.note(ending.ended for ending in settled)
            endings = []
            if any(answers):
                refusals = [(ending, refused) for ending, refused in zip(kept, answers, strict=True) if refused]
                endings = self._again(refusals, lost, failures)
                if any(is_busy(refused) for _, refused in refusals):
                    await self._clock.sleep(ASK_AGAIN_S)
        for job in lost:
            log_job(job.records, "lost its lease; its result is dropped")
            job.lost = True
        let_go(lost)
        for failure in failures:
            raise failure
        return lost

    def _late(self, jobs: Sequence[J]) -> dict[J, None]:
        """Return the jobs that another worker may have, known or not."""
        if not self.by_clock:
            return {job: None for job in jobs if job.lost}
        return {job: None for job in jobs if self.is_late(job)}

    async def _ask(self, endings: Sequence[Ended]) -> Sequence[PeltonError | None]:
        answers = await self.source.settle_many(endings) if endings else []
        for reason in {str(answer) for answer in answers if answer is not None and is_busy(answer)}:
            _log.warning(
                "jobs of queue %r can't be settled yet: %s", self._queue.name, reason, extra={"queue": self._queue.name}
            )
        return answers

    def _again(
        self, refusals: Sequence[tuple[EndedAttempt[J], PeltonError]], lost: list[J], failures: list[PeltonError]
    ) -> list[EndedAttempt[J]]:
        """Return what is to be settled again, or in another way."""
        again: list[EndedAttempt[J]] = []
        for ending, refused in refusals:
            try:
                if isinstance(refused, AckRejectedError):
                    lost.append(ending.job)
                elif is_busy(refused):
                    again.append(ending)
                else:
                    again.append(EndedAttempt(ending.job, self._otherwise(ending, refused)))
            except PeltonError as failure:
                failures.append(failure)
        return again

    def _otherwise(self, ending: EndedAttempt[J], refused: PeltonError) -> Ended:
        """Return another ending after the store refused a message: the job fails, or leaves no dead letter."""
        job, ended = ending.job, ending.ended
        if not isinstance(refused, (ApiError, ConfigError)):
            raise refused
        if ended.known is not None and isinstance(refused, WrongLastSequenceError):
            if ended.waits_for_signal:
                return job.records.need_not_wait(ended)
            # That it begins anew is stored: the answer was lost.
            return msgspec.structs.replace(ended, messages=ended.messages[1:])
        if job.take_back(refused):
            # Its result, or what it emitted, was refused: the attempt has failed.
            return job.records.after(self.after(job, refused, after_refusal), self._clock.now())
        if isinstance(refused, MessageTooLargeError) and ended.has_letter:
            # Another attempt would end in the same way, on every worker.
            log_job(job.records, "leaves no dead letter: %s", refused, level=logging.ERROR)
            return ended.without_letter()
        raise refused
