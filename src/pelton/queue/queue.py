"""A work queue on streams: the face of its rooms.

Nothing here knows a backend: a queue is four streams and one or two consumers (``model/naming.py``), so it runs
wherever streams do. An exclusive queue has two consumers: jobs with a key are delivered at most one per key at
a time (the engine's ``max_ack_pending_per_subject``; a key is a subject), jobs without a key are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pelton.api import ConfigError
from pelton.api.times import Seconds
from pelton.queue.backing.setup import queue_settings
from pelton.queue.control.schedules import QueueWithSchedules, Schedules
from pelton.queue.control.steering import Mover, QueueWithSteering, Steering
from pelton.queue.define.job import Job, JobHandle, JobQueue, job_name
from pelton.queue.define.registry import JobRegistry, Jobs, given_jobs
from pelton.queue.enqueue.enqueuer import Enqueuer, QueueWithJobs
from pelton.queue.flow.flows import Flows
from pelton.queue.flow.queue_flows import QueueWithFlows
from pelton.queue.inspect.dead_letters import DeadLetters
from pelton.queue.inspect.queue_views import History, QueueWithViews
from pelton.queue.inspect.views import JobViews
from pelton.queue.model.checks import checked_id, checked_text
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import JobRules
from pelton.queue.opening import open_queue
from pelton.queue.run.claims import Claims
from pelton.queue.run.slots import worker_settings
from pelton.queue.run.worker import Worker

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.queue.define.queue_context import QueueContext


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
        self._views = JobViews(context)
        self._steering = Steering(context, self._views)
        self._schedules = Schedules(context)
        self._enqueuer = Enqueuer(context, self._steering)
        self._flows = Flows(context, self._steering)
        self._history = History(context)
        self._dead_letters = DeadLetters(context, self._enqueuer)
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

    def _as_job_queue(self) -> JobQueue:
        return self

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
        ends = (until_empty, until_idle)
        probes = self._context.probes
        settings = worker_settings(
            self.name, concurrency, ends, handle_signals, grace, max_jobs, probes.on_error, probes.on_idle
        )
        self._check_loop()
        worker = Worker(self._context, settings, self._flows.reactor)
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
        mover = Mover(self._context, self._views, queue._context, queue._enqueuer, queue._steering)
        return await mover.move(checked_id(self.name, job_id))
