"""A work queue on streams: the face of its rooms.

Nothing here knows a backend: a queue is four streams and one or two consumers (``model/naming.py``), so it runs
wherever streams do. An exclusive queue has two consumers: jobs with a key are delivered at most one per key at
a time (the engine's ``max_ack_pending_per_subject``; a key is a subject), jobs without a key are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pelton.api import ConfigError, QueueNotFoundError, StoreReadOnlyError, StreamNotFoundError
from pelton.api.times import Seconds
from pelton.jet.streams import StoreTime
from pelton.queue.backing.job_source import ConsumerJobSource
from pelton.queue.backing.keyed_source import KeyedJobSource, KeyedStats
from pelton.queue.backing.scan import BegunJobs, ConsumerStats
from pelton.queue.backing.setup import (
    EXCLUSIVE,
    KEYS,
    LEASE,
    RECORDS,
    QueueSettings,
    check_is_queue,
    existing_consumers,
    free_consumer,
    is_in_file,
    jobs_stream,
    keys_stream,
    queue_settings,
    ranked_consumers,
    side_streams,
    with_places,
    worker_consumers,
)
from pelton.queue.control.queue_views import QueueWithViews
from pelton.queue.control.schedules import QueueWithSchedules
from pelton.queue.control.steering import Mover, QueueWithSteering, Steering
from pelton.queue.enqueue.enqueuer import Enqueuer, QueueWithJobs
from pelton.queue.enqueue.job import Job, JobHandle, JobQueue, job_name
from pelton.queue.enqueue.registry import JobRegistry, Jobs, QueueContext, given_jobs
from pelton.queue.flow.flows import Flows, QueueWithFlows
from pelton.queue.flow.reactor import FlowReactor
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import JobRules, checked_id, checked_text, seconds, whole
from pelton.queue.run.claims import Claims
from pelton.queue.run.slots import WorkerSettings
from pelton.queue.run.worker import Worker

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.backing.job_source import JobSource
    from pelton.queue.ports import QueueStats


async def open_queue(jet: Streams, names: QueueNames, settings: QueueSettings, jobs: JobRegistry) -> QueueContext:
    """Open a queue. Raises ConfigError."""
    stream = await jobs_stream(jet, names, settings)
    try:
        stream = await with_places(jet, names, stream)
        await side_streams(jet, names, settings)
        return await _context(jet, names, stream, jobs, settings)
    except StoreReadOnlyError:
        # The views of a queue that lacks a stream, because an older version made it, find nothing there.
        return await _context(jet, names, stream, jobs, None)


async def look_at_queue(jet: Streams, names: QueueNames) -> QueueContext:
    """Return a queue to be looked at: nothing of it is made. Raises QueueNotFoundError, ConfigError."""
    try:
        stream = await jet.stream(names.jobs)
    except StreamNotFoundError:
        raise QueueNotFoundError(names.queue) from None
    check_is_queue(names, stream)
    return await _context(jet, names, stream, JobRegistry(names.queue, ()), None)


async def _context(
    jet: Streams, names: QueueNames, stream: Stream, jobs: JobRegistry, settings: QueueSettings | None
) -> QueueContext:
    exclusive = stream.config.metadata[EXCLUSIVE] == "true"
    lease = float(stream.config.metadata[LEASE])
    begun = BegunJobs(jet, names, stream, lease, await jet.backend.begun_deliveries(names.jobs))
    stats, source_for = await _source(begun, exclusive, settings)
    return QueueContext(
        jet=jet,
        names=names,
        exclusive=exclusive,
        lease=lease,
        stats=stats,
        begun=begun,
        source_for=source_for,
        jobs=jobs,
        time=StoreTime(jet.backend, jet.runtime),
    )


async def _source(
    begun: BegunJobs, exclusive: bool, settings: QueueSettings | None
) -> tuple[QueueStats, Callable[[str], JobSource]]:
    """Return the stats for the views, and the factory of a worker's job source."""
    jet, names, stream, lease = begun.jet, begun.names, begun.stream, begun.lease
    # As the queue was made, whichever backend opens it: the two ways cannot be mixed.
    has_records = stream.config.metadata.get(KEYS) == RECORDS
    ranked: list[Consumer] = []
    # Through a server, the exclusive queue of a file keeps what it has: a server's protocol cannot make it.
    is_served = exclusive and not has_records and not is_in_file(jet)
    if settings is None or is_served:
        consumers = await existing_consumers(stream, names)
    else:
        if has_records:
            await keys_stream(jet, names, settings)
            consumers = [await free_consumer(stream, names, lease)]
        else:
            consumers = await worker_consumers(stream, names, exclusive, lease)
        # Last: in a queue that an older version made, a worker's consumer took every job until now.
        ranked = await ranked_consumers(stream, names, lease)

    def keyed_source(worker: str) -> JobSource:
        return KeyedJobSource(begun, consumers[0], ranked, worker)

    def delivered_source(worker: str) -> JobSource:
        if is_served:
            raise ConfigError(f"queue {names.queue!r} is exclusive and lives in a file: its workers work on the file")
        return ConsumerJobSource(begun, consumers, ranked, worker)

    if has_records:
        return KeyedStats(jet, names, stream, (*ranked, *consumers)), keyed_source
    return ConsumerStats(jet.backend, names, stream, (*ranked, *consumers)), delivered_source


class Queue(QueueWithJobs, QueueWithSteering, QueueWithSchedules, QueueWithFlows, QueueWithViews):
    """A work queue. Made by ``await jet.queue(name)``."""

    def __init__(self, jet: Streams, context: QueueContext) -> None:
        super().__init__()
        self.jet = jet
        self._check_loop = jet.backend.check_loop
        self._context = context
        self.names: QueueNames = context.names
        self.name: str = context.name
        self.exclusive: bool = context.exclusive
        self.lease: float = context.lease
        self.jobs_by_name: dict[str, Job[Any, Any]] = context.jobs.own
        self._views = self._steering = Steering(context)
        self._enqueuer = Enqueuer(context, self._steering)
        self._flows = Flows(context, self._steering)
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
        jobs: Jobs | Sequence[Jobs] | None = None,
        create: bool = True,
    ) -> Queue:
        """Open a queue, making what is missing of it, if ``create``. Raises QueueNotFoundError, ConfigError."""
        names = QueueNames(name)
        registry = JobRegistry(name, given_jobs(name, jobs))
        settings = queue_settings(name, exclusive, lease, history_max_age, num_replicas, create)
        return cls(jet, await open_queue(jet, names, settings, registry))

    # --- jobs

    def _declare(self, function: Callable[..., Any], name: str) -> tuple[JobQueue | None, str]:
        what = f"queue {self.name!r}: a job's name"
        return self, checked_text(what, name) if name != "" else job_name(function)

    def _add(self, job: Job[Any, Any]) -> None:
        self._context.jobs.add(job)

    # --- work

    async def work(
        self,
        *,
        concurrency: int = 8,
        until_empty: bool = False,
        until_idle: bool = False,
        handle_signals: bool = True,
        grace: Seconds = 30.0,
        max_jobs: int | None = None,
    ) -> None:
        """Run jobs until stopped: by :meth:`stop`, by SIGTERM or SIGINT, or (``until_empty``) when no job is left.

        ``until_empty`` leaves only jobs that are scheduled for later. ``until_idle``: until no job can start now;
        retries that are not due are left, too.
        After ``max_jobs`` jobs it takes no more, lets those that run finish, and returns.

        Signals are handled on the main thread only, only those without another handler, and none if the program
        handles SIGTERM: in a web server they belong to the server, and you call :meth:`stop`.
        ``handle_signals=False`` handles none.

        Runs up to ``concurrency`` jobs at a time, async ones on this event loop, others each on a thread. When the
        worker stops, running jobs are notified (``JobContext.stopping``) and have ``grace`` seconds to finish; then
        async ones are cancelled and handed back, which does not count as an attempt; threads are waited for.
        May be called several times at once: each call is a separate worker. Raises ConfigError.
        """
        what, probes = f"queue {self.name!r}", self._context.probes
        settings = WorkerSettings(
            concurrency=whole(f"{what}: concurrency", concurrency),
            until_empty=until_empty,
            until_idle=until_idle,
            on_error=probes.on_error,
            on_idle=probes.on_idle,
            handle_signals=handle_signals,
            grace=seconds(f"{what}: grace", grace),
            max_jobs=None if max_jobs is None else whole(f"{what}: max_jobs", max_jobs),
        )
        self._check_loop()
        worker = Worker(self._context, settings, partial(FlowReactor, self._context, self._steering))
        self._workers.add(worker)
        try:
            async with self._context.jobs.living(self.jet), self.hooks.living(self.jet):
                await worker.run()
        finally:
            self._workers.discard(worker)

    def claims(self, rules: JobRules | None = None) -> Claims:
        """Take jobs in batches, and run them yourself: ``async with queue.claims() as claims``.

        ``rules`` apply to every job, whatever its name; None: each registered job has its own, others are unknown.
        Raises ConfigError.
        """
        if rules is not None:
            if not isinstance(rules, JobRules):
                raise ConfigError(f"claims of queue {self.name!r}: rules is {rules!r}; give a pelton.JobRules(...)")
            rules.check(f"claims of queue {self.name!r}")
        return Claims(self._context, rules)

    def stop(self) -> None:
        """Stop every :meth:`work` of this queue gracefully; each returns when its jobs are finished or handed back.

        From any thread.
        """
        for worker in list(self._workers):
            worker.home.call(worker.stop)

    # --- jobs of other queues

    async def move(self, job_id: str, queue: Queue) -> JobHandle[Any]:
        """Move a job that no worker holds to another queue of the same opening; return its handle there.

        It keeps its arguments, its key and its time, and ends here as cancelled. Raises JobNotMovedError if it runs or
        has ended, JobNotFoundError, ConfigError.
        """
        if not isinstance(queue, Queue):
            raise ConfigError(f"queue {self.name!r}: move takes the other queue itself: await jet.queue({queue!r})")
        mover = Mover(self._context, self._steering, queue._context, queue._enqueuer, queue._steering)
        return await mover.move(checked_id(self.name, job_id))
