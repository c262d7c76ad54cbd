"""Metrics of a queue's jobs: counts, throughput, wait and run times, retries, causes of failure, and fairness.

Percentiles are Spark's ``percentile_approx``: exact for up to ten thousand distinct values in a group; beyond that, the
rank of the value is off by at most one ten-thousandth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it

from pelton.api import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ACCURACY: Final = 10_000
_POINTS: Final = 60
_STEPS: Final = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600)
_UNITS: Final = (("hour", 3600), ("minute", 60), ("second", 1))
_NEEDED: Final = frozenset(
    ("job", "key", "state", "attempt", "enqueued_at", "started_at", "finished_at", "wait_s", "run_s", "cause")
)


class JobMetrics(NamedTuple):
    """Tables computed from a queue's history.

    ``summary`` has one row for all jobs; ``by_job`` one for each job name; ``over_time`` one for each time window in
    which jobs ended; ``causes`` counts failures by job and cause, most frequent first; ``by_key`` has one row for each
    key, the longest waits first. Durations are in seconds.
    """

    summary: DataFrame
    by_job: DataFrame
    over_time: DataFrame
    causes: DataFrame
    by_key: DataFrame
    step: str


def job_metrics(history: DataFrame, *, step: str | None = None) -> JobMetrics:
    """Return the metrics of a :func:`history`, or of a part of one, or of several together.

    ``step`` is the length of the time windows, such as ``"1 minute"``; None chooses one that gives about 60 windows,
    which scans the history once more. Fairness (in ``summary``) is Jain's index of the keys' mean waits: 1 if all keys
    wait alike, 1/n if one of n keys does all the waiting. Raises ConfigError.
    """
    missing = _NEEDED - set(history.columns)
    if missing:
        raise ConfigError(f"this is not the history of a queue: {', '.join(sorted(missing))} is missing")
    chosen = step or _step(history)
    by_key = _by_key(history)
    return JobMetrics(
        summary=history.agg(*_totals()).crossJoin(_fairness(by_key)),
        by_job=history.groupBy("job").agg(*_totals()).orderBy("job"),
        over_time=_over_time(history, chosen),
        causes=_causes(history),
        by_key=by_key,
        step=chosen,
    )


def _totals() -> list[Column]:
    seconds = F.expr("(unix_micros(max(finished_at)) - unix_micros(least(min(enqueued_at), min(started_at)))) / 1e6")
    return [
        *_counts(),
        seconds.alias("seconds"),
        F.try_divide(F.count("*"), seconds).alias("per_second"),
        *_spread("wait"),
        *_spread("run"),
    ]


def _counts() -> list[Column]:
    ended = [F.count_if(F.col("state") == state).alias(state) for state in ("completed", "failed", "cancelled")]
    again = F.coalesce(F.sum(F.expr("greatest(attempt - 1, 0)")), F.lit(0)).alias("retries")
    return [F.count("*").alias("jobs"), *ended, again, F.count_if(F.col("attempt") > 1).alias("retried")]


def _spread(what: str) -> list[Column]:
    column = f"{what}_s"
    parts = [
        F.percentile_approx(column, share, _ACCURACY).alias(f"{what}_p{round(share * 100)}")
        for share in (0.5, 0.95, 0.99)
    ]
    return [*parts, F.max(column).alias(f"{what}_max")]


def _over_time(history: DataFrame, step: str) -> DataFrame:
    cut = F.window("finished_at", step)
    rows = history.groupBy(cut.alias("window")).agg(*_counts(), *_spread("wait"), *_spread("run"))
    length = F.expr("(unix_micros(window.end) - unix_micros(window.start)) / 1e6")
    timed = rows.withColumn("per_second", F.col("jobs") / length)
    return (
        timed.select(F.col("window.start").alias("start"), F.col("window.end").alias("end"), "*")
        .drop("window")
        .orderBy("start")
    )


def _causes(history: DataFrame) -> DataFrame:
    failed = history.where(F.col("state") == "failed").groupBy("job", "cause")
    counted = failed.agg(F.count("*").alias("failures"), F.max("finished_at").alias("last"))
    return counted.orderBy(F.desc("failures"), "job", "cause")


def _by_key(history: DataFrame) -> DataFrame:
    keyed = history.where(F.col("key") != "").groupBy("key")
    rows = keyed.agg(
        F.count("*").alias("jobs"),
        F.count_if(F.col("state") == "failed").alias("failed"),
        F.sum("run_s").alias("run_s"),
        F.avg("wait_s").alias("wait_mean"),
        *_spread("wait"),
    )
    return rows.orderBy(F.desc("wait_p95"), "key")


def _fairness(by_key: DataFrame) -> DataFrame:
    total, squares = F.sum("wait_mean"), F.sum(F.col("wait_mean") * F.col("wait_mean"))
    return by_key.agg(F.count("*").alias("keys"), F.try_divide(total * total, F.count("*") * squares).alias("fairness"))


def _step(history: DataFrame) -> str:
    found = history.agg(F.expr("(unix_micros(max(finished_at)) - unix_micros(min(finished_at))) / 1e6")).first()
    span = float(found[0] or 0.0) if found is not None else 0.0
    seconds = next((step for step in _STEPS if span / step <= _POINTS), _STEPS[-1])
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= length), ("millisecond", 1e-3))
    count = round(seconds / length)
    return f"{count} {unit}{'' if count == 1 else 's'}"
