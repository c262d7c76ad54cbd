"""Exclusive keys where the place that keeps the jobs has no such thing: on a NATS cluster (docs/decisions/0017)."""

from pelton.queue.keys.job_source import KeyedJobSource
from pelton.queue.keys.queue_stats import KeyedStats

__all__ = ["KeyedJobSource", "KeyedStats"]
