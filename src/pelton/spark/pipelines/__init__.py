"""Ready-made pipelines: archive streams to a data lake and replay them, dead letters as a table, job metrics.

Each is a function on DataFrames, and a verb of ``pelton pipeline``.
"""

from __future__ import annotations

from pelton.spark.pipelines.analytics import JobMetrics as JobMetrics
from pelton.spark.pipelines.analytics import job_metrics as job_metrics
from pelton.spark.pipelines.analytics import report as report
from pelton.spark.pipelines.dead_letter_redrive import Redriven as Redriven
from pelton.spark.pipelines.dead_letter_redrive import by_cause as by_cause
from pelton.spark.pipelines.dead_letter_redrive import dead_letters as dead_letters
from pelton.spark.pipelines.dead_letter_redrive import history as history
from pelton.spark.pipelines.dead_letter_redrive import redrive as redrive
from pelton.spark.pipelines.dead_letter_redrive import results as results
from pelton.spark.pipelines.lake_archive import append as append
from pelton.spark.pipelines.lake_archive import archive as archive
from pelton.spark.pipelines.lake_archive import read_archive as read_archive
from pelton.spark.pipelines.lake_archive import watch as watch
from pelton.spark.pipelines.stream_replay import Replayed as Replayed
from pelton.spark.pipelines.stream_replay import replay as replay
