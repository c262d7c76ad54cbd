"""Steering a queue while its workers run: cancelling jobs, pausing the queue, its keys and its kinds of jobs."""
