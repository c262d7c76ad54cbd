"""A queue's metrics as one self-contained HTML file with plots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pelton.drawing.charts import bars, columns, curves
from pelton.drawing.page import head, page, section, table, tiles

if TYPE_CHECKING:
    from pyspark.sql import Row

    from pelton.spark.pipelines.analytics import JobMetrics

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
    body += _over_time(steps)
    body += _jobs(metrics.by_job.collect())
    body += _causes(metrics.causes.limit(_LONGEST).collect())
    body += _keys(summary, metrics.by_key.limit(_LONGEST).collect())
    return page(title, body)


def shown(seconds: float | None) -> str:
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
        (shown(summary.wait_p95), "wait, p95"),
        (shown(summary.run_p95), "run, p95"),
    ]
    if summary.fairness is not None:
        figures.append((f"{summary.fairness:.3f}", f"fairness among {summary['keys']:,} keys"))
    return tiles(figures)


def _over_time(steps: Sequence[Row]) -> str:
    starts = [row.start for row in steps]
    length = steps[0].end - steps[0].start if steps else timedelta(seconds=1)
    seconds = length.total_seconds()
    ended = {name: [row[name] / seconds for row in steps] for name in _ENDINGS if any(row[name] for row in steps)}
    words = f"Jobs that ended, a second; a column is {shown(seconds)}."
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
            *(shown(row[name.replace(" ", "_")]) for name in headings[6:]),
        ]
        for row in rows
    ]
    return section("Jobs", "Each kind of job, over the whole time.", table(headings, lines))


def _causes(rows: Sequence[Row]) -> str:
    found = [(f"{row.job}: {row.cause}", float(row.failures), f"{row.failures:,}") for row in rows]
    words = "Failed jobs by error; what differs from job to job (numbers, quoted texts) is left out."
    return section("Why jobs failed", words, bars(found, "failures by cause"))


def _keys(summary: Row, rows: Sequence[Row]) -> str:
    found = [(row.key, float(row.wait_p95 or 0), f"{shown(row.wait_p95)}, {row.jobs:,} jobs") for row in rows]
    if summary.fairness is None:
        return ""
    words = (
        f"How long 95 of 100 jobs of a key (p95) waited at most; the {len(found)} longest of {summary['keys']:,} keys. "
        f"Fairness is {summary.fairness:.3f}: 1 where all keys wait alike."
    )
    return section("Fairness by key", words, bars(found, "waits by key"))
