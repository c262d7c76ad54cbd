"""A work queue on streams: enqueue, views, history, dead letters. The worker is in ``worker.py``.

Nothing here knows a backend: a queue is four streams and one or two consumers (``naming.py``), so it runs
wherever streams do. An exclusive queue has two consumers: jobs with a key are delivered at most one per key at
a time (the engine's ``max_ack_pending_per_subject``; a key is a subject), jobs without a key are free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

import msgspec

from pelton.api import (
    Backoff,
    ConfigError,
    JobNotFoundError,
    MessageNotFoundError,
    Outgoing,
    PubAck,
    StoredMessage,
    Unsettled,
    headers,
)
from pelton.api.times import Seconds
from pelton.queue.checks import checked_id, checked_text, seconds, whole
from pelton.queue.claims import Claims
from pelton.queue.handle import JobHandle
from pelton.queue.job import DEFAULT_BACKOFF, DEFAULT_MAX_ATTEMPTS, Job, JobCall, JobRules, job_name, job_rules
from pelton.queue.job_message import JobMessage
from pelton.queue.job_source import JobSource
from pelton.queue.model import (
    ENDINGS,
    Attempt,
    DeadLetter,
    Ending,
    Envelope,
    JobCounts,
    JobInfo,
    JobState,
    Outcome,
)
from pelton.queue.naming import QueueNames
from pelton.queue.open_source import open_source
from pelton.queue.queue_stats import QueueStats
from pelton.queue.scan import scan
from pelton.queue.setup import EXCLUSIVE, LEASE, jobs_stream, queue_settings, side_streams
from pelton.queue.worker import Worker, WorkerSettings
from pelton.runtime import at_home

if TYPE_CHECKING:
    from pelton.jet import Streams

P = ParamSpec("P")
R = TypeVar("R")
_envelope: Final = msgspec.json.Decoder(Envelope).decode
_outcome: Final = msgspec.json.Decoder(Outcome).decode
_attempt: Final = msgspec.json.Decoder(Attempt).decode
_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_encode: Final = msgspec.json.Encoder().encode


class Queue:
    """A work queue. Made by ``await jet.queue(name)``."""

    def __init__(
        self,
        jet: Streams,
        names: QueueNames,
        *,
        exclusive: bool,
        lease: float,
        stats: QueueStats,
        job_source: Callable[[Queue, str], JobSource],
    ) -> None:
        self.jet = jet
        self._check_loop = jet.backend.check_loop
        self.names = names
        self.name = names.queue
        self.exclusive = exclusive
        self.lease = lease
        self._stats = stats
        self._job_source = job_source
        self.jobs_by_name: dict[str, Job[Any, Any]] = {}
        self._workers: set[Worker] = set()

    @classmethod
    async def open(
        cls,
        jet: Streams,
        name: str,
        *,
        exclusive: bool | None = None,
        lease: Seconds | None = None,
        history_max_age: Seconds | None = None,
        num_replicas: int | None = None,
    ) -> Queue:
        """Open a queue, making its streams and consumers if they are missing. Raises ConfigError."""
        names = QueueNames(name)
        settings = queue_settings(name, exclusive, lease, history_max_age, num_replicas)
        stream = await jobs_stream(jet, names, settings)
        is_exclusive = stream.config.metadata[EXCLUSIVE] == "true"
        fixed_lease = float(stream.config.metadata[LEASE])
        await side_streams(jet, names, settings)
        stats, job_source = await open_source(jet, names, stream, is_exclusive, fixed_lease, settings)
        return cls(jet, names, exclusive=is_exclusive, lease=fixed_lease, stats=stats, job_source=job_source)

    def job_source(self, worker: str) -> JobSource:
        """Return the job source of the worker with that name; for the worker."""
        return self._job_source(self, worker)

    # --- jobs

    @overload
    def job(self, function: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str = ...,
        max_attempts: int = ...,
        backoff: Backoff = ...,
        permanent: type[BaseException] | Sequence[type[BaseException]] = ...,
        timeout: Seconds | None = ...,
    ) -> Callable[[Callable[P, Any]], Job[P, Any]]: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str = "",
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        backoff: Backoff = DEFAULT_BACKOFF,
        permanent: type[BaseException] | Sequence[type[BaseException]] = (),
        timeout: Seconds | None = None,
    ) -> Any:
        """Register a function, async or not, as a job; a decorator, with or without arguments.

        ``name`` (default: the function's) is stored with every job: keep it when you rename the function. A job
        is tried up to ``max_attempts`` times, a worker's death included, with ``backoff`` between; errors in
        ``permanent``, and PermanentJobError, are not retried. ``timeout`` (async functions) limits one attempt.
        Raises ConfigError.
        """

        def register(target: Callable[..., Any]) -> Job[..., Any]:
            own_name = checked_text(f"queue {self.name!r}: a job's name", name) if name != "" else job_name(target)
            rules = job_rules(f"job {own_name!r}", max_attempts, backoff, permanent, timeout)
            job: Job[..., Any] = Job(self, target, own_name, rules)
            if job.name in self.jobs_by_name:
                raise ConfigError(f"queue {self.name!r} has a job {job.name!r} already; give one of them another name")
            self.jobs_by_name[job.name] = job
            return job

        return register if function is None else register(function)

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle]:
        """Put many jobs into the queue, durable together and in order."""
        acks = await self.jet.backend.publish_batch([self.message_of(call) for call in calls])
        return [self.handle(ack) for ack in acks]

    def handle(self, ack: PubAck) -> JobHandle:
        """Return the handle of a job that was stored."""
        return JobHandle(self, ack.seq, ack.duplicate)

    def message_of(self, call: JobCall) -> Outgoing:
        """Return the message that puts a job into the queue. Raises ConfigError."""
        form = JobMessage(self.names, call.job.name, exclusive=self.exclusive)
        return form.message(call.args, call.key, call.idempotency_key)

    # --- work

    async def work(
        self,
        *,
        concurrency: int = 8,
        until_empty: bool = False,
        handle_signals: bool = True,
        grace: Seconds = 30.0,
    ) -> None:
        """Run jobs until stopped: by :meth:`stop`, by SIGTERM or SIGINT, or (``until_empty``) when no job is left.

        Signals are handled on the main thread only, and only those without another handler: in a web server they
        belong to the server, and you call :meth:`stop`. ``handle_signals=False`` handles none.

        Runs up to ``concurrency`` jobs at a time, async ones on this event loop, others each on a thread. When the
        worker stops, running jobs are notified (``JobContext.stopping``) and have ``grace`` seconds to finish; then
        async ones are cancelled and handed back, which does not count as an attempt; threads are waited for.
        May be called several times at once: each call is a separate worker. Raises ConfigError.
        """
        settings = WorkerSettings(
            concurrency=whole(f"queue {self.name!r}: concurrency", concurrency),
            until_empty=until_empty,
            handle_signals=handle_signals,
            grace=seconds(f"queue {self.name!r}: grace", grace),
        )
        self._check_loop()
        worker = Worker(self, settings)
        self._workers.add(worker)
        try:
            await worker.run()
        finally:
            self._workers.discard(worker)

    def claims(self, rules: JobRules | None = None) -> Claims:
        """Take jobs in batches, and run them yourself: ``async with queue.claims() as claims``.

        ``rules`` apply to every job, whatever its name; None: each registered job has its own, others are unknown.
        """
        if rules is not None:
            if not isinstance(rules, JobRules):
                raise ConfigError(f"claims of queue {self.name!r}: rules is {rules!r}; give a pelton.JobRules(...)")
            rules.check(f"claims of queue {self.name!r}")
        return Claims(self, rules)

    def stop(self) -> None:
        """Stop every :meth:`work` of this queue gracefully; each returns when its jobs are finished or handed back.

        From any thread.
        """
        for worker in list(self._workers):
            worker.home.call(worker.stop)

    # --- views

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state."""
        underway = await self._stats.underway()
        states = [self._state_of(entry) for entry in underway.values()]
        pending = await self._stats.untouched(underway) + states.count("pending")
        history = await self.jet.stream(self.names.history)
        ended = dict.fromkeys(ENDINGS, 0)
        total = (await history.info()).state.messages
        for ending in ("failed", "cancelled"):
            found = await history.info(subjects_filter=self.names.ending_subject(ending, "*"))
            ended[ending] = found.total
        ended["completed"] = total - ended["failed"] - ended["cancelled"]
        return JobCounts(pending=pending, running=states.count("running"), retrying=states.count("retrying"), **ended)

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id, in whatever state it is.

        Raises JobNotFoundError if it is not known, or no longer known; ConfigError.
        """
        seq = int(checked_id(self.name, job_id))
        stream = await self.jet.stream(self.names.jobs)
        # In this order, or a job that ends between the two would seem to be pending again.
        unsettled = await self._stats.underway()
        try:
            stored = await stream.get_message(seq)
        except MessageNotFoundError:
            return await self._ended(job_id)
        return await self._unfinished(stored, unsettled)

    @at_home
    async def jobs(self) -> AsyncIterator[JobInfo]:
        """Iterate over the jobs that have not ended, oldest first: pending, running and retrying."""
        stream = await self.jet.stream(self.names.jobs)
        unsettled = await self._stats.underway()
        seq = 1
        while True:
            try:
                stored = await stream.get_next_message(">", seq)
            except MessageNotFoundError:
                return
            yield await self._unfinished(stored, unsettled)
            seq = stored.seq + 1

    @at_home
    async def history(self, state: Ending | None = None) -> AsyncIterator[Outcome]:
        """Iterate over the outcomes of jobs, oldest first; only over those in state ``state`` if given.

        Raises ConfigError.
        """
        if state is not None and state not in ENDINGS:
            raise ConfigError(f"queue {self.name!r}: no history of {state!r}; a job ends as {', '.join(ENDINGS)}")
        stream = await self.jet.stream(self.names.history)
        filter_subject = self.names.ending_subject(state, "*") if state else ""
        async for _, data in scan(stream, filter_subject):
            yield _outcome(data)

    @at_home
    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """Iterate over failed jobs that can be redriven, oldest first."""
        stream = await self.jet.stream(self.names.dead)
        async for _, data in scan(stream, ""):
            yield _dead(data)

    async def redrive(self, job_id: str) -> JobHandle:
        """Put a failed job into the queue again, as a new job, and remove its dead letter.

        Raises JobNotFoundError when there is no such dead letter, ConfigError.
        """
        dead = await self.jet.stream(self.names.dead)
        subject = self.names.dead_subject(checked_id(self.name, job_id))
        try:
            stored = await dead.get_last_message(subject)
        except MessageNotFoundError:
            raise JobNotFoundError(self.name, job_id, "it left no dead letter, or was already redriven") from None
        letter = _dead(stored.data)
        envelope = msgspec.structs.replace(letter.envelope, redriven_from=job_id)
        subject = letter.subject or self.names.job_subject(envelope.key if self.exclusive else "")
        # The id makes it harmless to repeat a redrive that was interrupted between the two steps.
        block = headers.encode({headers.MSG_ID: f"redrive-{job_id}"})
        ack = await self.jet.backend.publish(subject, letter.data or _encode(envelope), block)
        with suppress(MessageNotFoundError):
            # It was redriven concurrently: both calls got the same job.
            await dead.delete_message(stored.seq)
        return self.handle(ack)

    async def clean(self, *, older_than: Seconds) -> int:
        """Remove from the history what ended more than ``older_than`` (seconds) ago; return how many were removed.

        Raises ConfigError.
        """
        age = seconds(f"queue {self.name!r}: older_than", older_than)
        limit = self.jet.runtime.clock.now() - int(age * 1e9)
        stream = await self.jet.stream(self.names.history)
        upto = 0
        async with aclosing(scan(stream, "")) as records:
            async for seq, data in records:
                if _outcome(data).finished_at > limit:
                    break
                upto = seq
        return await stream.purge(seq=upto + 1) if upto else 0

    def _state_of(self, delivery: Unsettled | None) -> JobState:
        if delivery is None:
            return "pending"
        if not delivery.waits:
            return "running"
        return "retrying" if delivery.due > self.jet.runtime.clock.now() else "pending"

    async def _unfinished(self, stored: StoredMessage, unsettled: dict[int, Unsettled]) -> JobInfo:
        try:
            envelope = _envelope(stored.data)
        except (msgspec.DecodeError, msgspec.ValidationError):
            # Not a valid job, as the worker that takes it will find; the view shows it among the others.
            envelope = Envelope(job="", args=msgspec.Raw(b"null"))
        delivery = unsettled.get(stored.seq)
        known = None if delivery is None else await self.attempt_of(str(stored.seq))
        deliveries = 0 if delivery is None else delivery.num_delivered
        return JobInfo(
            id=str(stored.seq),
            job=envelope.job,
            state=self._state_of(delivery),
            key=envelope.key,
            attempt=max(deliveries - (known.returned if known else 0), 0),
            enqueued_at=stored.time_ns,
            last_error=known.error if known else "",
        )

    async def attempt_of(self, job_id: str) -> Attempt | None:
        """Return the record of a job's last attempt that did not end it, or None."""
        stream = await self.jet.stream(self.names.attempts)
        try:
            return _attempt((await stream.get_last_message(self.names.attempt_subject(job_id))).data)
        except MessageNotFoundError:
            return None

    async def _ended(self, job_id: str) -> JobInfo:
        stream = await self.jet.stream(self.names.history)
        for ending in ENDINGS:
            try:
                stored = await stream.get_last_message(self.names.ending_subject(ending, job_id))
            except MessageNotFoundError:
                continue
            outcome = _outcome(stored.data)
            return JobInfo(
                id=job_id,
                job=outcome.job,
                state=outcome.state,
                key=outcome.key,
                attempt=outcome.attempt,
                enqueued_at=outcome.enqueued_at,
                last_error=outcome.error,
                outcome=outcome,
            )
        raise JobNotFoundError(self.name, job_id, "it was never enqueued here, or its history was cleaned")
