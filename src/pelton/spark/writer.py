"""Writes: ``df.write.format("pelton")`` and ``df.writeStream.format("pelton")``.

The story. Spark plans a write in one process, runs tasks in others, and commits in a third: they share what is
pickled, and what tasks return. To a store file, tasks only stage; the commit loads all that the chosen tries have
staged, in one transaction with a note of the batch (``ledger.py``). A try that failed, a speculative one, a driver
that died before the commit: their files are nobody's, and go with their folder. A driver that died after the
transaction and before Spark noted it repeats the batch, which finds the note and stores nothing. To a cluster, tasks
publish; see ``remote_write.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pelton.api import ConfigError
from pelton.engine import StagedWriter
from pelton.spark.attempts import Attempt, Batch, streaming_batch, this_attempt
from pelton.spark.loading import load
from pelton.spark.packing import packed_of, portions
from pelton.spark.place import key_of
from pelton.spark.remote_write import finish, write_cluster
from pelton.spark.staging import staging_of
from pelton.spark.write_options import write_options
from pelton.spark.writing import Writing, plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.rows import Messages


@dataclass
class Written(WriterCommitMessage):
    """What a task has done: its ``batch``, and the ``path`` of what it staged; None where there was nothing."""

    batch: Batch
    partition: int
    path: str | None = None


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame, once."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        options = write_options(given, streaming=False)
        self.writing = plan(options, schema, streaming=False)
        self.batch = Batch(options.write_id or f"once-{self.writing.run}", options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition."""
        return _write(self.writing, iterator, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all of it visible."""
        _commit(self.writing, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing behind."""
        _abort(self.writing, self.batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query; one is made anew for each, and another one for its commit."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self.writing = plan(write_options(given, streaming=True), schema, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of a batch."""
        return _write(self.writing, iterator, streaming_batch())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make a batch visible."""
        _commit(self.writing, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Leave nothing of a batch behind, as far as its tasks have told what it is."""
        for message in _written(messages)[:1]:
            _abort(self.writing, message.batch)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "streams, buckets and queues are appended to: say mode('append'), or outputMode append; "
            "to begin anew purge the stream first"
        )


def _write(writing: Writing, batches: Iterator[pa.RecordBatch], batch: Batch) -> Written:
    attempt = this_attempt()
    if not writing.options.place.is_cluster:
        return Written(batch, attempt.partition, _stage(writing, batches, batch, attempt))
    write_cluster(writing, batches, batch, attempt)
    return Written(batch, attempt.partition)


def _stage(writing: Writing, batches: Iterator[pa.RecordBatch], batch: Batch, attempt: Attempt) -> str | None:
    filled = (rows for rows in batches if rows.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    name = f"{attempt.partition}-{attempt.task}-{writing.run}"
    path = staging_of(writing.options).new_file(batch, name)
    with StagedWriter(path, key_of(writing.options.place)) as staged:
        for rows in portions(chain((first,), filled)):
            _add(staged, writing.shape.messages(rows))
    return path


def _add(staged: StagedWriter, messages: Messages) -> None:
    packed = None if messages.blocks is not None else packed_of(messages.subjects, messages.payloads)
    if packed is not None:
        staged.add_packed(packed)
    else:
        staged.add(messages.subjects.to_pylist(), messages.payloads.to_pylist(), messages.blocks)


def _commit(writing: Writing, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sorted(_written(messages), key=lambda message: message.partition)
    if not done:
        return
    batch, options = done[0].batch, writing.options
    if options.place.is_cluster:
        if writing.keeps_ledger:
            finish(writing, batch)
        return
    files = [message.path for message in done if message.path is not None]
    if files:
        load(options.place, writing.target, files, batch if writing.keeps_ledger else None)
        staging_of(options).done(batch)


def _abort(writing: Writing, batch: Batch) -> None:
    if not writing.options.place.is_cluster:
        staging_of(writing.options).done(batch)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]
