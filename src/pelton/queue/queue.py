"""A work queue on streams: the face of its rooms, and jobs that are due again and again.

Nothing here knows a backend: a queue is four streams and one or two consumers (``model/naming.py``), so it runs
wherever streams do. An exclusive queue has two consumers: jobs with a key are delivered at most one per key at
a time (the engine's ``max_ack_pending_per_subject``; a key is a subject), jobs without a key are free.

**Jobs that are due again and again: by cron, or at intervals.** A schedule is a message of the jobs' stream, which
stores a job at each time, whatever processes run: there is no leader, and it fires once, also for times at which the
store was closed. It is found by its name, and replaced only under the condition that nobody has changed it since, so
any number of processes may define it. A paused one is kept in the control stream instead. Whether a job is skipped,
because an earlier one has not ended, is decided by the worker that takes it (``scan.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    ConfigError,
    MessageNotFoundError,
    Outgoing,
    QueueNotFoundError,
    StoredMessage,
    StoreReadOnlyError,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.build import schedule_headers
from pelton.api.times import Seconds
from pelton.api.tracing import Replacement
from pelton.jet.stream import last_of, subjects_of
from pelton.jet.streams import StoreTime
from pelton.queue.enqueuer import Enqueuer, QueueWithJobs
from pelton.queue.flows import Flows, QueueWithFlows
from pelton.queue.job import Job, JobCall, JobDefinition, JobHandle, JobQueue, job_name
from pelton.queue.job_message import JobMessage, cron_leaf
from pelton.queue.job_source import ConsumerJobSource
from pelton.queue.keyed_source import KeyedJobSource, KeyedStats
from pelton.queue.model.naming import QueueNames, key_part
from pelton.queue.model.options import (
    PLAIN,
    JobOptions,
    JobRules,
    checked_id,
    checked_text,
    next_due,
    schedule_text_of,
    seconds,
    timetable_of,
    whole,
)
from pelton.queue.model.states import Envelope, JobSchedule, LastRun, Timetable
from pelton.queue.queue_views import QueueWithViews
from pelton.queue.reactor import Reactors
from pelton.queue.registry import JobRegistry, Jobs, QueueContext, given_jobs
from pelton.queue.run.claims import Claims
from pelton.queue.run.slots import WorkerSettings
from pelton.queue.run.worker import Worker
from pelton.queue.scan import BegunJobs, ConsumerStats
from pelton.queue.setup import (
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
from pelton.queue.steering import Mover, QueueWithSteering, Steering

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.job_source import JobSource
    from pelton.queue.registry import QueueStats


_encode: Final = msgspec.json.Encoder().encode
_envelope: Final = msgspec.json.Decoder(Envelope).decode
_last_run: Final = msgspec.json.Decoder(LastRun).decode


class QueueWithSchedules:
    """A queue whose jobs are enqueued again and again."""

    name: str
    _context: QueueContext
    _enqueuer: Enqueuer

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
        return await self._define_schedule(timetable, call, JobOptions(key=key, priority=priority, tenant=tenant))

    async def run_schedule(self, name: str) -> JobHandle[Any]:
        """Enqueue the job of a schedule now, whether it is due or not; its times stay as they are.

        Raises ConfigError if there is no such schedule.
        """
        leaf = self._schedule_leaf(name)
        stored = await self._active_schedule(leaf) or await self._paused_schedule(leaf)
        if stored is None:
            raise self._no_schedule(name)
        schedule = await self._to_schedule(stored)
        options = JobOptions(key=schedule.key, priority=schedule.priority, tenant=schedule.tenant)
        return (await self._enqueuer.enqueue_many((JobCall(schedule.job, bytes(schedule.args), options),)))[0]

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return False if there was none. Jobs that it has enqueued stay. Raises ConfigError."""
        leaf = self._schedule_leaf(name)
        gone = await self._remove_message(await self._jobs_stream(), await self._active_schedule(leaf))
        was_paused = await self._remove_message(await self._control_stream(), await self._paused_schedule(leaf))
        await self._remove_message(
            await self._control_stream(),
            await last_of(await self._control_stream(), self._context.names.last_run(leaf)),
        )
        return gone or was_paused

    async def schedules(self) -> list[JobSchedule]:
        """Return all schedules by name, with the next time each is due, and its last run."""
        names, by_name = self._context.names, dict[str, StoredMessage]()
        paused = await self._control_stream(), names.paused_schedule("*")
        # In this order: one whose pausing, or resuming, was interrupted is not paused.
        for stream, wanted in (paused, (await self._jobs_stream(), names.crons)):
            # By their subjects: reading on from message to message would pass all jobs that wait.
            for subject in await subjects_of(stream, wanted):
                if (stored := await last_of(stream, subject)) is not None:
                    by_name[_name(stored)] = stored
        return [await self._to_schedule(by_name[name]) for name in sorted(by_name)]

    async def pause_schedule(self, name: str) -> None:
        """Enqueue no more jobs of a schedule, until :meth:`resume_schedule`. Raises ConfigError if there is none."""
        leaf = self._schedule_leaf(name)
        stored = await self._active_schedule(leaf)
        if stored is None:
            if await self._paused_schedule(leaf) is None:
                raise self._no_schedule(name)
            return
        kept = Outgoing(self._context.names.paused_schedule(leaf), stored.data)
        await self._context.backend.withdraw(self._context.names.jobs, {stored.seq: Replacement((kept,))})

    async def resume_schedule(self, name: str) -> None:
        """Enqueue jobs of a paused schedule again, from its next time on. Raises ConfigError if there is none."""
        leaf = self._schedule_leaf(name)
        paused = await self._paused_schedule(leaf)
        if await self._active_schedule(leaf) is None:
            if paused is None:
                raise self._no_schedule(name)
            with suppress(WrongLastSequenceError):
                # Another process has resumed it.
                await self._publish_schedule(leaf, _envelope(paused.data), 0)
        await self._remove_message(await self._control_stream(), paused)

    # --- storing

    async def _define_schedule(self, timetable: Timetable, call: JobCall, options: JobOptions) -> JobSchedule:
        """Store a schedule, unless there is the same; one that is paused stays so. Raises ConfigError."""
        JobMessage(self._context.names, call.job, exclusive=self._context.exclusive).check(options)
        leaf = cron_leaf(timetable.name)
        envelope = Envelope(
            call.job,
            msgspec.Raw(call.args),
            options.key,
            timetable=timetable,
            priority=options.priority,
            tenant=options.tenant,
        )
        data = _encode(envelope)
        while True:
            stored, paused = await self._active_schedule(leaf), await self._paused_schedule(leaf)
            present = stored or paused
            if present is None or present.data != data:
                try:
                    await self._store_schedule(leaf, envelope, None if stored is None else stored.seq, paused)
                except WrongLastSequenceError:
                    # Another process has changed it.
                    continue
                present = await self._active_schedule(leaf) or await self._paused_schedule(leaf)
            if present is not None:
                return await self._to_schedule(present)

    async def _store_schedule(
        self, leaf: str, envelope: Envelope, seen: int | None, paused: StoredMessage | None
    ) -> None:
        if seen is None and paused is not None:
            expected = {headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(paused.seq)}
            await self._context.backend.publish(
                self._context.names.paused_schedule(leaf), _encode(envelope), headers.encode(expected)
            )
            return
        await self._publish_schedule(leaf, envelope, seen or 0)

    async def _publish_schedule(self, leaf: str, envelope: Envelope, seen: int) -> None:
        assert envelope.timetable is not None
        key = key_part(envelope.key, envelope.tenant, exclusive=self._context.exclusive)
        target, zone = self._context.names.place(key, leaf, envelope.priority), envelope.timetable.timezone or None
        fields = schedule_headers(schedule_text_of(envelope.timetable), target, zone, None, None, replace=False)
        fields[headers.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(seen)
        block = headers.encode({name: value for name, value in fields.items() if value is not None})
        await self._context.backend.publish(self._context.names.cron(leaf), _encode(envelope), block)

    async def _remove_message(self, stream: Stream, stored: StoredMessage | None) -> bool:
        if stored is None:
            return False
        with suppress(MessageNotFoundError):
            await stream.delete_message(stored.seq)
        return True

    # --- looking

    async def _jobs_stream(self) -> Stream:
        return await self._context.jet.stream(self._context.names.jobs)

    async def _control_stream(self) -> Stream:
        return await self._context.side_to_read(self._context.names.control)

    async def _active_schedule(self, leaf: str) -> StoredMessage | None:
        return await last_of(await self._jobs_stream(), self._context.names.cron(leaf))

    async def _paused_schedule(self, leaf: str) -> StoredMessage | None:
        return await last_of(await self._control_stream(), self._context.names.paused_schedule(leaf))

    async def _to_schedule(self, stored: StoredMessage) -> JobSchedule:
        envelope = _envelope(stored.data)
        timetable = envelope.timetable
        assert timetable is not None
        paused = not self._context.names.is_cron(stored.subject)
        last = await last_of(await self._control_stream(), self._context.names.last_run(cron_leaf(timetable.name)))
        run = LastRun(id="", finished_at=0) if last is None else _last_run(last.data)
        return JobSchedule(
            **msgspec.structs.asdict(timetable),
            job=envelope.job,
            args=envelope.args,
            key=envelope.key,
            priority=envelope.priority,
            tenant=envelope.tenant,
            paused=paused,
            next_due=0 if paused else next_due(timetable, stored.time_ns, self._context.clock.now()),
            last_job=run.id,
            last_finished_at=run.finished_at,
        )

    def _schedule_leaf(self, name: str) -> str:
        return cron_leaf(checked_text(f"queue {self.name!r}: the name of a schedule", name))

    def _no_schedule(self, name: str) -> ConfigError:
        return ConfigError(f"queue {self.name!r} has no schedule {name!r}: see schedules(), or define it first")


def _name(stored: StoredMessage) -> str:
    timetable = _envelope(stored.data).timetable
    return timetable.name if timetable is not None else ""


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
        other=lambda name: look_at_queue(jet, QueueNames(name)),
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

        Signals are handled on the main thread, if they have no other handler, and none if the program handles SIGTERM:
        in a web server, call :meth:`stop`. ``handle_signals=False`` handles none.

        Runs up to ``concurrency`` jobs at a time, async ones on this event loop, others each on a thread. When the
        worker stops, running jobs are notified (``JobContext.stopping``) and have ``grace`` seconds to finish; then
        async ones are cancelled and handed back, which is no attempt; threads are waited for. Each call is a worker of
        its own. Raises ConfigError.
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
        worker = Worker(self._context, settings, partial(Reactors, self._context, self._steering))
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

    async def move(self, job_id: str, queue: Queue) -> JobHandle[Any]:
        """Move a job that no worker holds to another queue of the same opening; return its handle there.

        It keeps its arguments, its key and its time, and ends here as cancelled. Raises JobNotMovedError if it runs or
        has ended, JobNotFoundError, ConfigError.
        """
        if not isinstance(queue, Queue):
            raise ConfigError(f"queue {self.name!r}: move takes the other queue itself: await jet.queue({queue!r})")
        mover = Mover(self._context, self._steering, queue._context, queue._enqueuer, queue._steering)
        return await mover.move(checked_id(self.name, job_id))
