"""Spark's executors as workers of a queue."""
