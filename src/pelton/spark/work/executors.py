"""Spark's executors as workers of a queue (``work``), and rows as jobs (``enqueue_from``).

**A Spark task as a queue worker: claims a batch of jobs, runs the function on it, and settles each job by itself.** A
task is an ordinary worker. It opens the store in its own process, holds its jobs under leases that a thread renews, and
records their outcomes (``queue/run/``). Spark only places it, and ships the function. So a task that fails, is killed
or runs twice costs only time: its jobs are handed back, or are redelivered when their leases expire, and what it
settled stays settled. The function runs on a thread, so that the event loop stays free for the connection.

A transaction costs as much as dozens of short jobs. So while batches are short, a few of them are taken in one
transaction, and settled in one, with the next ones. As soon as a batch takes longer than :data:`_AHEAD_S`, what has
ended is settled, and what waits for it is given back: neither an outcome nor a job waits for slow ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from pelton.api import Backoff, ConfigError
from pelton.api.times import Seconds
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import DEFAULT_BACKOFF, DEFAULT_MAX_ATTEMPTS, job_rules, seconds
from pelton.queue.run.claims import Completed
from pelton.queue.setup import EXCLUSIVE
from pelton.runtime import system_runtime
from pelton.spark.options import store_options
from pelton.spark.store_handle import StoreHandle, activate, open_store
from pelton.spark.work.job_rows import JobRows, ResultRows, check_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        """Return how many jobs to take beside a batch of ``taken`` jobs: a few batches more, if batches are short."""
        limit = self._work.max_jobs
        ahead = min(int(_AHEAD_S / max(self._batch_s, _SHORTEST_S)), _MOST_AHEAD) * self._work.claim
        return ahead if limit is None else min(ahead, limit - self._taken - taken)

    def _seconds_left(self) -> float:
        return inf if self._end is None else self._end - self._clock.monotonic()

    def _is_over(self) -> bool:
        return self._capacity() <= 0 or self._seconds_left() <= 0

    async def _take(self, claims: Claims, timeout: float) -> list[ClaimedJob]:
        if self._is_over():
            return []
        most = self._capacity()
        jobs = await claims.take(most, timeout=min(timeout, self._seconds_left()), ahead=self._ahead(most))
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


# Rows of the range whose partitions are the tasks: enough for each task to have some.
_TICKETS = 1 << 16


class Worked(msgspec.Struct, frozen=True):
    """The result of a call of :func:`work`, as reported by the tasks that finished.

    ``completed`` jobs; ``failed`` attempts, to be retried or not; ``lost``: jobs whose lease expired before they were
    settled, so that other workers have them.
    """

    completed: int
    failed: int
    lost: int


def work(
    queue: str,
    function: Callable[[Any], Any],
    *,
    kind: Kind = "pandas",
    args: str | None = None,
    stream: str | None = None,
    subject: str | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    backoff: Backoff = DEFAULT_BACKOFF,
    permanent: type[BaseException] | Sequence[type[BaseException]] = (),
    tasks: int | None = None,
    claim: int = 200,
    until_empty: bool = True,
    max_jobs: int | None = None,
    duration: Seconds | None = None,
    spark: SparkSession | None = None,
    **store: str,
) -> Worked:
    """Run a queue's jobs on Spark's executors: each of ``tasks`` tasks claims ``claim`` jobs at a time.

    ``function`` takes and returns a pandas DataFrame, or (``kind="arrow"``) an Arrow record batch, with one row for
    each job, identified by its ``id``. Columns of the argument: ``id``, ``job``, ``key``, ``attempt``, ``last_error``,
    ``enqueued_at``, and the job's arguments, as JSON in ``args``, or as columns if ``args`` gives their types ("car
    STRING, n INT"). Columns of the result: ``id``, and for a failed job ``error``, optionally with ``retry_after``
    (seconds) or ``permanent`` (boolean). Other columns are the job's result: kept in the history, or published to
    ``stream`` in the format of ``df.write`` (with its ``subject``) when the job is completed. If the function raises,
    every job of the batch fails.

    ``max_attempts``, ``backoff`` and ``permanent`` are as for ``queue.job``. A task ends when the queue is empty
    (``until_empty``), after ``max_jobs`` jobs, or after ``duration`` seconds. ``store`` are the format's options that
    locate and open the queue's store: ``path=``, ``servers=``, ``keyFile=``. Raises ConfigError, and Spark's error
    for a failed task.
    """
    options = _store(store)
    session = spark or SparkSession.active()
    rules = job_rules(f"work of queue {queue!r}", max_attempts, backoff, permanent, None)
    _check(kind, tasks=tasks, claim=claim, max_jobs=max_jobs)
    plan = TaskPlan(
        store=options,
        queue=queue,
        function=function,
        kind=kind,
        rules=rules,
        arguments=None if args is None else _arguments(args),
        results=_result_stream(options, queue, stream, subject),
        subject=subject,
        claim=claim,
        until_empty=until_empty,
        max_jobs=max_jobs,
        duration=None if duration is None else seconds(f"work of queue {queue!r}: duration", duration),
    )
    tickets = session.range(0, _TICKETS, 1, tasks)
    tallies = tickets.mapInArrow(plan.run, TALLY).collect()
    return Worked(*(sum(row[name] for row in tallies) for name in Worked.__struct_fields__))


def enqueue_from(rows: DataFrame, queue: str, job: str, **store: str) -> None:
    """Enqueue one job for each row: short for ``rows.write.format("pelton")`` with ``queue`` and ``job``.

    Columns are arguments by name, except ``key`` and ``idempotency_key``. In a store file, all jobs appear at once, or
    none; pass ``writeId`` to be able to repeat the call. Raises what the write raises.
    """
    if "path" in store:
        store = {**store, "path": os.path.abspath(store["path"])}
    activate(rows.sparkSession)
    rows.write.format("pelton").mode("append").options(queue=queue, job=job, **store).save()


def _store(given: dict[str, str]) -> StoreOptions:
    if "path" in given:
        # Executors have other working directories.
        given = {**given, "path": os.path.abspath(given["path"])}
    return store_options({name: str(value) for name, value in given.items()}, ())[0]


def _check(kind: str, **counts: int | None) -> None:
    if kind not in ("pandas", "arrow"):
        raise ConfigError(f"work: kind is {kind!r}: choose pandas or arrow")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"work: {name} is {count}; it must be 1 or more")


def _arguments(text: str) -> StructType:
    # Spark's JVM parses DDL, which tasks do not have.
    found = DataType.fromDDL(text)
    if not isinstance(found, StructType):
        raise ConfigError(f"args is {text!r}: write names and types, such as 'car STRING, n INT'")
    check_arguments(found)
    return found


def _result_stream(options: StoreOptions, queue: str, stream: str | None, subject: str | None) -> StreamConfig | None:
    """Check that the queue exists, and return the results' stream. Raises ConfigError, StreamNotFoundError."""
    jobs = QueueNames(queue).jobs
    with StoreHandle(options) as store:
        found = store.present([jobs])
        if not found or EXCLUSIVE not in found[0].config.metadata:
            raise ConfigError(f"there is no queue {queue!r} in {options.address}: make it first, jet.queue({queue!r})")
        if stream is None:
            if subject is not None:
                raise ConfigError("work: subject is for results that go to a stream: name the stream, or leave it out")
            return None
        return store.stream(stream).config
