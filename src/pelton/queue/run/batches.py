"""Batches of one worker: jobs that have a slot wait for each other, and share a call.

Each job stays what it is: it holds its own lease, is cancelled, timed out and settled by itself. A batch has at most as
many jobs as the worker has slots. A job that is cancelled before its batch starts leaves it; a call is cancelled when
none of its jobs waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pelton.api import JobCancelledError, JobError
from pelton.runtime import Signal, is_interrupt

if TYPE_CHECKING:
    from pelton.queue.define.registry import BatchJob
    from pelton.runtime import Runtime


class BatchedJob(Protocol):
    """A job of a batch, before and as it begins."""

    async def prepare(self) -> None:
        """Do what takes time before the job begins."""
        ...

    def begin(self) -> None:
        """Note that its function is called now. Raises CancelledError, JobCancelledError if it must not be."""
        ...


class JobBatch:
    """Items that are waited for together."""

    def __init__(self) -> None:
        self.entries: list[tuple[BatchedJob, Any, asyncio.Future[Any]]] = []
        self.full: Signal = Signal()
        self.task: asyncio.Task[None] | None = None

    def left(self, _: object) -> None:
        """End the call if nobody waits for it."""
        if self.task is not None and all(future.cancelled() for _, _, future in self.entries):
            self.task.cancel()


class JobBatches:
    """The batches that one worker gathers and runs; ``joined`` is called whenever a job waits for one to be full."""

    def __init__(self, runtime: Runtime, limit: int, joined: Callable[[], None] | None = None) -> None:
        self._runtime = runtime
        self._limit = limit
        self._joined = joined
        # Those that can still be joined.
        self._open: dict[str, JobBatch] = {}

    async def run(self, job: BatchJob[Any, Any], member: BatchedJob, item: Any) -> Any:
        """Run a job in the next batch; returns its result, or raises its error."""
        batch = self._open.get(job.name)
        if batch is None:
            batch = self._open[job.name] = JobBatch()
            batch.task = self._runtime.spawn(self._gather(job, batch), f"pelton batch of {job.name}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch.entries.append((member, item, future))
        if len(batch.entries) >= min(job.size, self._limit):
            del self._open[job.name]
            batch.full.notify()
        elif self._joined is not None:
            self._joined()
        future.add_done_callback(batch.left)
        return await future

    @property
    def gathered(self) -> int:
        """How many jobs wait for their batches to be full."""
        return sum(not future.done() for batch in self._open.values() for _, _, future in batch.entries)

    def run_gathered(self) -> None:
        """Run the batches that are not full: nothing else will come."""
        while self._open:
            self._open.popitem()[1].full.notify()

    async def _gather(self, job: BatchJob[Any, Any], batch: JobBatch) -> None:
        try:
            await batch.full.wait_at_most(self._runtime.clock, job.wait, 0)
        finally:
            if self._open.get(job.name) is batch:
                del self._open[job.name]
        await asyncio.gather(*(member.prepare() for member, _, future in batch.entries if not future.done()))
        entries = [entry for entry in batch.entries if _begins(*entry)]
        if not entries:
            return
        try:
            found = await job.function([item for _, item, _ in entries])
            results = _checked(job.name, found, len(entries))
        except asyncio.CancelledError:
            for _, _, future in entries:
                future.cancel()
            raise
        except BaseException as error:  # whatever a job raises is its outcome
            if is_interrupt(error):
                raise
            results = [error] * len(entries)
        for (_, _, future), result in zip(entries, results, strict=True):
            if future.done():
                continue
            if isinstance(result, StopIteration):
                # No future holds one.
                future.set_exception(JobError(f"job {job.name!r}: its function returned {result!r}"))
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


def _begins(member: BatchedJob, _: Any, future: asyncio.Future[Any]) -> bool:
    """Begin a job of a batch, unless it has left it or must not start any more."""
    if future.done():
        return False
    try:
        member.begin()
    except asyncio.CancelledError:
        future.cancel()
    except JobCancelledError as cancelled:
        future.set_exception(cancelled)
    return not future.done()


def _checked(name: str, found: Any, count: int) -> list[Any]:
    """Return a result for each job. Raises JobError."""
    if found is None:
        return [None] * count
    if not isinstance(found, list | tuple) or len(found) != count:
        what = f"{len(found)} results" if isinstance(found, list | tuple) else f"{found!r:.80}"
        raise JobError(f"job {name!r}: its function was given {count} items, and returned {what}: return one for each")
    return list(found)
