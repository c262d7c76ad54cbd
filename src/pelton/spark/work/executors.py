"""Spark's executors as workers of a queue (``work``), and rows as jobs (``enqueue_from``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from pelton.api import Backoff, ConfigError
from pelton.api.times import Seconds
from pelton.queue.backing.setup import EXCLUSIVE
from pelton.queue.model.checks import seconds
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import DEFAULT_BACKOFF, DEFAULT_MAX_ATTEMPTS, job_rules
from pelton.spark.active_session import activate
from pelton.spark.options import store_options
from pelton.spark.store_handle import StoreHandle
from pelton.spark.work.executor_task import TALLY, Kind, TaskPlan
from pelton.spark.work.job_rows import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pelton.api import StreamConfig
    from pelton.spark.options import StoreOptions

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
