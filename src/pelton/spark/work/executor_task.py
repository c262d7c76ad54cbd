"""A Spark task as a queue worker: claims a batch of jobs, runs the function on it, and settles each job by itself.

Design: a task is an ordinary worker. It opens the store in its own process, holds its jobs under leases that a thread
renews, and records their outcomes (``queue/run/``). Spark only places it, and ships the function. So a task that
fails, is killed or runs twice costs only time: its jobs are handed back, or are redelivered when their leases expire,
and what it settled stays settled. The function runs on a thread, so that the event loop stays free for the connection.

A transaction costs as much as dozens of short jobs. So while batches are short, a few of them are taken in one
transaction, and settled in one, with the next ones. As soon as a batch takes longer than :data:`_AHEAD_S`, what has
ended is settled, and what waits for it is given back: neither an outcome nor a job waits for slow ones.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from pelton.api import ConfigError
from pelton.queue.run.claims import Completed
from pelton.runtime import system_runtime
from pelton.spark.store_handle import open_store
from pelton.spark.work.job_rows import JobRows, ResultRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.api import StreamConfig
    from pelton.queue import ClaimedJob, Claims, JobRules
    from pelton.spark.options import StoreOptions

TALLY: Final = "task INT, completed BIGINT, failed BIGINT, lost BIGINT"
_TALLY: Final = pa.schema(
    [("task", pa.int32()), ("completed", pa.int64()), ("failed", pa.int64()), ("lost", pa.int64())]
)
_POLL_S: Final = 0.5
_AHEAD_S: Final = 0.02
_MOST_AHEAD: Final = 3
# A clock may not have moved during a batch.
_SHORTEST_S: Final = 1e-6
Kind = Literal["pandas", "arrow"]
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class TaskPlan:
    """The parameters of a call's tasks, pickled with the function. ``duration`` in seconds; None means no limit."""

    store: StoreOptions
    queue: str
    function: Callable[[Any], Any]
    kind: Kind
    rules: JobRules
    arguments: StructType | None
    results: StreamConfig | None
    subject: str | None
    claim: int
    until_empty: bool
    max_jobs: int | None
    duration: float | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work in one task; for ``mapInArrow``. The input only determines the number of tasks."""
        for _ in batches:
            pass
        context = TaskContext.get()
        tally = asyncio.run(_Task(self).work())
        task = context.partitionId() if context is not None else 0
        yield pa.RecordBatch.from_pylist([{"task": task, **tally}], schema=_TALLY)


class _Task:
    """The work of one task."""

    def __init__(self, work: TaskPlan) -> None:
        self._work = work
        self._rows = JobRows(work.arguments)
        self._results = ResultRows(work.results, work.subject)
        self._clock = system_runtime().clock
        self._tally = {"completed": 0, "failed": 0, "lost": 0}
        self._taken = 0
        # How long the last batch took.
        self._batch_s = inf
        self._end: float | None = None

    async def work(self) -> dict[str, int]:
        """Work until a limit is reached; return the number of jobs by outcome."""
        # Jobs are many small objects without cycles: collecting garbage would cost a tenth.
        gc.disable()
        try:
            await self._run()
        finally:
            gc.enable()
        return self._tally

    async def _run(self) -> None:
        work = self._work
        async with open_store(work.store) as jet:
            queue = await jet.queue(work.queue)
            async with queue.claims(work.rules) as claims:
                # The time to open the store does not count.
                if work.duration is not None:
                    self._end = self._clock.monotonic() + work.duration
                await self._run_claims(claims)

    async def _run_claims(self, claims: Claims) -> None:
        ended: list[ClaimedJob] = []
        while True:
            if claims.ahead and not self._is_over():
                jobs = await self._take(claims, 0.0)
            else:
                jobs, ended = await self._settle_and_take(claims, ended), []
                if not jobs:
                    if self._is_over() or (self._work.until_empty and await claims.is_empty()):
                        return
                    jobs = await self._take(claims, _POLL_S)
            if jobs:
                ended = await self._run_batch(claims, jobs, ended)

    async def _settle_and_take(self, claims: Claims, ended: list[ClaimedJob]) -> list[ClaimedJob]:
        """Settle jobs and take the next ones: in a store file, in one transaction."""
        _, found = await _both(self._settle(claims, ended), self._take(claims, 0.0))
        return found

    async def _run_batch(self, claims: Claims, jobs: list[ClaimedJob], ended: list[ClaimedJob]) -> list[ClaimedJob]:
        """Run the function on a batch; return the jobs that have ended and are not settled: ``ended`` and these."""
        began = self._clock.monotonic()
        batch = asyncio.get_running_loop().run_in_executor(None, self._decide, jobs)
        try:
            if not (await asyncio.wait([batch], timeout=_AHEAD_S))[0]:
                await _both(self._settle(claims, ended), claims.give_back_ahead())
                ended = []
            await batch
        except Exception:
            # Only the jobs of this batch are to run again.
            await self._settle(claims, ended)
            raise
        finally:
            self._batch_s = self._clock.monotonic() - began
        return ended + jobs

    def _capacity(self) -> int:
        limit = self._work.max_jobs
        return self._work.claim if limit is None else min(self._work.claim, limit - self._taken)

    def _ahead(self, taken: int) -> int:
        """Return how many jobs to take beside a batch of so many: those of a few batches, if batches are short."""
        limit = self._work.max_jobs
        ahead = min(int(_AHEAD_S / max(self._batch_s, _SHORTEST_S)), _MOST_AHEAD) * self._work.claim
        return ahead if limit is None else min(ahead, limit - self._taken - taken)

    def _left(self) -> float:
        """Return the remaining seconds."""
        return inf if self._end is None else self._end - self._clock.monotonic()

    def _is_over(self) -> bool:
        return self._capacity() <= 0 or self._left() <= 0

    async def _take(self, claims: Claims, timeout: float) -> list[ClaimedJob]:
        if self._is_over():
            return []
        most = self._capacity()
        jobs = await claims.take(most, timeout=min(timeout, self._left()), ahead=self._ahead(most))
        self._taken += len(jobs)
        return jobs

    async def _settle(self, claims: Claims, jobs: list[ClaimedJob]) -> None:
        if not jobs:
            return
        lost = await claims.settle(jobs)
        completed = sum(isinstance(job.ending, Completed) and not job.lost for job in jobs)
        self._tally["completed"] += completed
        self._tally["lost"] += len(lost)
        self._tally["failed"] += len(jobs) - completed - len(lost)

    def _decide(self, jobs: list[ClaimedJob]) -> None:
        """Run the function and set each job's outcome; an exception fails all jobs of the batch."""
        fit, rows = self._rows.rows(jobs)
        if not fit:
            return
        try:
            made = self._call(rows)
        except Exception as error:  # whatever a function raises is its jobs' outcome
            for job in fit:
                job.fail(error)
            return
        self._results.take(fit, rows.column("id"), _as_batch(made))

    def _call(self, rows: pa.RecordBatch) -> Any:
        given = rows.to_pandas() if self._work.kind == "pandas" else rows
        gc.enable()
        try:
            return self._work.function(given)
        finally:
            gc.disable()


async def _both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Wait until both have ended; raise what the first of them raised that did."""
    answers = await asyncio.gather(first, second, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers  # type: ignore[return-value]  # neither raised


def _as_batch(made: Any) -> pa.RecordBatch:
    """Return the function's result as one batch. Raises ConfigError for anything but a table."""
    if not isinstance(made, (pa.RecordBatch, pa.Table)):
        if not hasattr(made, "columns"):
            raise ConfigError(f"the function returned {type(made).__name__}: return a DataFrame, or an Arrow table")
        made = pa.Table.from_pandas(made, preserve_index=False)
    if isinstance(made, pa.Table):
        arrays = [column.combine_chunks() for column in made.columns]
        made = pa.RecordBatch.from_arrays(arrays, schema=made.schema)
    return _in_micros(made)


def _in_micros(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return timestamps in microseconds, as Spark has them: pandas counts nanoseconds."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz)) if _is_fine(field.type) else field for field in rows.schema
    ]
    if not any(_is_fine(field.type) for field in rows.schema):
        return rows
    arrays = [column.cast(field.type, safe=False) for column, field in zip(rows.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _is_fine(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")
