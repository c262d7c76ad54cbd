"""Tries of tasks beside each other, and executors' processes that are killed: on a Spark cluster of two hosts."""
