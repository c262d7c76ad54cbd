"""Writes: ``df.write.format("pelton")`` and ``df.writeStream.format("pelton")``.

Design: Spark plans a write in one process, runs tasks in others, and commits in a third; they share only what is
pickled, and what tasks return. To a store file, tasks only stage rows. The commit loads the files of the attempts that
Spark chose, in one transaction that also records the batch in the commit log (``commit_log.py``). Files of failed and
speculative attempts, and of a driver that died before the commit, are ignored and removed with their folder. A driver
that died after the transaction, but before Spark recorded the commit, repeats the batch; it is found in the commit log,
and nothing is stored. To a cluster, tasks publish; see ``cluster_writer.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pelton.api import ConfigError
from pelton.engine import StagedWriter
from pelton.spark.columns.packed_rows import pack, rebatched
from pelton.spark.store_handle import encryption_key
from pelton.spark.write.bulk_load import load
from pelton.spark.write.cluster_writer import finish, write_cluster
from pelton.spark.write.options import write_options
from pelton.spark.write.plan import WritePlan, plan_write
from pelton.spark.write.staging import staging_of
from pelton.spark.write.task_attempt import BatchId, TaskAttempt, current_attempt, streaming_batch_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.columns.row_encoder import EncodedRows


@dataclass
class TaskCommit(WriterCommitMessage):
    """A finished task: its ``batch``, and the ``path`` of its staged file, None if it staged nothing."""

    batch: BatchId
    partition: int
    path: str | None = None


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame, once."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        options = write_options(given, streaming=False)
        self.plan: WritePlan = plan_write(options, schema, streaming=False)
        self.batch: BatchId = BatchId(options.write_id or f"once-{self.plan.run}", options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write one partition."""
        return _write(self.plan, iterator, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible."""
        _commit(self.plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files."""
        _abort(self.plan, self.batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query. Spark creates one for each batch, and another one for its commit."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self.plan: WritePlan = plan_write(write_options(given, streaming=True), schema, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write one partition of a batch."""
        return _write(self.plan, iterator, streaming_batch_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make a batch visible."""
        _commit(self.plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Remove the staged files of a batch, as far as its tasks have reported them."""
        for message in _written(messages)[:1]:
            _abort(self.plan, message.batch)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "streams, buckets and queues can only be appended to: use mode('append'), or outputMode append; "
            "to start over, purge the stream first"
        )


def _write(plan: WritePlan, batches: Iterator[pa.RecordBatch], batch: BatchId) -> TaskCommit:
    attempt = current_attempt()
    if not plan.options.store.is_cluster:
        return TaskCommit(batch, attempt.partition, _stage(plan, batches, batch, attempt))
    write_cluster(plan, batches, batch, attempt)
    return TaskCommit(batch, attempt.partition)


def _stage(plan: WritePlan, batches: Iterator[pa.RecordBatch], batch: BatchId, attempt: TaskAttempt) -> str | None:
    filled = (rows for rows in batches if rows.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    name = f"{attempt.partition}-{attempt.task}-{plan.run}"
    path = staging_of(plan.options).new_file(batch, name)
    with StagedWriter(path, encryption_key(plan.options.store)) as staged:
        for rows in rebatched(chain((first,), filled)):
            _add(staged, plan.encoder.messages(rows))
    return path


def _add(staged: StagedWriter, messages: EncodedRows) -> None:
    packed = None if messages.blocks is not None else pack(messages.subjects, messages.payloads)
    if packed is not None:
        staged.add_packed(packed)
    else:
        staged.add(messages.subjects.to_pylist(), messages.payloads.to_pylist(), messages.blocks)


def _commit(plan: WritePlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sorted(_written(messages), key=lambda message: message.partition)
    if not done:
        return
    batch, options = done[0].batch, plan.options
    if options.store.is_cluster:
        if plan.keeps_commit_log:
            finish(plan, batch)
        return
    files = [message.path for message in done if message.path is not None]
    if files:
        load(options.store, plan.target, files, batch if plan.keeps_commit_log else None)
        staging_of(options).done(batch)


def _abort(plan: WritePlan, batch: BatchId) -> None:
    if not plan.options.store.is_cluster:
        staging_of(plan.options).done(batch)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]
