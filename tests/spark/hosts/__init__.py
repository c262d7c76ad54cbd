"""Concurrent attempts of tasks, and executors' processes that are killed: on a Spark cluster of two hosts."""
