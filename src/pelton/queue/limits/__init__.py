"""Limits of concurrency and rates of starts, from compare-and-set records, the same on every backend."""
