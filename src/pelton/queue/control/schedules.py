"""Jobs that are due again and again: by cron, or at intervals.

Design: A schedule is a message of the jobs' stream, which stores a job at each time, whatever processes run: there is
no leader, and it fires once, also for times at which the store was closed. It is found by its name, and replaced only
under the condition that nobody has changed it since, so any number of processes may define it. A paused one is kept in
the control stream instead. Whether a job is skipped, because an earlier one has not ended, is decided by the worker
that takes it (``backing/scan.py``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import (
    ConfigError,
    MessageNotFoundError,
    MsgWithdraw,
    Outgoing,
    StoredMessage,
    WrongLastSequenceError,
    headers,
)
from pelton.api.timing import schedule_headers
from pelton.jet.stream import subjects_of
from pelton.queue.enqueue.job_message import JobMessage, cron_leaf
from pelton.queue.model.checks import checked_text
from pelton.queue.model.naming import key_part
from pelton.queue.model.options import JobOptions, next_due, schedule_text_of
from pelton.queue.model.states import Envelope, JobSchedule, LastRun, Timetable

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.define.job import JobCall
    from pelton.queue.define.queue_context import QueueContext

_encode: Final = msgspec.json.Encoder().encode
_envelope: Final = msgspec.json.Decoder(Envelope).decode
_last_run: Final = msgspec.json.Decoder(LastRun).decode


class Schedules:
    """The schedules of one queue."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._names = queue.names

    async def define(self, timetable: Timetable, call: JobCall, options: JobOptions) -> JobSchedule:
        """Store a schedule, unless there is the same; one that is paused stays so. Raises ConfigError."""
        JobMessage(self._names, call.job, exclusive=self._queue.exclusive).check(options)
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
            stored, paused = await self._stored(leaf), await self._paused(leaf)
            found = stored or paused
            if found is None or found.data != data:
                try:
                    await self._store(leaf, envelope, None if stored is None else stored.seq, paused)
                except WrongLastSequenceError:
                    # Another process has changed it.
                    continue
                found = await self._stored(leaf) or await self._paused(leaf)
            if found is not None:
                return await self._shown(found)

    async def remove(self, name: str) -> bool:
        """Remove a schedule; return whether there was one. Jobs that are due stay."""
        leaf = self._leaf(name)
        gone = await self._remove(await self._jobs(), await self._stored(leaf))
        was_paused = await self._remove(await self._control(), await self._paused(leaf))
        await self._remove(await self._control(), await self._last(await self._control(), self._names.last_run(leaf)))
        return gone or was_paused

    async def pause(self, name: str) -> None:
        """Let no more jobs of a schedule become due. Raises ConfigError if there is none."""
        leaf = self._leaf(name)
        stored = await self._stored(leaf)
        if stored is None:
            if await self._paused(leaf) is None:
                raise self._missing(name)
            return
        kept = Outgoing(self._names.paused_schedule(leaf), stored.data)
        if MsgWithdraw in self._queue.backend.planning.own_verbs:
            await self._queue.backend.call(MsgWithdraw(stream=self._names.jobs, messages={stored.seq: (kept,)}))
            return
        await self._queue.backend.publish(kept.subject, kept.data)
        await self._remove(await self._jobs(), stored)

    async def resume(self, name: str) -> None:
        """Let jobs of a paused schedule become due again. Raises ConfigError if there is no such schedule."""
        leaf = self._leaf(name)
        paused = await self._paused(leaf)
        if await self._stored(leaf) is None:
            if paused is None:
                raise self._missing(name)
            with suppress(WrongLastSequenceError):
                # Another process has resumed it.
                await self._publish(leaf, _envelope(paused.data), 0)
        await self._remove(await self._control(), paused)

    async def get(self, name: str) -> JobSchedule:
        """Return a schedule. Raises ConfigError if there is none."""
        leaf = self._leaf(name)
        found = await self._stored(leaf) or await self._paused(leaf)
        if found is None:
            raise self._missing(name)
        return await self._shown(found)

    async def all(self) -> list[JobSchedule]:
        """Return all schedules, by name."""
        found = {_name(stored): stored async for stored in self._each(self._names.paused_schedule("*"))}
        # One whose pausing, or resuming, was interrupted is not paused.
        found |= {_name(stored): stored async for stored in self._each(self._names.crons)}
        return [await self._shown(found[name]) for name in sorted(found)]

    # --- storing

    async def _store(self, leaf: str, envelope: Envelope, seen: int | None, paused: StoredMessage | None) -> None:
        if seen is None and paused is not None:
            expected = {headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(paused.seq)}
            await self._queue.backend.publish(
                self._names.paused_schedule(leaf), _encode(envelope), headers.encode(expected)
            )
            return
        await self._publish(leaf, envelope, seen or 0)

    async def _publish(self, leaf: str, envelope: Envelope, seen: int) -> None:
        assert envelope.timetable is not None
        key = key_part(envelope.key, envelope.tenant, exclusive=self._queue.exclusive)
        target, zone = self._names.place(key, leaf, envelope.priority), envelope.timetable.timezone or None
        fields = schedule_headers(schedule_text_of(envelope.timetable), target, zone, None, None, replace=False)
        fields[headers.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(seen)
        block = headers.encode({name: value for name, value in fields.items() if value is not None})
        await self._queue.backend.publish(self._names.cron(leaf), _encode(envelope), block)

    async def _remove(self, stream: Stream, stored: StoredMessage | None) -> bool:
        if stored is None:
            return False
        with suppress(MessageNotFoundError):
            await stream.delete_message(stored.seq)
        return True

    # --- looking

    async def _jobs(self) -> Stream:
        return await self._queue.jet.stream(self._names.jobs)

    async def _control(self) -> Stream:
        return await self._queue.side_to_read(self._names.control)

    async def _stored(self, leaf: str) -> StoredMessage | None:
        return await self._last(await self._jobs(), self._names.cron(leaf))

    async def _paused(self, leaf: str) -> StoredMessage | None:
        return await self._last(await self._control(), self._names.paused_schedule(leaf))

    async def _last(self, stream: Stream, subject: str) -> StoredMessage | None:
        try:
            return await stream.get_last_message(subject)
        except MessageNotFoundError:
            return None

    async def _each(self, wanted: str) -> AsyncGenerator[StoredMessage]:
        stream = await (self._jobs() if wanted == self._names.crons else self._control())
        # By their subjects: reading on from message to message would pass all jobs that wait.
        for subject in sorted(await subjects_of(stream, wanted)):
            if (stored := await self._last(stream, subject)) is not None:
                yield stored

    async def _shown(self, stored: StoredMessage) -> JobSchedule:
        envelope = _envelope(stored.data)
        timetable = envelope.timetable
        assert timetable is not None
        paused = not self._names.is_cron(stored.subject)
        last = await self._last(await self._control(), self._names.last_run(cron_leaf(timetable.name)))
        run = LastRun(id="", finished_at=0) if last is None else _last_run(last.data)
        return JobSchedule(
            **msgspec.structs.asdict(timetable),
            job=envelope.job,
            args=envelope.args,
            key=envelope.key,
            priority=envelope.priority,
            tenant=envelope.tenant,
            paused=paused,
            next_due=0 if paused else next_due(timetable, stored.time_ns, self._queue.clock.now()),
            last_job=run.id,
            last_finished_at=run.finished_at,
        )

    def _leaf(self, name: str) -> str:
        return cron_leaf(checked_text(f"queue {self._queue.name!r}: the name of a schedule", name))

    def _missing(self, name: str) -> ConfigError:
        return ConfigError(f"queue {self._queue.name!r} has no schedule {name!r}: see schedules(), or define it first")


def _name(stored: StoredMessage) -> str:
    timetable = _envelope(stored.data).timetable
    return timetable.name if timetable is not None else ""
