"""Emptying a queue, and removing it."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from pelton.api import NotFoundError, QueueInUseError, StreamNotFoundError
from pelton.queue.control.withdrawal import Withdrawal

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.inspect.views import FoundJob, JobViews
    from pelton.queue.model.job_filter import JobFilter

_REASON: Final = "the queue was purged"


class Removal:
    """Removes the jobs of one queue, or all of it."""

    def __init__(self, queue: QueueContext, views: JobViews) -> None:
        self._queue = queue
        self._views = views
        self._withdrawal = Withdrawal(queue)

    async def purge(self, wanted: JobFilter) -> int:
        """Cancel the jobs that are stored now and that no worker holds; return how many that were."""
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        last, unlisted = (await stream.info()).state.last_seq, await self._queue.stats.unlisted()
        ended = 0
        batch: list[FoundJob] = []
        async with aclosing(self._views.jobs(wanted)) as jobs:
            async for found in jobs:
                if found.stored.seq > last:
                    break
                is_free = self._queue.names.is_free(found.stored.subject)
                may_run = is_free and unlisted.may_have(self._queue.names.lane(found.stored.subject), found.stored.seq)
                if found.is_taken or may_run:
                    continue
                batch.append(found)
                if len(batch) == self._withdrawal.at_once:
                    ended += await self._withdrawal.cancel_all(batch, _REASON)
                    batch = []
        return ended + (await self._withdrawal.cancel_all(batch, _REASON) if batch else 0)

    async def delete(self, *, force: bool) -> None:
        """Remove all streams of the queue that are left. Raises QueueInUseError if jobs run."""
        if not force and (running := await self._running()):
            raise QueueInUseError(self._queue.name, running)
        names = self._queue.names
        # The jobs last: should this be interrupted, the queue is still there and can be deleted again.
        for name in (*(side for side, _ in names.sides), names.jobs):
            with suppress(StreamNotFoundError):
                await self._queue.jet.delete_stream(name)

    async def _running(self) -> int:
        now = self._queue.clock.now()
        try:
            underway, unlisted = await self._queue.stats.underway(), await self._queue.stats.unlisted()
        except NotFoundError:
            # An earlier call has deleted it, or was interrupted.
            return 0
        # Those that were handed back, or wait for another attempt, do not run.
        held = sum(not entry.waits and (not entry.due or entry.due > now) for entry in underway.values())
        return held + unlisted.number
