"""Identifies batches and task attempts, so that repeated writes can be recognised."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark import TaskContext

from pelton.api import PeltonError

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class BatchId(NamedTuple):
    """A batch, the same in every attempt: a ``writer`` (a query's id, or a writeId) and an increasing ``number``."""

    writer: str
    number: int


class TaskAttempt(NamedTuple):
    """One attempt of one task. ``number`` is 0 for the task's first in this run of the batch; ``task`` is unique."""

    partition: int
    number: int
    task: int


def current_attempt() -> TaskAttempt:
    """Return the attempt that this task is."""
    context = _context()
    return TaskAttempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def streaming_batch_id() -> BatchId:
    """Return the batch of this task's streaming query. Raises PeltonError if Spark does not provide it.

    The property names are internal to Spark and may change, so their values are validated.
    """
    context = _context()
    query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or number is None or not number.isdigit():
        raise PeltonError(
            f"this Spark does not tell its tasks which batch they write ({_QUERY}, {_BATCH}), and without that, a "
            "repeated batch would be stored twice: use foreachBatch, and in it write with writeId and writeVersion"
        )
    return BatchId(query, int(number))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PeltonError("a write runs in Spark's tasks only")
    return context
