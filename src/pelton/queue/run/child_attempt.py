"""An attempt whose function runs in a child process: its call, its time, and what the child tells meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from pelton.api import JobTimeoutError
from pelton.queue.run.children import ChildTimeout, JobChildren, child_call

if TYPE_CHECKING:
    from pelton.queue.define.job import Job
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.model.states import JobProgress
    from pelton.queue.run.context import JobContext


class ChildHolder(Protocol):
    """The attempt that is called in a child. Its context is gone when it has ended."""

    context: JobContext | None
    records: AttemptRecords

    async def prepare(self) -> None:
        """Do what takes time before the job begins."""
        ...

    def begin(self) -> None:
        """Note that its function is called now. Raises CancelledError, JobCancelledError if it must not be."""
        ...

    def left(self) -> float:
        """Return for how many seconds the job is held if its lease is not extended."""
        ...


class ChildAttempt:
    """Runs one attempt of a job in a child of its worker; its context hears what the child emits, and how far it is."""

    __slots__ = ("_children", "_holder", "_job", "_queue", "_worker")

    def __init__(self, children: JobChildren, queue: str, worker: str, job: Job[Any, Any], holder: ChildHolder) -> None:
        self._children = children
        self._queue = queue
        self._worker = worker
        self._job = job
        self._holder = holder

    async def run(self, **_arguments: Any) -> object:
        """Return the job's result, still encoded: the child decodes its arguments by itself.

        Raises what the job raises, JobCrashedError, JobTimeoutError.
        """
        job, records, limit = self._job, self._holder.records, self._job.rules.timeout
        call = child_call(self._queue, self._worker, job, records)
        loop = asyncio.get_running_loop()

        def begin() -> float:
            asyncio.run_coroutine_threadsafe(self._holder.prepare(), loop).result()
            self._holder.begin()
            return self._holder.left()

        try:
            reply = await self._children.run(call, self._pass_on, begin, limit)
        except ChildTimeout:
            assert limit is not None, "or there is none"
            raise JobTimeoutError(records.id, job.name, limit) from None
        if self._holder.context is not None:
            self._holder.context.add_emitted(reply.emitted)
        return reply.result

    def _pass_on(self, told: JobProgress) -> None:
        """Store the progress that a child tells; on its thread."""
        if self._holder.context is not None:
            self._holder.context.progress(told.fraction, told.note)
