"""Jobs taken in batches, for programs that run them in their own way: an executor, a pool, a GPU.

Design: ``take`` claims jobs; each is held under a lease that a thread renews (``leases.py``) until it is settled.
The program reports how each job ended, and ``settle`` stores that: on an embedded store for all of them in one
transaction, yet independently: a job that was lost, or whose message is refused, does not affect the others. A ``take``
that starts in the same round of the event loop shares that transaction, and comes after it. The records are those that
a worker would have written (``records.py``, ``decide.py``): outcomes, dead letters, retries after a backoff. Jobs that
are undecided when the claims are closed are handed back, which is not an attempt; those of a process that dies come
back when their lease runs out, which is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from pelton.api import (
    AckRejectedError,
    MessageTooLargeError,
    PeltonError,
    PullRequest,
    StoreError,
    UnknownJobError,
)
from pelton.api.store_errors import FINAL_ERRORS
from pelton.queue.model.checks import seconds, whole
from pelton.queue.model.decide import Again, Decide, Finish, after_error, after_refusal
from pelton.queue.model.records import AttemptRecords, Ended
from pelton.queue.model.rules import JobRules
from pelton.queue.run.claimed import ClaimedJob, Completed, Failed
from pelton.queue.run.failure_log import report
from pelton.queue.run.leases import LeaseKeeper, SharedLease
from pelton.queue.run.worker_name import worker_name

if TYPE_CHECKING:
    from datetime import timedelta

    from pelton.api import Delivered
    from pelton.queue.define.queue_context import QueueContext

_log: Final = logging.getLogger("pelton")
_ASK_AGAIN_S: Final = 0.5
# The share of a lease that a pull may wait: a lease counts from when it was asked for.
_PULL: Final = 1 / 3


class _EndedJob(msgspec.Struct, frozen=True, gc=False):
    """A job that is being settled, and its record."""

    job: ClaimedJob
    ended: Ended


class Claims:
    """Batches of jobs of one queue. Made by ``queue.claims()``; use it in ``async with``."""

    def __init__(self, queue: QueueContext, rules: JobRules | None) -> None:
        self._queue = queue
        self._rules = rules
        self._clock = queue.runtime.clock
        self._check_loop = queue.backend.check_loop
        self.worker = worker_name(queue.runtime.ids)
        self._job_source = queue.source_for(self.worker)
        self._keeper = LeaseKeeper(self._job_source.extender, self._clock, queue.lease)
        self._by_clock = not queue.backend.refuses_late_acks
        # The leases of jobs that were taken together; each lists its jobs.
        self._leases: dict[SharedLease[ClaimedJob], None] = {}
        # Jobs that are held and that no take has returned yet.
        self._ready: list[ClaimedJob] = []
        self._turn = 0

    async def __aenter__(self) -> Self:
        """Start keeping leases."""
        self._check_loop()
        self._keeper.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand back what was not settled."""
        self._check_loop()
        try:
            with suppress(PeltonError):
                await self._hand_back()
        finally:
            self._keeper.stop()
            await self._job_source.close()

    # --- taking

    async def take(self, limit: int = 200, *, timeout: float | timedelta = 0.0) -> list[ClaimedJob]:
        """Take up to ``limit`` jobs, as soon as there is one; an empty list after ``timeout`` seconds.

        In an exclusive queue at most one job per key is held anywhere, so a batch never has two of the same key. A job
        whose workers died too often, whose name is unknown here, or that is not valid, is settled and not returned.
        Raises ConfigError, StoreError.
        """
        self._check_loop()
        whole(f"queue {self._queue.name!r}: the limit of take", limit)
        end = self._clock.monotonic() + seconds(f"queue {self._queue.name!r}: the timeout of take", timeout)
        while True:
            if not (self._ready or await self._take_now(limit)):
                await self._wait(limit, end - self._clock.monotonic())
            found, self._ready = self._ready[:limit], self._ready[limit:]
            jobs = await self._prepared(found)
            if jobs or not (found or self._clock.monotonic() < end):
                return jobs

    async def _take_now(self, limit: int) -> bool:
        channels, request = self._job_source.channels, PullRequest(batch=limit, no_wait=True)
        for _ in channels:
            # The other channel's turn: neither starves.
            self._turn = (self._turn + 1) % len(channels)
            if await self._pull(channels[self._turn], request):
                return True
        return False

    async def _wait(self, limit: int, left: float) -> None:
        """Wait for jobs on every channel at once, for no longer than part of a lease."""
        if left <= 0:
            return
        channels = self._job_source.channels
        request = PullRequest(
            batch=max(limit // len(channels), 1), expires_ns=int(min(left, self._queue.lease * _PULL) * 1e9)
        )
        spawn = self._queue.runtime.spawn
        pulls = [spawn(self._pull(channel, request), f"pelton claims {channel}") for channel in channels]
        try:
            await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pull in pulls:
                pull.cancel()
            answers = await asyncio.gather(*pulls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def _pull(self, channel: str, request: PullRequest) -> bool:
        asked = self._clock.boottime()
        taken = await self._job_source.take(channel, request)
        # Usually all at once: only some job sources report a lease start for each job.
        for since, together in groupby(taken, attrgetter("asked")):
            self._claimed([one.delivered for one in together], asked if since is None else since)
        return bool(taken)

    def _claimed(self, deliveries: Sequence[Delivered], asked: float) -> None:
        """Hold jobs from now on: even if the caller is gone, each is returned, settled or handed back."""
        names, worker = self._queue.names, self.worker
        jobs = [ClaimedJob(AttemptRecords(names, worker, delivered)) for delivered in deliveries]
        lease = SharedLease(jobs, asked, self._queue.lease, by_clock=self._by_clock)
        for job in jobs:
            job.lease = lease
        self._leases[lease] = None
        self._keeper.hold(lease)
        self._ready += jobs

    def _is_held(self, job: ClaimedJob) -> bool:
        return job.lease in self._leases

    async def _prepared(self, found: list[ClaimedJob]) -> list[ClaimedJob]:
        """Prepare jobs; if that fails, or the caller is gone, the next take gets them."""
        try:
            return await self._prepare(found)
        except BaseException:
            left = [job for job in found if self._is_held(job)]
            for job in left:
                # Start over, so that nothing is counted twice.
                job.records = AttemptRecords(self._queue.names, self.worker, job.records.delivered)
            self._ready = left + self._ready
            raise

    async def _prepare(self, found: list[ClaimedJob]) -> list[ClaimedJob]:
        """Return the jobs that may run; settle the others."""
        self._release([job for job in found if job.lost])
        jobs = [job for job in found if not job.lost]
        await self._look_up(jobs)
        now = self._clock.now()
        fit: list[ClaimedJob] = []
        unfit: list[_EndedJob] = []
        for job in jobs:
            job.records.started = now
            decision = self._judge(job.records)
            if decision is None:
                fit.append(job)
            else:
                unfit.append(_EndedJob(job, job.records.after(decision, now)))
        await self._settle(unfit)
        return fit

    async def _look_up(self, jobs: list[ClaimedJob]) -> None:
        tried = [job for job in jobs if job.records.delivered.num_delivered > 1]
        found = await asyncio.gather(*(self._job_source.known(job.records.delivered) for job in tried))
        for job, known in zip(tried, found, strict=True):
            job.records.learn(known)

    def _judge(self, records: AttemptRecords) -> Finish | Again | None:
        unreadable = records.read()
        if unreadable is not None:
            report(self._queue.name, records, unreadable)
            return unreadable
        rules = self._rules or self._rules_of(records)
        if rules is not None and records.attempt <= rules.max_attempts:
            return None
        ended = records.after_deaths(rules or JobRules())
        if ended is None and rules is None:
            return self._after(records, UnknownJobError(records.envelope.job, sorted(self._queue.jobs_by_name)))
        if ended is not None:
            report(self._queue.name, records, ended)
        return ended

    def _rules_of(self, records: AttemptRecords) -> JobRules | None:
        if self._rules is not None:
            return self._rules
        job = self._queue.jobs_by_name.get(records.envelope.job)
        return job.rules if job is not None else None

    def _after(self, records: AttemptRecords, error: BaseException, decide: Decide = after_error) -> Finish | Again:
        rules = self._rules_of(records) or JobRules()
        decision = decide(error, records.attempt, rules, self._queue.runtime.random)
        report(self._queue.name, records, decision, error)
        return decision

    # --- settling

    async def settle(self, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Store how jobs ended, durably; return those that were lost, none of which had any effect.

        Undecided jobs stay held. A job whose messages a stream refuses has failed. Raises StoreError only if the store
        fails for good: a busy or full store is retried while the leases are kept.
        """
        self._check_loop()
        now = self._clock.now()
        leases = self._leases
        held = [job for job in jobs if job.lease in leases]
        return await self._settle([_EndedJob(job, self._ended(job, job.ending, now)) for job in held if job.ending])

    def _ended(self, job: ClaimedJob, ending: Completed | Failed, now: int) -> Ended:
        if isinstance(ending, Failed):
            return job.records.after(self._after(job.records, ending.error), now)
        return job.completed(ending.result, now)

    async def _settle(self, endings: Sequence[_EndedJob]) -> list[ClaimedJob]:
        lost: list[ClaimedJob] = []
        while endings:
            late = self._late([ending.job for ending in endings])
            kept = [ending for ending in endings if ending.job not in late] if late else endings
            lost += late
            answers = await self._ask([ending.ended for ending in kept])
            endings = self._take_in(kept, answers, lost)
            if any(isinstance(answer, StoreError) for answer in answers):
                await self._clock.sleep(_ASK_AGAIN_S)
        for job in lost:
            _log.warning("job %s of queue %r lost its lease; its result is dropped", job.id, self._queue.name)
            job.lost = True
        self._release(lost)
        return lost

    def _late(self, jobs: Sequence[ClaimedJob]) -> dict[ClaimedJob, None]:
        """Return the jobs whose lease is lost, whether already noticed or not."""
        if not self._by_clock:
            return {job: None for job in jobs if job.lost}
        now = self._clock.boottime()
        over = {lease for lease in self._leases if lease.is_over(now)}
        return {job: None for job in jobs if job.lost or job.lease in over}

    async def _ask(self, endings: Sequence[Ended]) -> Sequence[PeltonError | None]:
        try:
            answers = await self._job_source.settle_many(endings)
        except FINAL_ERRORS:
            raise
        except StoreError as error:
            answers = [error] * len(endings)
        for reason in {str(answer) for answer in answers if isinstance(answer, StoreError)}:
            _log.warning("jobs of queue %r can't be settled yet: %s", self._queue.name, reason)
        return answers

    def _take_in(
        self,
        endings: Sequence[_EndedJob],
        answers: Sequence[PeltonError | None],
        lost: list[ClaimedJob],
    ) -> list[_EndedJob]:
        """Release what is settled; return what must be settled again, or differently."""
        pairs = zip(endings, answers, strict=True)
        self._release([ending.job for ending, refused in pairs if refused is None])
        again: list[_EndedJob] = []
        for ending, refused in zip(endings, answers, strict=True) if any(answers) else ():
            if refused is None:
                continue
            if isinstance(refused, AckRejectedError):
                lost.append(ending.job)
            elif isinstance(refused, StoreError):
                again.append(ending)
            else:
                again.append(_EndedJob(ending.job, self._otherwise(ending.job, ending.ended, refused)))
        return again

    def _otherwise(self, job: ClaimedJob, ended: Ended, refused: PeltonError) -> Ended:
        """Return the end of a job one of whose messages was refused: it has failed, or leaves no dead letter."""
        if isinstance(job.ending, Completed):
            # Its result, or what it emitted, was refused: nothing of the attempt took effect.
            job.ending = Failed(refused)
            decision = self._after(job.records, refused, after_refusal)
            return job.records.after(decision, self._clock.now())
        if isinstance(refused, MessageTooLargeError) and ended.dead_letter is not None:
            # Another attempt would end in the same way, on every worker.
            _log.error("job %s of queue %r leaves no dead letter: %s", job.id, self._queue.name, refused)
            return ended.without_dead_letter()
        raise refused

    async def _hand_back(self) -> None:
        left = [job for lease in self._leases for job in lease.holders]
        try:
            # For jobs that no take has returned, it is not known yet how often they were handed back.
            await self._look_up(self._ready)
            await self._settle([_EndedJob(job, job.records.handed_back()) for job in left if not job.lost])
        finally:
            self._release(left)

    def _release(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            lease = job.lease
            if lease is not None:
                # They reference each other: this frees them at once instead of at the next garbage collection.
                job.lease = None
                del lease.holders[job]
                if not lease.holders:
                    self._keeper.release(lease)
                    del self._leases[lease]
        self._job_source.forget([job.records.delivered for job in jobs])

    # --- the end

    async def is_empty(self) -> bool:
        """Whether the queue has no unfinished job: none is pending, running anywhere, or waiting for a retry."""
        self._check_loop()
        return not self._leases and await self._job_source.is_empty()
