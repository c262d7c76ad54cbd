"""Metrics of a queue's jobs, and these as one self-contained HTML file with plots.

**Metrics of a queue's jobs: counts, throughput, wait and run times, retries, causes of failure, and fairness.**
Percentiles are Spark's ``percentile_approx``: exact for up to ten thousand distinct values in a group; beyond that, the
rank of the value is off by at most one ten-thousandth.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it

from pelton.api import ConfigError
from pelton.drawing.charts import bars, columns, curves, head, page, section, table, tiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_ACCURACY: Final = 10_000
_POINTS: Final = 60
_STEPS: Final = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600)
_WINDOW_UNITS: Final = (("hour", 3600), ("minute", 60), ("second", 1))
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
    unit, length = next(((unit, length) for unit, length in _WINDOW_UNITS if seconds >= length), ("millisecond", 1e-3))
    count = round(seconds / length)
    return f"{count} {unit}{'' if count == 1 else 's'}"


# --- a queue's metrics as one self-contained HTML file with plots

_ENDINGS: Final = ("completed", "failed", "cancelled")
_SHARES: Final = ("p50", "p95", "p99")
_UNITS: Final = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
_LONGEST: Final = 15
_COUNTED: Final = ("jobs", "completed", "failed", "cancelled", "retries")


def report(metrics: JobMetrics, path: str | Path, *, title: str = "What the queue has done") -> None:
    """Write metrics and plots to an HTML file. Raises OSError if that fails."""
    Path(path).write_text(draw(metrics, title), encoding="utf-8")


def draw(metrics: JobMetrics, title: str) -> str:
    """Return the page as text; collects the tables, the longest ones only in part."""
    summary = metrics.summary.collect()[0]
    if not summary["jobs"]:
        return page(title, head(title, "No job has ended yet."))
    steps = metrics.over_time.collect()
    body = head(title, _about(summary, steps)) + _tiles(summary)
    body += _chart_over_time(steps)
    body += _jobs(metrics.by_job.collect())
    body += _table_of_causes(metrics.causes.limit(_LONGEST).collect())
    body += _keys(summary, metrics.by_key.limit(_LONGEST).collect())
    return page(title, body)


def duration_text(seconds: float | None) -> str:
    """Return a duration in readable form."""
    if seconds is None:
        return "-"
    for unit, length in _UNITS:
        if abs(seconds) >= length * (1 if unit in ("s", "ms") else 2):
            return f"{seconds / length:,.3g} {unit}" if seconds / length < 1000 else f"{seconds / length:,.0f} {unit}"
    return f"{seconds * 1e6:,.0f} µs"


def _about(summary: Row, steps: Sequence[Row]) -> str:
    first, last = steps[0].start, steps[-1].end
    return (
        f"{summary.jobs:,} jobs ended from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} (UTC). A wait is from "
        "the enqueue to the start of the last attempt; a run is that attempt."
    )


def _tiles(summary: Row) -> str:
    figures = [
        (f"{summary.jobs:,}", "jobs ended"),
        (f"{summary.per_second or 0:,.4g}", "jobs a second"),
        (f"{summary.failed:,}", "failed"),
        (f"{summary.retries:,}", "retries"),
        (duration_text(summary.wait_p95), "wait, p95"),
        (duration_text(summary.run_p95), "run, p95"),
    ]
    if summary.fairness is not None:
        figures.append((f"{summary.fairness:.3f}", f"fairness among {summary['keys']:,} keys"))
    return tiles(figures)


def _chart_over_time(steps: Sequence[Row]) -> str:
    starts = [row.start for row in steps]
    length = steps[0].end - steps[0].start if steps else timedelta(seconds=1)
    seconds = length.total_seconds()
    ended = {name: [row[name] / seconds for row in steps] for name in _ENDINGS if any(row[name] for row in steps)}
    words = f"Jobs that ended, a second; a column is {duration_text(seconds)}."
    parts = section("Throughput", words, columns(starts, length, ended, "jobs a second"))
    for what, words in (
        ("wait", "From the enqueue to the start of the last attempt. p95: 95 of 100 jobs waited at most so long."),
        ("run", "How long the last attempt took. p95: 95 of 100 jobs ran at most so long."),
    ):
        # Where no job has started, there are no times.
        lines = {share: [row[f"{what}_{share}"] or 0.0 for row in steps] for share in _SHARES}
        unit, divisor = _unit(max(map(max, lines.values())))
        scaled = {share: [value / divisor for value in values] for share, values in lines.items()}
        parts += section(f"{what.capitalize()} times", words, curves(starts, length, scaled, f"{what} times", unit))
    return parts


def _unit(most: float) -> tuple[str, float]:
    """Return the unit in which the longest of some durations reads well, and its length in seconds."""
    return next(((unit, length) for unit, length in _UNITS if most >= 2 * length), ("µs", 1e-6))


def _jobs(rows: Sequence[Row]) -> str:
    headings = ["job", *_COUNTED, *(f"{what} {share}" for what in ("wait", "run") for share in _SHARES)]
    lines = [
        [
            row.job,
            *(f"{row[name]:,}" for name in _COUNTED),
            *(duration_text(row[name.replace(" ", "_")]) for name in headings[6:]),
        ]
        for row in rows
    ]
    return section("Jobs", "Each kind of job, over the whole time.", table(headings, lines))


def _table_of_causes(rows: Sequence[Row]) -> str:
    found = [(f"{row.job}: {row.cause}", float(row.failures), f"{row.failures:,}") for row in rows]
    words = "Failed jobs by error; what differs from job to job (numbers, quoted texts) is left out."
    return section("Why jobs failed", words, bars(found, "failures by cause"))


def _keys(summary: Row, rows: Sequence[Row]) -> str:
    found = [(row.key, float(row.wait_p95 or 0), f"{duration_text(row.wait_p95)}, {row.jobs:,} jobs") for row in rows]
    if summary.fairness is None:
        return ""
    words = (
        f"How long 95 of 100 jobs of a key (p95) waited at most; the {len(found)} longest of {summary['keys']:,} keys. "
        f"Fairness is {summary.fairness:.3f}: 1 where all keys wait alike."
    )
    return section("Fairness by key", words, bars(found, "waits by key"))
