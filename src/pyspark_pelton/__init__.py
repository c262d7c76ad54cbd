"""Spark finds ``format("pelton")`` by itself: it looks for a ``DefaultSource`` in modules named ``pyspark_*``."""

from pelton.spark.source import PeltonSource as DefaultSource

__all__ = ["DefaultSource"]
