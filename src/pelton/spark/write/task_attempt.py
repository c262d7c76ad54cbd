"""Which write, which batch of it, which try: what makes a write that is repeated harmless."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark import TaskContext

from pelton.api import PeltonError

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class BatchId(NamedTuple):
    """A batch, as it is called in every try: a ``writer`` (a query's id, or a writeId) and a ``number`` that grows."""

    writer: str
    number: int


class TaskAttempt(NamedTuple):
    """One try of one task. ``number`` 0 is the task's first in this run of the batch; ``task`` is no other try's."""

    partition: int
    number: int
    task: int


def current_attempt() -> TaskAttempt:
    """Return the try that is under way."""
    context = _context()
    return TaskAttempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def streaming_batch_id() -> BatchId:
    """Return the batch of the streaming query whose task is under way. Raises PeltonError where Spark does not say.

    The names are Spark's own: they are not promised, so what they give is looked at.
    """
    context = _context()
    query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or number is None or not number.isdigit():
        raise PeltonError(
            f"this Spark does not tell its tasks which batch they write ({_QUERY}, {_BATCH}), and without that a batch "
            "that is repeated would be stored twice: use foreachBatch, and in it write with writeId and writeVersion"
        )
    return BatchId(query, int(number))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PeltonError("a write runs in Spark's tasks only")
    return context
