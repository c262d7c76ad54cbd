"""Jobs taken in batches, for programs that run them in their own way: an executor, a pool, a GPU.

Design: ``take`` claims jobs; each is held under a lease that a thread renews (``leased_jobs.py``) until it is settled.
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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from pelton.api import ConfigError, Outgoing, PeltonError, PullRequest, headers
from pelton.api.admission import check_subject
from pelton.api.tracing import Tracing
from pelton.queue.job_message import encoded_result
from pelton.queue.model.options import JobRules, seconds, whole
from pelton.queue.model.records import Ended
from pelton.queue.model.states import NOTHING
from pelton.queue.run.admission import LOOK_AGAIN_S
from pelton.queue.run.fetch import RankedTakes, order_reader
from pelton.queue.run.leased_jobs import EndedAttempt, LeasedJob, LeasedJobs
from pelton.runtime import end_tasks

if TYPE_CHECKING:
    from datetime import timedelta

    from pelton.queue.model.limits import Order
    from pelton.queue.registry import QueueContext


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The job was reported as done, with this result as JSON."""

    result: msgspec.Raw


class Failed(msgspec.Struct, frozen=True):
    """The job was reported as failed, as if it had raised ``error``."""

    error: BaseException


class HandedBack(msgspec.Struct, frozen=True):
    """The job was not run: another worker gets it, and this was no attempt."""


class ClaimedJob(LeasedJob, eq=False):
    """A job of a batch. Report how it ended: :meth:`complete`, :meth:`fail`, :meth:`hand_back`.

    ``claims.settle`` stores that.

    ``cancelled``: somebody has cancelled it since it was taken; give up its work, and ``fail(pelton.Cancel())``.
    ``lost``: its lease was lost, another worker may have it, and what you report has no effect. ``records``,
    ``lease`` and ``ending`` are for the claims, ``tracing`` for ``pelton.otel.process``.
    """

    ending: Completed | Failed | HandedBack | None = None
    cancelled: bool = False
    tracing: Tracing | None = None
    _emitted: list[Outgoing] | None = None

    def __repr__(self) -> str:
        return f"<ClaimedJob {self.id} {self.job!r}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.records.id

    @property
    def job(self) -> str:
        """The job's name."""
        return self.records.envelope.job

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.records.queue

    @property
    def worker(self) -> str:
        """The name of the claims that hold it, as a worker."""
        return self.records.worker

    @property
    def meta(self) -> Mapping[str, str]:
        """What travels with it: texts by name."""
        return self.records.envelope.meta

    @property
    def key(self) -> str:
        """The key the job works on, or empty."""
        return self.records.envelope.key

    @property
    def args(self) -> bytes:
        """Its arguments: a JSON object by parameter name."""
        return bytes(self.records.envelope.args)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.records.attempt

    @property
    def last_error(self) -> str:
        """Why the previous attempt failed, or empty."""
        return self.records.last_error

    @property
    def enqueued_at(self) -> int:
        """When it was enqueued, in wall nanoseconds."""
        return self.records.delivered.time_ns

    @property
    def token(self) -> int:
        """A number that grows with every start of a job of the same key; an outside system can refuse smaller ones."""
        return self.records.delivered.token

    @property
    def is_decided(self) -> bool:
        """Whether its end was reported."""
        return self.ending is not None

    def complete(self, result: object = None) -> None:
        """Report success; ``result`` is kept in the history. Raises JobResultError if it is not valid JSON."""
        self.complete_encoded(NOTHING if result is None else encoded_result(self.job, result))

    def complete_encoded(self, result: msgspec.Raw) -> None:
        """Report success, with a result that is already JSON."""
        self.ending = Completed(result)

    def fail(self, error: BaseException) -> None:
        """Report failure, as if its function had raised ``error``.

        The rules of the claims decide whether it is retried; RetryJob, PermanentJobError and JobCancelledError override
        them.
        """
        self.ending = Failed(error)

    def hand_back(self) -> None:
        """Report that it was not run: it is delivered again at once, to any worker, and this was no attempt."""
        self.ending = HandedBack()

    def emit(self, subject: str, data: bytes, message_headers: Mapping[str, str | Sequence[str]] | None = None) -> None:
        """Publish a message together with the completion of this job: both take effect, or neither does.

        ``message_headers`` map names to one text or to several. Raises ConfigError.
        """
        check_subject(subject)
        self.emit_encoded(subject, data, headers.encode(message_headers) if message_headers else None)

    def emit_encoded(self, subject: str, data: bytes, block: bytes | None) -> None:
        """Publish a message whose headers are already encoded."""
        if self._emitted is None:
            self._emitted = []
        message = Outgoing(subject, data, block)
        self._emitted.append(message if self.tracing is None else self.tracing.with_context(message))

    def to_completion(self, result: msgspec.Raw, now: int) -> Ended:
        """Return the record of its completion, with what it emitted; for the claims."""
        return self.records.after_result(result, self._emitted or (), now)

    def take_back(self, refused: PeltonError) -> bool:
        """Note that a message was refused; return whether it was one of the completion; for the claims."""
        was_completed = isinstance(self.ending, Completed)
        if was_completed:
            self.ending = Failed(refused)
        return was_completed


_log: Final = logging.getLogger("pelton.queue")
# The share of a lease that a pull may wait: a lease counts from when it was asked for.
_PULL: Final = 1 / 3


class Claims:
    """Batches of jobs of one queue. Made by ``queue.claims()``; use it in ``async with``."""

    def __init__(self, queue: QueueContext, rules: JobRules | None) -> None:
        self._queue = queue
        self._clock = queue.runtime.clock
        self._check_loop = queue.backend.check_loop
        # None is parked: nobody would start them while the program is busy with others.
        self._held = LeasedJobs[ClaimedJob](queue, rules)
        self._job_source = self._held.source
        self._admission = self._held.admission
        self._orders = self._held.orders
        self._order_reader = order_reader(queue, self._heed)
        self._following: asyncio.Task[None] | None = None
        self._takes = RankedTakes(self._held, queue.runtime)
        self.worker: str = self._held.worker
        # Jobs that are held and that no take has returned yet.
        self._ready: list[ClaimedJob] = []
        self._turn = 0

    async def __aenter__(self) -> Self:
        """Start keeping leases."""
        self._check_loop()
        await self._order_reader.begin()
        self._held.start(ClaimedJob)
        self._following = self._queue.runtime.spawn(self._order_reader.follow(), f"pelton {self._queue.name} orders")
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
            self._held.stop()
            following, self._following = self._following, None
            await end_tasks(following)
            await self._order_reader.close()
            await self._held.close()

    def _heed(self, order: Order) -> None:
        for job in self._held.heed(order):
            job.cancelled = True
        if order.pause_all:
            self._admission.changed.notify()

    # --- taking

    @property
    def ahead(self) -> int:
        """How many jobs are held for the next takes."""
        return len(self._ready)

    async def take(self, limit: int = 200, *, timeout: float | timedelta = 0.0, ahead: int = 0) -> list[ClaimedJob]:
        """Take up to ``limit`` jobs, as soon as there is one; an empty list after ``timeout`` seconds.

        Up to ``ahead`` more are held for the next takes, which then need no transaction; do that only for jobs that
        are short, because no other worker gets them meanwhile. None are in an exclusive queue, or under limits.

        In an exclusive queue at most one job per key is held anywhere, so a batch never has two of the same key. A job
        whose workers died too often, or that was cancelled or is not valid, is settled and not returned. One whose name
        is unknown here, that is paused, or that a limit holds back, is given back. Raises ConfigError, StoreError.
        """
        self._check_loop()
        if self._following is None:
            raise ConfigError(
                f"queue {self._queue.name!r}: leases are kept within 'async with queue.claims() as claims': take there"
            )
        whole(f"queue {self._queue.name!r}: the limit of take", limit)
        if ahead:
            whole(f"queue {self._queue.name!r}: ahead of take", ahead)
        began = self._clock.now()
        end = self._clock.monotonic() + seconds(f"queue {self._queue.name!r}: the timeout of take", timeout)
        while True:
            seen = self._admission.changed.generation
            if not (self._ready or await self._take_now(limit, ahead)):
                await self._wait(limit, end - self._clock.monotonic(), seen)
            found, self._ready = self._ready[:limit], self._ready[limit:]
            jobs = self._trace_takes(await self._prepare_all(found), began)
            if jobs or not (found or self._clock.monotonic() < end):
                return jobs

    def _trace_takes(self, jobs: list[ClaimedJob], began: int) -> list[ClaimedJob]:
        tracing = self._queue.backend.tracing
        if tracing is not None and jobs:
            for job in jobs:
                job.tracing = tracing
            tracing.on_claimed(jobs, began)
        return jobs

    async def _take_now(self, limit: int, ahead: int) -> bool:
        # Jobs ahead would keep others from the places of a limit, and from the jobs of their keys.
        limit = self._held.room(limit if self._admission.is_on or self._queue.exclusive else limit + ahead)
        channels = self._job_source.channels
        if limit <= 0:
            return False
        for _ in channels:
            # The other channel's turn: neither starves.
            self._turn = (self._turn + 1) % len(channels)
            # Even if the caller is gone by now, each is returned, settled or handed back.
            taken = await self._takes.now(channels[self._turn], limit)
            self._ready += taken
            if taken:
                return True
        return False

    async def _wait(self, limit: int, left: float, seen: int) -> None:
        """Wait for jobs on every channel at once, or until a limit has room for any, for part of a lease at most."""
        if left <= 0:
            return
        left = min(left, self._queue.lease * _PULL)
        limit = self._held.room(limit)
        if limit <= 0:
            longest = min(left, self._admission.room_in(), LOOK_AGAIN_S)
            await self._admission.changed.wait_at_most(self._clock, longest, seen)
            return
        channels = self._job_source.channels
        others = (*self._job_source.ranked, *self._job_source.tenants)
        request = PullRequest(batch=max(limit // len(channels), 1), expires_ns=int(left * 1e9))
        spawn = self._queue.runtime.spawn
        pulls = [spawn(self._pull(channel, request), f"pelton claims {channel}") for channel in (*others, *channels)]
        try:
            await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pull in pulls:
                pull.cancel()
            answers = await asyncio.gather(*pulls, return_exceptions=True)
            self._takes.turns.doubt()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def _pull(self, channel: str, request: PullRequest) -> None:
        # Even if the caller is gone by now, each is returned, settled or handed back.
        taken = await self._held.take(channel, request)
        self._ready += taken

    async def _prepare_all(self, found: list[ClaimedJob]) -> list[ClaimedJob]:
        """Prepare jobs; if that fails, or the caller is gone, the next take gets them."""
        try:
            return await self._prepare(found)
        except BaseException:
            left = [job for job in found if self._held.is_held(job)]
            for job in left:
                # Start over, so that nothing is counted twice.
                job.records, job.has_looked_up = job.records.anew(), False
            self._ready = left + self._ready
            raise

    async def _prepare(self, found: list[ClaimedJob]) -> list[ClaimedJob]:
        """Return the jobs that may run; settle the others."""
        self._held.release([job for job in found if job.lost])
        jobs = [job for job in found if not job.lost]
        await self._held.look_up(jobs)
        if self._orders.is_all_paused:
            # They were asked for before the pause. On a cluster, a key whose retry is due is still taken by then.
            await self._held.hand_back(jobs)
            return []
        now = self._clock.now()
        fit: list[ClaimedJob] = []
        unfit: list[EndedAttempt[ClaimedJob]] = []
        for job in jobs:
            if (refusal := await self._held.judge(job)) is None:
                fit.append(job)
            else:
                unfit.append(EndedAttempt(job, job.records.after(refusal, now)))
        if self._admission.is_on:
            fit, held_back = await self._admit(fit, now)
            unfit += held_back
        await self._held.settle(unfit)
        return await self._begin(fit)

    async def _begin(self, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Return the jobs that are still held, which begin: from now on their program may do anything with them."""
        held = await self._held.make_sure(jobs)
        self._held.release([job for job in jobs if job.lost])
        for job in held:
            self._held.begin(job)
        return held

    async def _admit(self, jobs: list[ClaimedJob], now: int) -> tuple[list[ClaimedJob], list[EndedAttempt[ClaimedJob]]]:
        """Return the jobs that may start, and those that limits hold back until later."""
        fit: list[ClaimedJob] = []
        put_off: list[EndedAttempt[ClaimedJob]] = []
        answers = await asyncio.gather(*map(self._admission.enter, jobs))
        for job, held_back in zip(jobs, answers, strict=True):
            if held_back is None:
                fit.append(job)
            elif (later := self._held.parking.hold_back(job, held_back)) is not None:
                put_off.append(EndedAttempt(job, job.records.after(later, now)))
        return fit, put_off

    # --- settling

    async def settle(self, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Store how jobs ended, durably; return those that were lost, none of which had any effect.

        Undecided jobs stay held. A job whose messages a stream refuses has failed. Raises StoreError only if the store
        fails for good: a busy or full store is retried while the leases are kept.
        """
        self._check_loop()
        now = self._clock.now()
        held = [job for job in jobs if self._held.is_held(job)]
        endings = [EndedAttempt(job, self._to_ended(job, job.ending, now)) for job in held if job.ending]
        tracing = self._queue.backend.tracing
        with nullcontext() if tracing is None or not endings else tracing.settling_jobs([one.job for one in endings]):
            return list(await self._held.settle(endings))

    def _to_ended(self, job: ClaimedJob, ending: Completed | Failed | HandedBack, now: int) -> Ended:
        if isinstance(ending, HandedBack):
            return job.records.handed_back()
        if isinstance(ending, Failed):
            return job.records.after(self._held.after(job, ending.error), now)
        return job.to_completion(ending.result, now)

    async def give_back_ahead(self) -> None:
        """Give back the jobs that are held for the next takes, which is no attempt: any worker gets them."""
        self._check_loop()
        left, self._ready = self._ready, []
        try:
            await self._held.hand_back(left)
        except BaseException:
            # They are given back when the claims are closed.
            self._ready = [job for job in left if self._held.is_held(job)]
            raise

    async def _hand_back(self) -> None:
        try:
            await self._held.hand_back(self._held.held_jobs())
        finally:
            self._held.release(self._held.held_jobs())

    async def is_empty(self) -> bool:
        """Whether the queue has no unfinished job: none is pending, running anywhere, or waiting for a retry."""
        self._check_loop()
        return not self._held.held_jobs() and await self._job_source.is_empty()
