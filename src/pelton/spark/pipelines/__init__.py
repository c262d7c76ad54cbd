"""Pipelines that users run: streams to a lake and back, dead letters as a table, what queues have done as figures.

Each is a function on DataFrames, and a verb of ``pelton pipeline``.
"""

from __future__ import annotations

from pelton.spark.pipelines.analytics import JobMetrics, job_metrics
from pelton.spark.pipelines.archiving import append, archive, read_archive, watch
from pelton.spark.pipelines.letters import Redriven, redrive
from pelton.spark.pipelines.queues import by_cause, dead_letters, history, results
from pelton.spark.pipelines.replaying import Replayed, replay
from pelton.spark.pipelines.reporting import report

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
