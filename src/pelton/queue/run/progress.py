"""What a job leaves while it runs: its progress, told at most twice a second; and how all of it is removed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import PeltonError, headers
from pelton.queue.model.states import JobProgress

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext

_log: Final = logging.getLogger("pelton.queue")
_encode: Final = msgspec.json.Encoder().encode
_BETWEEN_S: Final = 0.5
_LONGEST_NOTE: Final = 1024
# Should nobody remove it: the worker of its job died, and the job was cancelled.
_TTL: Final = headers.encode({headers.TTL: "168h"})
_MOST_AT_ONCE: Final = 1000


class ProgressNotes:
    """The progress of one attempt. The last one counts: of what is told too fast, the rest is never stored."""

    is_used: bool

    __slots__ = ("_is_closed", "_latest", "_loop", "_queue", "_subject", "_task", "is_used")

    def __init__(self, queue: QueueContext, job_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._subject = queue.names.progress_subject(job_id)
        self._loop = loop
        self._latest: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_used = False

    def tell(self, fraction: float, note: str) -> None:
        """Store progress soon; from any thread."""
        self._latest = _encode(JobProgress(fraction, note[:_LONGEST_NOTE], self._queue.clock.now()))
        if not self.is_used or self._task is None:
            self.is_used = True
            with suppress(RuntimeError):
                # The loop is closed: nobody waits for this job either.
                self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Store nothing more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None and self._latest is not None and not self._is_closed:
            self._task = self._queue.runtime.spawn(self._store(), f"pelton {self._queue.name} progress")

    async def _store(self) -> None:
        while self._latest is not None:
            data, self._latest = self._latest, None
            try:
                await self._queue.backend.publish(self._subject, data, _TTL)
            except PeltonError as error:
                _log.debug(
                    "progress of queue %r is not stored: %s", self._queue.name, error, extra={"queue": self._queue.name}
                )
            await self._queue.clock.sleep(_BETWEEN_S)
        self._task = None
        # A thread may have told something after the look, and have seen the task.
        self._begin()


class Sweeper:
    """Removes what jobs have left that have ended. What it misses is removed by its age."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._todo: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def sweep(self, job_id: str) -> None:
        """Remove the steps and the progress of a job, soon."""
        if len(self._todo) < _MOST_AT_ONCE:
            self._todo[job_id] = None
        if self._task is None:
            self._task = self._queue.runtime.spawn(self._remove(), f"pelton {self._queue.name} sweeper")

    async def close(self) -> None:
        """Wait until all is removed."""
        while self._task is not None:
            await self._task

    async def _remove(self) -> None:
        try:
            stream = await self._queue.jet.stream(self._queue.names.running)
            while self._todo:
                job_id = next(iter(self._todo))
                del self._todo[job_id]
                await stream.purge(filter=self._queue.names.traces_of(job_id))
        except PeltonError as error:
            _log.debug(
                "what jobs of queue %r have left is not removed: %s",
                self._queue.name,
                error,
                extra={"queue": self._queue.name},
            )
            self._todo.clear()
        finally:
            self._task = None
