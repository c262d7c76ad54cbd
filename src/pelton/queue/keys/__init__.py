"""Exclusive keys for a backend that has no such feature: a NATS cluster (docs/decisions/0017)."""

from pelton.queue.keys.job_source import KeyedJobSource, KeyedStats

__all__ = ["KeyedJobSource", "KeyedStats"]
