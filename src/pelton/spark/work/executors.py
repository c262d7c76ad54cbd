"""Executors as workers of a queue: ``work``; and the other way round, rows as jobs: ``enqueue_from``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from pelton.api import Backoff, ConfigError
from pelton.queue.checks import seconds
from pelton.queue.job import DEFAULT_BACKOFF, DEFAULT_MAX_ATTEMPTS, job_rules
from pelton.queue.naming import QueueNames
from pelton.queue.setup import EXCLUSIVE
from pelton.spark.active_session import activate
from pelton.spark.options import store_options
from pelton.spark.store_handle import StoreHandle
from pelton.spark.work.executor_task import TALLY, Kind, TaskPlan
from pelton.spark.work.job_rows import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pelton.api import StreamConfig
    from pelton.spark.options import StoreOptions

Duration = float | timedelta
# Enough for every task to have some: tasks are counted by the partitions of a range.
_TICKETS = 1 << 16


class Worked(msgspec.Struct, frozen=True):
    """What a call of :func:`work` has done, as far as its tasks lived to tell.

    ``completed`` jobs; ``failed`` attempts, to be tried again or for good; ``lost``: too late, others have these jobs.
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
    duration: Duration | None = None,
    spark: SparkSession | None = None,
    **store: str,
) -> Worked:
    """Run a queue's jobs on Spark's executors: each of ``tasks`` tasks claims ``claim`` jobs at a time.

    ``function`` takes and returns a pandas DataFrame, or (``kind="arrow"``) an Arrow record batch: a row a job, told by
    its ``id``. It takes ``id``, ``job``, ``key``, ``attempt``, ``last_error``, ``enqueued_at``, and the arguments as
    JSON in ``args``, or a column each where ``args`` gives their types ("car STRING, n INT"). It returns ``id``, and
    for a job that failed ``error``, perhaps with ``retry_after`` (seconds) or ``permanent`` (boolean). Other columns
    are the job's result: kept in the history, or messages of ``stream``, as ``df.write`` makes them (``subject`` as
    there), which take effect with the completion. If it raises, each job of the batch has failed.

    ``max_attempts``, ``backoff`` and ``permanent`` are as for ``queue.job``. A task ends when the queue has no job left
    (``until_empty``), after ``max_jobs`` jobs, or after ``duration`` seconds. ``store`` says where the queue is, as
    options of the format: ``path=``, ``servers=``, ``keyFile=``. Raises ConfigError, and what Spark raises for a task
    that fails.
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
        results=_look(options, queue, stream, subject),
        subject=subject,
        claim=claim,
        until_empty=until_empty,
        max_jobs=max_jobs,
        duration=None if duration is None else seconds(f"work of queue {queue!r}: duration", duration),
    )
    tickets = session.range(0, _TICKETS, 1, tasks)
    told = tickets.mapInArrow(plan.run, TALLY).collect()
    return Worked(*(sum(row[name] for row in told) for name in Worked.__struct_fields__))


def enqueue_from(rows: DataFrame, queue: str, job: str, **store: str) -> None:
    """Put a job a row into a queue: ``rows.write.format("pelton")`` with ``queue`` and ``job``, in short.

    Columns are arguments by name, but for ``key`` and ``idempotency_key``. Embedded all of them are there at once, or
    none; say ``writeId`` to be able to repeat it. Raises what the write raises.
    """
    if "path" in store:
        store = {**store, "path": os.path.abspath(store["path"])}
    activate(rows.sparkSession)
    rows.write.format("pelton").mode("append").options(queue=queue, job=job, **store).save()


def _store(given: dict[str, str]) -> StoreOptions:
    if "path" in given:
        # Executors have folders of their own.
        given = {**given, "path": os.path.abspath(given["path"])}
    return store_options({name: str(value) for name, value in given.items()}, ())[0]


def _check(kind: str, **counts: int | None) -> None:
    if kind not in ("pandas", "arrow"):
        raise ConfigError(f"work: kind is {kind!r}: choose pandas or arrow")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"work: {name} is {count}; it must be 1 or more")


def _arguments(text: str) -> StructType:
    # Spark reads the text in its JVM, so here and not in a task.
    found = DataType.fromDDL(text)
    if not isinstance(found, StructType):
        raise ConfigError(f"args is {text!r}: write names and types, such as 'car STRING, n INT'")
    check_arguments(found)
    return found


def _look(options: StoreOptions, queue: str, stream: str | None, subject: str | None) -> StreamConfig | None:
    """See that the queue is there, and return the stream of the results. Raises ConfigError, StreamNotFoundError."""
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
