"""A queue's history, results and dead letters as DataFrames, and dead letters put back by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it

from pelton.api import ConfigError, JobNotFoundError
from pelton.queue.model.naming import QueueNames
from pelton.spark.options import StoreOptions, store_options
from pelton.spark.store_handle import StoreHandle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pelton.connect import Jet
    from pelton.queue import Queue

_OUTCOME: Final = (
    "struct<id:string,job:string,state:string,key:string,attempt:int,worker:string,enqueued_at:bigint,"
    "started_at:bigint,finished_at:bigint,result:string,error:string>"
)
_LETTER: Final = f"struct<outcome:{_OUTCOME},envelope:struct<job:string,args:string,redriven_from:string>>"
_ATTEMPTS: Final = r" \(attempt [0-9]+ of [0-9]+\)$"
_QUOTED: Final = r"'[^']*'|\"[^\"]*\""
_NUMBER: Final = r"[0-9]+(\.[0-9]+)?"
_LONGEST_CAUSE: Final = 160


def history(spark: SparkSession, queue: str, **store: str) -> DataFrame:
    """Return the outcomes of a queue's jobs, one row for each job.

    ``store`` are the options of ``format("pelton")`` that locate and open the queue's store: ``path=`` or ``servers=``,
    and a key or login. ``wait_s`` is the time from the enqueue to the start of the last attempt, including earlier
    attempts and their backoff; ``run_s`` is the duration of that attempt. Both, and ``started_at``, are null for a job
    that ended before it started. ``cause`` is the error without the parts that differ from job to job; see
    :func:`cause_of`. Raises ConfigError.
    """
    names = QueueNames(queue)
    return _read(spark, names, names.history, store, _OUTCOME).select(*_ending())


def _ending() -> list[Column | str]:
    """Return the columns of a job's outcome."""
    # Subtract nanoseconds as integers: as fractional seconds since 1970 they would lose precision.
    started = "nullif(value.started_at, 0)"
    wait, run = f"{started} - value.enqueued_at", f"value.finished_at - {started}"
    return [
        "value.id",
        "value.job",
        F.coalesce("value.key", F.lit("")).alias("key"),
        "value.state",
        "value.attempt",
        "value.worker",
        *_times("enqueued_at", "started_at", "finished_at"),
        F.expr(f"({wait}) / 1e9").alias("wait_s"),
        F.expr(f"({run}) / 1e9").alias("run_s"),
        F.coalesce("value.error", F.lit("")).alias("error"),
        cause_of(F.coalesce("value.error", F.lit(""))).alias("cause"),
    ]


def results(spark: SparkSession, queue: str, schema: str | None = None, **store: str) -> DataFrame:
    """Return job outcomes as a streaming DataFrame, for :func:`~pelton.spark.pipelines.archive`: a table of results.

    In addition to the columns of :func:`history` there are ``result``, and ``stream``, ``sequence`` and ``time`` of the
    history's message. ``schema`` gives the result's columns ("car STRING, hours DOUBLE"), which are null if the result
    does not fit or the job failed; without it, the result is JSON. In a store file, a row is written in the transaction
    that completes its job. ``store`` as in :func:`history`. Raises ConfigError.
    """
    names = QueueNames(queue)
    queue_store(queue, store)
    reader = spark.readStream.format("pelton").schema("stream STRING, sequence BIGINT, time TIMESTAMP, data BINARY")
    rows = reader.options(**store).option("stream", names.history).load()
    value = F.from_json(F.col("data").cast("string"), _OUTCOME).alias("value")
    result = F.col("value.result")
    return rows.select("stream", "sequence", "time", value).select(
        "stream",
        "sequence",
        "time",
        *_ending(),
        (result if schema is None else F.from_json(result, schema)).alias("result"),
    )


def dead_letters(spark: SparkSession, queue: str, **store: str) -> DataFrame:
    """Return a queue's dead letters, which can be redriven, one row for each; ``store`` as in :func:`history`.

    ``args`` is JSON; ``failed_at`` is the end of the last attempt. Raises ConfigError.
    """
    names = QueueNames(queue)
    rows = _read(spark, names, names.dead, store, _LETTER)
    error = F.coalesce("value.outcome.error", F.lit(""))
    return rows.select(
        "value.outcome.id",
        "value.outcome.job",
        F.coalesce("value.outcome.key", F.lit("")).alias("key"),
        error.alias("error"),
        cause_of(error).alias("cause"),
        F.col("value.outcome.attempt").alias("attempts"),
        *_times("enqueued_at", "finished_at", within="value.outcome", finished_at="failed_at"),
        "value.outcome.worker",
        "value.envelope.args",
        F.coalesce("value.envelope.redriven_from", F.lit("")).alias("redriven_from"),
    )


def by_cause(letters: DataFrame) -> DataFrame:
    """Return dead letters counted by job and cause, most frequent first, with an example of each."""
    counted = letters.groupBy("job", "cause").agg(
        F.count("*").alias("letters"),
        F.countDistinct("key").alias("keys"),
        F.min("failed_at").alias("first"),
        F.max("failed_at").alias("last"),
        F.min_by("id", "failed_at").alias("example"),
    )
    return counted.orderBy(F.desc("letters"), "job", "cause")


def cause_of(error: Column) -> Column:
    """Return an error's first line without what differs from job to job: quoted texts and numbers."""
    line = F.substring_index(F.regexp_replace(error, _ATTEMPTS, ""), "\n", 1)
    plain = F.regexp_replace(F.regexp_replace(line, _QUOTED, "'…'"), _NUMBER, "#")
    return F.substring(plain, 1, _LONGEST_CAUSE)


def queue_store(queue: str, store: dict[str, str]) -> StoreOptions:
    """Return the store options of a queue. Raises ConfigError if there is no such queue."""
    options, _ = store_options(store, ())
    jobs = QueueNames(queue).jobs
    with StoreHandle(options, looks=True) as opened:
        if not opened.present([jobs]):
            where = "on the cluster" if options.is_cluster else f"in {options.address}"
            raise ConfigError(f"there is no queue {queue!r} {where}")
    return options


def _read(spark: SparkSession, names: QueueNames, stream: str, store: dict[str, str], schema: str) -> DataFrame:
    queue_store(names.queue, store)
    reader = spark.read.format("pelton").schema("sequence BIGINT, data BINARY").options(**store)
    found = reader.option("stream", stream).load()
    return found.select(F.from_json(F.col("data").cast("string"), schema).alias("value"))


def _times(*names: str, within: str = "value", **renamed: str) -> list[Column]:
    """Return nanoseconds as timestamps, which have microseconds."""
    # 0 is no time: the job was cancelled, or had expired, before it started.
    text = "timestamp_micros(nullif({}.{}, 0) div 1000)"
    return [F.expr(text.format(within, name)).alias(renamed.get(name, name)) for name in names]


# --- redrives dead letters: those that a DataFrame selects go back to their queue

_AT_ONCE: Final = 64

Progress = Callable[[int, int], None]


class Redriven(NamedTuple):
    """How many dead letters were redriven, and how many were gone already (redriven by another process, or removed)."""

    redriven: int
    gone: int


def redrive(letters: DataFrame, queue: str, *, progress: Progress | None = None, **store: str) -> Redriven:
    """Put the jobs of dead letters into the queue again, and remove them from the dead letters.

    ``letters`` are rows of :func:`dead_letters`, selected with any DataFrame operation; only their ``id`` is used. The
    call can be repeated: a letter that was redriven is gone. ``store`` as in :func:`history`; ``progress`` is called
    with the number done and the total. Raises ConfigError.
    """
    if "id" not in letters.columns:
        raise ConfigError("redrive needs the column id of the dead letters")
    options = queue_store(queue, store)
    ids = sorted({row.id for row in letters.select("id").toLocalIterator()}, key=_by_age)
    with StoreHandle(options) as opened:
        return opened.run(_redrive, opened.jet, queue, ids, progress or _silent)


async def _redrive(jet: Jet, name: str, ids: Sequence[str], progress: Progress) -> Redriven:
    queue = await jet.queue(name)
    done = gone = 0
    for first in range(0, len(ids), _AT_ONCE):
        found = await asyncio.gather(*(_one(queue, job_id) for job_id in ids[first : first + _AT_ONCE]))
        done += sum(found)
        gone += len(found) - sum(found)
        progress(done + gone, len(ids))
    return Redriven(done, gone)


async def _one(queue: Queue, job_id: str) -> bool:
    try:
        await queue.redrive(job_id)
    except JobNotFoundError:
        return False
    return True


def _by_age(job_id: str) -> tuple[int, str]:
    """Sort ids that are sequences by age, before the others."""
    return (len(job_id), job_id)


def _silent(done: int, total: int) -> None:
    pass
