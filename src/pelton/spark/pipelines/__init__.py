"""Ready-made pipelines: archive streams to a data lake and replay them, dead letters as a table, job metrics.

Each is a function on DataFrames, and a verb of ``pelton pipeline``.
"""

from __future__ import annotations

from pelton.spark.pipelines.analytics import JobMetrics, job_metrics, report
from pelton.spark.pipelines.dead_letter_redrive import Redriven, by_cause, dead_letters, history, redrive, results
from pelton.spark.pipelines.lake_archive import append, archive, read_archive, watch
from pelton.spark.pipelines.stream_replay import Replayed, replay

__all__ = [
    "JobMetrics",
    "Redriven",
    "Replayed",
    "append",
    "archive",
    "by_cause",
    "dead_letters",
    "history",
    "job_metrics",
    "read_archive",
    "redrive",
    "replay",
    "report",
    "results",
    "watch",
]
