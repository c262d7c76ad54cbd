"""Jobs that are due again and again: by cron, or at intervals.

Design: A schedule is a message of the jobs' stream, which stores a job at each time, whatever processes run: there is
no leader, and it fires once, also for times at which the store was closed. It is found by its name, and replaced only
under the condition that nobody has changed it since, so any number of processes may define it. A paused one is kept in
the control stream instead. Whether a job is skipped, because an earlier one has not ended, is decided by the worker
that takes it (``backing/scan.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    ConfigError,
    MessageNotFoundError,
    Outgoing,
    StoredMessage,
    WrongLastSequenceError,
    headers,
)
from pelton.api.build import schedule_headers
from pelton.api.times import Seconds
from pelton.api.tracing import Replacement
from pelton.jet.stream import last_of, subjects_of
from pelton.queue.enqueue.job import JobCall, JobDefinition, JobHandle
from pelton.queue.enqueue.job_message import JobMessage, cron_leaf
from pelton.queue.model.naming import key_part
from pelton.queue.model.options import PLAIN, JobOptions, checked_text, next_due, schedule_text_of, timetable_of
from pelton.queue.model.states import Envelope, JobSchedule, LastRun, Timetable

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.enqueue.enqueuer import Enqueuer
    from pelton.queue.enqueue.registry import QueueContext

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
