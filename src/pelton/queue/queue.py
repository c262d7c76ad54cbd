"""A work queue on streams: the face of its rooms.

Nothing here knows a backend: a queue is four streams and one or two consumers (``model/naming.py``), so it runs
wherever streams do. An exclusive queue has two consumers: jobs with a key are delivered at most one per key at
a time (the engine's ``max_ack_pending_per_subject``; a key is a subject), jobs without a key are free.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from pelton.api import ConfigError, Outgoing, PubAck, WrongLastSequenceError
from pelton.api.times import Seconds
from pelton.queue.backing.setup import queue_settings
from pelton.queue.control.schedules import Schedules
from pelton.queue.control.steering import Drain, Limiting, Mover, Removal, Steering, Weighing
from pelton.queue.define.handle import JobHandle
from pelton.queue.define.job import Job, JobCall, JobDefinition, JobQueue, Resolved, job_name
from pelton.queue.define.registry import JobRegistry, Jobs, given_jobs
from pelton.queue.enqueue.enqueuer import Enqueuer, QueueWithOptions
from pelton.queue.flow.flows import Flows
from pelton.queue.flow.queue_flows import QueueWithFlows
from pelton.queue.inspect.dead_letters import DeadLetters
from pelton.queue.inspect.queue_views import History, QueueWithViews
from pelton.queue.inspect.views import JobViews
from pelton.queue.model.checks import checked_id, checked_text, seconds
from pelton.queue.model.limits import JobLimit, Rate, job_limit
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import PLAIN, JobOptions, JobRules, OptionFields, job_filter, job_options, timetable_of
from pelton.queue.model.states import JobSchedule
from pelton.queue.opening import open_queue
from pelton.queue.run.claims import Claims
from pelton.queue.run.slots import worker_settings
from pelton.queue.run.worker import Worker

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.ports import JobSource

P = ParamSpec("P")
R = TypeVar("R")


class Queue(QueueWithFlows, QueueWithViews):
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
        self._limiting = Limiting(context)
        self._weighing = Weighing(context)
        self._drain = Drain(context, self._steering)
        self._removal = Removal(context, self._views)
        self._schedules = Schedules(context)
        self._enqueuer = Enqueuer(context, self._steering)
        self._flows = Flows(context, self._steering, self._enqueuer.stored)
        self._history = History(context)
        self._dead_letters = DeadLetters(context, self._enqueuer)
        self._workers: set[Worker] = set()
        self._on_error: Callable[[str, BaseException], None] | None = None
        self._on_idle: Callable[[float], bool] | None = None

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

    def job_source(self, worker: str) -> JobSource:
        """Return the job source of the worker with that name; for the worker."""
        return self._context.source_for(worker)

    # --- jobs

    def _declare(self, function: Callable[..., Any], name: str) -> tuple[JobQueue | None, str]:
        what = f"queue {self.name!r}: a job's name"
        return self, checked_text(what, name) if name != "" else job_name(function)

    def _as_job_queue(self) -> JobQueue:
        return self

    def _add(self, job: Job[Any, Any]) -> None:
        self._context.jobs.add(job)

    @overload
    async def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...

    async def enqueue(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Put a job into the queue; returns when it is durable.

        ``job`` is one of this queue or of a `Jobs`, or the name of a job that other programs run: arguments of a job
        that this program does not know are given by name, and are checked by the worker. Options, such as ``key``,
        are given with :meth:`options`. Raises JobArgumentsError, DuplicateJobError, ConfigError.
        """
        return (await self.enqueue_many((self._enqueuer.call_of(job, args, kwargs, PLAIN),)))[0]

    def options(self, **options: Unpack[OptionFields]) -> QueueWithOptions:
        """Return the queue with options for what is enqueued: ``await queue.options(key="car1").enqueue(repair, ...)``.

        The options are those of `JobOptions`. Raises ConfigError.
        """
        return QueueWithOptions(self._enqueuer, job_options(f"queue {self.name!r}", options))

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]:
        """Put many jobs, ``calls`` made with ``job.bind``, into the queue, durable together and in order.

        Raises ConfigError.
        """
        return await self._enqueuer.enqueue_many(calls)

    def call_of(
        self, job: JobDefinition[Any, Any] | str, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions
    ) -> JobCall:
        """Return a checked call of a job, or of a job's name. Raises JobArgumentsError, ConfigError."""
        return self._enqueuer.call_of(job, args, kwargs, options)

    async def resolve(self, call: JobCall, refused: WrongLastSequenceError) -> Resolved:
        """Return the handle of the job that kept a unique one from being stored, or the message to store instead."""
        return await self._enqueuer.resolve(call, refused)

    def handle_of(self, call: JobCall, message: Outgoing, ack: PubAck) -> JobHandle[Any]:
        """Return the handle of a job that was stored."""
        return self._enqueuer.handle_of(call, message, ack)

    async def announce(self, calls: Sequence[JobCall], handles: Sequence[JobHandle[Any]]) -> None:
        """Tell those who listen to :meth:`events` that jobs were stored; for transactions."""
        await self._enqueuer.announce(calls, handles)

    def messages_of(self, calls: Sequence[JobCall]) -> list[Outgoing]:
        """Return the messages that put jobs into the queue; delays count from now. Raises ConfigError."""
        return self._enqueuer.messages_of(calls)

    def handle(self, job_id: str, job: str = "") -> JobHandle[Any]:
        """Return the handle of a job by its id; ``job``, its name, gives the result its type. Raises ConfigError."""
        return self._enqueuer.handle(checked_id(self.name, job_id), job)

    async def named(self, name: str, *, key: str = "", tenant: str = "") -> JobHandle[Any]:
        """Return the unfinished job of this ``id``, and ``key`` or ``tenant``. Raises JobNotFoundError, ConfigError."""
        return self.handle(await self._views.named(JobOptions(id=name, key=key, tenant=tenant)))

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
        settings = worker_settings(
            self.name, concurrency, ends, handle_signals, grace, max_jobs, self._on_error, self._on_idle
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

    @property
    def on_stored(self) -> Callable[[], Awaitable[None]] | None:
        """What is awaited after each enqueue; for tests."""
        return self._enqueuer.on_stored

    def observe(
        self,
        on_error: Callable[[str, BaseException], None] | None = None,
        on_stored: Callable[[], Awaitable[None]] | None = None,
        on_idle: Callable[[float], bool] | None = None,
    ) -> None:
        """Set what later workers call with a job's id and error, and what is awaited after each enqueue; for tests.

        ``on_idle`` is called by a worker that would end (``until_idle``), with the seconds until a job may start, or
        infinity: if it returns true, the worker looks again.
        """
        self._on_error, self._enqueuer.on_stored, self._on_idle = on_error, on_stored, on_idle

    # --- steering

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job, from any process, for a ``reason``; return False if it had ended otherwise.

        A job that no worker holds has ended as ``cancelled`` when this returns. One that runs is told: an async
        function is cancelled, and one on a thread sees ``JobContext.cancelled``; its outcome says how it ended. Raises
        JobNotFoundError, ConfigError.
        """
        return await self._steering.cancel(job_id, reason=reason)

    async def pause(self, *, key: str | None = None, job: str | None = None) -> None:
        """Start no more jobs, in any process, until :meth:`resume`: all, those of a key, or those of a job's name.

        Jobs that run are not affected, and jobs can be enqueued. Raises ConfigError.
        """
        await self._steering.pause(key, job)

    async def resume(self, *, key: str | None = None, job: str | None = None) -> None:
        """Start jobs again that :meth:`pause` has held up, with the same ``key`` or ``job``.

        They may start at once, also those that workers have met meanwhile. Raises ConfigError.
        """
        await self._steering.resume(key, job)

    async def drain(self, *, timeout: Seconds | None = None) -> None:
        """Pause the queue, and return when nobody holds a job: its workers finish theirs, and take nothing more.

        For a deployment, a backup, a migration; :meth:`resume` continues. On a cluster, jobs that claims hold are not
        waited for, and a worker that has died is for 30 s. Raises TimeoutError after ``timeout`` seconds, and leaves
        the queue paused; ConfigError.
        """
        limit = None if timeout is None else seconds(f"drain of queue {self.name!r}: timeout", timeout)
        await self._drain.drain(limit)

    async def purge(self, *, key: str | None = None, job: str | None = None, tenant: str | None = None) -> int:
        """Cancel all jobs that no worker holds: waiting, scheduled or retried; return how many were cancelled.

        Only those of a key, of a job's name, or of a tenant, if given. Jobs that run, that are enqueued meanwhile, and
        dead letters stay. On a cluster, jobs that were taken once and wait for a retry stay, too. Raises ConfigError.
        """
        return await self._removal.purge(job_filter(self.name, key, job, tenant=tenant))

    async def move(self, job_id: str, queue: Queue) -> JobHandle[Any]:
        """Move a job that no worker holds to another queue of the same opening; return its handle there.

        It keeps its arguments, its key and its time, and ends here as cancelled. Raises JobNotMovedError if it runs or
        has ended, JobNotFoundError, ConfigError.
        """
        if not isinstance(queue, Queue):
            raise ConfigError(f"queue {self.name!r}: move takes the other queue itself: await jet.queue({queue!r})")
        mover = Mover(self._context, self._views, queue._context, queue._enqueuer, queue._steering)
        return await mover.move(checked_id(self.name, job_id))

    async def delete(self, *, force: bool = False) -> None:
        """Remove the queue: its jobs, its history, its dead letters. Do not use it, or its handles, after that.

        With ``force``, also if workers hold jobs: their next operation raises. Raises QueueInUseError.
        """
        await self._removal.delete(force=force)

    # --- limits

    async def limit(
        self,
        *,
        job: str | None = None,
        per_key: bool = False,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> JobLimit:
        """Limit how many jobs run at a time, and how many start in a period, in all processes together.

        For all jobs, or those named ``job``; ``per_key``: for each key by itself (jobs without a key are not limited).
        Each of these has one limit, which a later call replaces; a job starts when all limits that it is under let it.
        At most ``concurrency`` jobs run at a time; starts keep to ``rate``: ``pelton.Rate(100, per=60, burst=10)``.
        Workers hear of it within moments, and keep it for what they start from then on. Raises ConfigError.
        """
        limit = job_limit(self.name, job, per_key, concurrency, rate)
        await self._limiting.set(limit)
        return limit

    async def unlimit(self, *, job: str | None = None, per_key: bool = False) -> bool:
        """Take away the limit with the same ``job`` and ``per_key``; return False if there was none.

        Raises ConfigError.
        """
        what = f"queue {self.name!r}: limit: job"
        return await self._limiting.remove("" if job is None else checked_text(what, job), bool(per_key))

    async def limits(self) -> list[JobLimit]:
        """Return all limits of the queue, in the order in which they were set."""
        return await self._limiting.all()

    # --- tenants

    async def weigh(self, tenant: str, weight: int) -> None:
        """Give a tenant ``weight`` turns (1 to 1,000; by default 1) while others have one; every worker hears of it.

        Jobs of tenants that have some waiting start in turns: see ``tenant`` of `JobOptions`. Raises ConfigError.
        """
        await self._weighing.set(tenant, weight)

    # --- schedules

    async def schedule(
        self,
        name: str,
        job: JobDefinition[Any, Any] | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        key: str = "",
        priority: int = 0,
        tenant: str = "",
        cron: str | None = None,
        timezone: str | None = None,
        every: Seconds | None = None,
        overlap: str = "skip",
    ) -> JobSchedule:
        """Enqueue a job again and again: by ``cron``, or ``every`` so many seconds (at least 1).

        ``args``, ``kwargs``, ``key``, ``priority`` and ``tenant`` are those of the job.
        ``cron`` has five fields, or six with the second first, in ``timezone`` (an IANA name; default: UTC). The job is
        enqueued once each time, however many processes run and call this; times at which nothing could fire are made up
        for once. ``overlap="skip"`` ends a job as cancelled that became due while an earlier one had not ended.
        The same definition changes nothing, another one replaces the schedule of that ``name``. Raises
        JobArgumentsError, ConfigError.
        """
        timetable = timetable_of(self.name, name, cron, timezone, every, overlap)
        call = self._enqueuer.call_of(job, args, dict(kwargs or {}), PLAIN)
        return await self._schedules.define(timetable, call, JobOptions(key=key, priority=priority, tenant=tenant))

    async def run_schedule(self, name: str) -> JobHandle[Any]:
        """Enqueue the job of a schedule now, whether it is due or not; its times stay as they are.

        Raises ConfigError if there is no such schedule.
        """
        schedule = await self._schedules.get(name)
        options = JobOptions(key=schedule.key, priority=schedule.priority, tenant=schedule.tenant)
        return (await self.enqueue_many((JobCall(schedule.job, bytes(schedule.args), options),)))[0]

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return False if there was none. Jobs that it has enqueued stay. Raises ConfigError."""
        return await self._schedules.remove(name)

    async def schedules(self) -> list[JobSchedule]:
        """Return all schedules by name, with the next time each is due, and its last run."""
        return await self._schedules.all()

    async def pause_schedule(self, name: str) -> None:
        """Enqueue no more jobs of a schedule, until :meth:`resume_schedule`. Raises ConfigError if there is none."""
        await self._schedules.pause(name)

    async def resume_schedule(self, name: str) -> None:
        """Enqueue jobs of a paused schedule again, from its next time on. Raises ConfigError if there is none."""
        await self._schedules.resume(name)
