"""Writes: ``df.write.format("pelton")`` and ``df.writeStream.format("pelton")``.

Design: Spark plans a write in one process, runs tasks in others, and commits in a third; they share only what is
pickled, and what tasks return. To a store file, tasks only stage rows. The commit loads the files of the attempts that
Spark chose, in one transaction that also records the batch in the commit log (``staging.py``). Files of failed and
speculative attempts, and of a driver that died before the commit, are ignored and removed with their folder. A driver
that died after the transaction, but before Spark recorded the commit, repeats the batch; it is found in the commit log,
and nothing is stored. To a cluster, tasks publish.

**Loads staged rows into a store, on the driver: one transaction that stores them and commits the batch.** No other
process writes to the store during the load; readers continue, and see all of the batch or nothing. Memory holds one
portion of the staged rows (8 MiB) at a time.

Once the transaction is committed and its WAL is on disk, durability is complete. Checkpointing a long WAL into the file
(half as much work again) is left to a thread that closes the store, while Spark continues. The next load of this
process waits for it, so that the WAL does not grow faster than it is checkpointed. If the process is killed before
that, the next writer checkpoints the WAL, as after any crash.

**Writes a task's rows to a cluster: publishes them as they come, with ids that deduplicate repeated attempts.** A
message id names batch, partition and row, and the row's checksum. If a second attempt produces other rows than the
first (rows in no fixed order), a row may be stored twice, but none is missing.

**The plan of a write: its target, and the encoder of its rows.** Made on the driver before anything is written, and
pickled to every task.

**Encodes rows as jobs: each column is an argument by its name, except ``key`` and ``idempotency_key``.** The job's
function is not available here, so the queue's workers check the arguments: a job whose arguments do not fit becomes a
dead letter.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pelton.api import (
    ConfigError,
    Outgoing,
    PeltonError,
    StreamConfig,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
)
from pelton.buckets.bucket_settings import check_key, key_prefix, stream_of
from pelton.buckets.coding import OPERATION_HEADER
from pelton.columns import row_encoder as rows
from pelton.columns.joined_columns import placed_sums
from pelton.columns.row_encoder import (
    EncodedRows,
    InputColumns,
    RowEncoder,
    StreamEncoder,
    ValueCheck,
    check_ttl,
    json_rows,
)
from pelton.engine import bulk
from pelton.engine.bulk import StagedWriter
from pelton.jet import Savepoint
from pelton.queue.job_message import JobMessage
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import JobOptions
from pelton.queue.setup import EXCLUSIVE
from pelton.spark.columns import pack, rebatch, sql_types
from pelton.spark.options import COMMIT_STREAM
from pelton.spark.store_handle import StoreHandle, encryption_key
from pelton.spark.write.staging import (
    BatchId,
    CommitLog,
    TaskAttempt,
    check_duplicate_window,
    current_attempt,
    file_name,
    staging_of,
    streaming_batch_id,
)
from pelton.spark.write.write_options import write_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.jet import Streams
    from pelton.spark.options import StoreOptions
    from pelton.spark.write.write_options import WriteOptions

_DELETED: Final = headers.encode({OPERATION_HEADER: "DEL"})


class BucketEncoder(RowEncoder):
    """Encodes rows as writes to a bucket's keys."""

    def __init__(self, schema: StructType, config: StreamConfig) -> None:
        columns = InputColumns(sql_types(schema))
        columns.need("key", rows.TEXT, "a bucket's rows have one")
        self._has_ttl = columns.take("ttl", rows.INTEGERS)
        self._rest = columns.payload("value", rows.BYTES)
        check_ttl(config, self._has_ttl)
        if config.mirror is not None:
            raise ConfigError(f"bucket {config.name!r} is a mirror: write to its origin, {config.mirror.name!r}")
        self._prefix = key_prefix(config)

    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        keys = rows.text_of(rows.without_nulls(batch, "key"))
        ValueCheck(_check)(keys)
        ttl = rows.seconds(rows.optional(batch, "ttl", self._has_ttl))
        blocks = rows.blocks(len(keys), ((headers.TTL, ttl),))
        subjects = pc.binary_join_element_wise(self._prefix, keys, "")
        if self._rest:
            return EncodedRows(subjects, rows.payloads(batch, "value", self._rest), blocks)
        values = batch.column("value").cast(pa.binary())
        if values.null_count:
            kept = blocks or [None] * len(keys)
            gone = values.is_null().to_pylist()
            blocks = [_DELETED if is_gone else block for is_gone, block in zip(gone, kept, strict=True)]
            values = values.fill_null(b"")
        return EncodedRows(subjects, values, blocks)


def _check(key: str) -> None:
    try:
        check_key(key)
    except ConfigError as error:
        raise ConfigError(f"column key: {error}") from None


class JobEncoder(RowEncoder):
    """Encodes rows as messages that enqueue jobs."""

    def __init__(self, schema: StructType, form: JobMessage) -> None:
        columns = InputColumns(sql_types(schema))
        self._has_key = columns.take("key", rows.TEXT)
        self._has_id = columns.take("idempotency_key", rows.TEXT)
        self._arguments = columns.rest()
        self._form = form

    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        """Return one job for each row, without a key if that is null."""
        count = batch.num_rows
        arguments = json_rows(batch, self._arguments) if self._arguments else [b"{}"] * count
        keys = rows.optional(batch, "key", self._has_key) or [None] * count
        ids = rows.optional(batch, "idempotency_key", self._has_id) or [None] * count
        try:
            jobs = [
                self._form.message(args, JobOptions(key=key or "", idempotency_key=job_id or ""))
                for args, key, job_id in zip(arguments, keys, ids, strict=True)
            ]
        except ConfigError as error:
            raise ConfigError(f"column key: {error}") from None
        has_blocks = any(job.headers is not None for job in jobs)
        blocks = [job.headers for job in jobs] if has_blocks else None
        subjects, payloads = [job.subject for job in jobs], [job.data for job in jobs]
        return EncodedRows(pa.array(subjects, pa.string()), pa.array(payloads, pa.binary()), blocks)


_MADE_BY: Final = {
    "stream": "jet.create_stream({name!r}, subjects=[...])",
    "bucket": "jet.create_bucket({name!r})",
    "queue": "jet.queue({name!r})",
}


@dataclass(frozen=True)
class WritePlan:
    """A write: ``target`` is the stream that gets the messages, ``run`` is unique to each planning of the write."""

    options: WriteOptions
    target: str
    encoder: RowEncoder
    window_ns: int
    run: str
    keeps_commit_log: bool


def plan_write(options: WriteOptions, schema: StructType, *, streaming: bool) -> WritePlan:
    """Look up the target, and check the columns against it. Raises ConfigError, StreamNotFoundError."""
    keeps_commit_log = streaming or options.write_id is not None
    with StoreHandle(options.store) as store:
        config = _config(store, options)
        window_ns = config.duplicate_window.ns
        if options.store.is_cluster:
            check_duplicate_window(config.name, window_ns, late=options.late_replay)
            if keeps_commit_log:
                store.run(CommitLog(store.jet, config.name).prepare, config.num_replicas)
        run = store.jet.runtime.ids.new()
    return WritePlan(options, config.name, _encoder(options, schema, config), window_ns, run, keeps_commit_log)


def _config(store: StoreHandle, options: WriteOptions) -> StreamConfig:
    try:
        return store.stream(_stream(options)).config
    except StreamNotFoundError:
        made = _MADE_BY[options.kind].format(name=options.name)
        where = "on the cluster" if options.store.is_cluster else f"in {options.store.address}"
        raise ConfigError(f"there is no {options.kind} {options.name!r} {where}: make it first, {made}") from None


def _stream(options: WriteOptions) -> str:
    if options.kind == "bucket":
        return stream_of(options.name)
    return QueueNames(options.name).jobs if options.kind == "queue" else options.name


def _encoder(options: WriteOptions, schema: StructType, config: StreamConfig) -> RowEncoder:
    if options.kind == "stream":
        return StreamEncoder(sql_types(schema), config, options.subject)
    if options.kind == "bucket":
        return BucketEncoder(schema, config)
    if EXCLUSIVE not in config.metadata:
        raise ConfigError(f"stream {config.name!r} is not a queue")
    is_exclusive = config.metadata[EXCLUSIVE] == "true"
    return JobEncoder(schema, JobMessage(QueueNames(options.name), str(options.job), exclusive=is_exclusive))


_LONGEST_S: Final = 24 * 3600.0
_LARGE: Final = 16 * 1024 * 1024
_closing: Final = ThreadPoolExecutor(1, thread_name_prefix="pelton-closing")
_log: Final = logging.getLogger("pelton.spark")


def load(options: StoreOptions, target: str, files: Sequence[str], batch: BatchId | None) -> bool:
    """Store the staged rows for the stream ``target``; False if the ``batch`` is already stored.

    ``batch`` None: a batch that is never repeated. Raises what publishing raises; then nothing is stored.
    """
    is_large = sum(map(_size, files)) >= _LARGE
    # Wait for the closing of earlier loads.
    _closing.submit(_nothing).result()
    store = StoreHandle(options)
    try:
        if batch is None:
            store.run(_store, store.jet, options, files, None)
            return True
        return store.run(_store_once, store.jet, options, files, CommitLog(store.jet, target), batch)
    finally:
        if is_large:
            _closing.submit(_close, store)
        else:
            store.close()


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _close(store: StoreHandle) -> None:
    try:
        store.close()
    except PeltonError as error:
        _log.warning("closing %s after a batch was stored: %s", store.options.address, error)


def _nothing() -> None:
    return None


async def _store_once(
    jet: Streams, options: StoreOptions, files: Sequence[str], commit_log: CommitLog, batch: BatchId
) -> bool:
    await commit_log.prepare()
    while True:
        entry = await commit_log.lookup(batch)
        if entry.is_done(batch):
            return False
        try:
            await _store(jet, options, files, commit_log.message(batch, entry, done=True))
        except WrongLastSequenceError as error:
            if error.stream != COMMIT_STREAM:
                raise
            # Another process has just committed to the log: check again.
            continue
        return True


async def _store(jet: Streams, options: StoreOptions, files: Sequence[str], note: Outgoing | None) -> None:
    transaction = jet.backend.transaction(_LONGEST_S)
    async with Savepoint(transaction):
        if note is not None:
            await transaction.publish([note])
        for path in files:
            await bulk.load(transaction, path, encryption_key(options), placed_sums)


_ID: Final = headers.MSG_ID.encode()
_OPENING: Final = b"NATS/1.0\r\n"


def write_cluster(plan: WritePlan, batches: Iterator[pa.RecordBatch], batch: BatchId, attempt: TaskAttempt) -> None:
    """Publish rows; return when all are acknowledged. Raises LateReplayError, and what publishing raises."""
    options = plan.options
    with StoreHandle(options.store) as store:
        if plan.keeps_commit_log and not store.run(_begin, store, plan, batch, attempt):
            return
        base = f"{file_name(batch.writer)}-{batch.number}-{attempt.partition}-".encode()
        row = 0
        for rows in batches:
            messages = plan.encoder.messages(rows)
            store.run(store.jet.backend.publish_batch, _with_ids(messages, base, row))
            row += len(messages.subjects)


async def _begin(store: StoreHandle, plan: WritePlan, batch: BatchId, attempt: TaskAttempt) -> bool:
    commit_log, is_first = CommitLog(store.jet, plan.target), attempt.number == 0
    late = plan.options.late_replay
    return await commit_log.begin(batch, plan.run, first=is_first, window_ns=plan.window_ns, late=late)


def finish(plan: WritePlan, batch: BatchId) -> None:
    """Record a batch as done in the commit log."""
    with StoreHandle(plan.options.store) as store:
        store.run(CommitLog(store.jet, plan.target).finish, batch)


def _with_ids(messages: EncodedRows, base: bytes, row: int) -> list[Outgoing]:
    blocks = messages.blocks or [None] * len(messages.subjects)
    found: list[Outgoing] = []
    subjects, payloads = messages.subjects.to_pylist(), messages.payloads.to_pylist()
    for number, (subject, data, block) in enumerate(zip(subjects, payloads, blocks, strict=True), row):
        if block is None or headers.first(block, headers.MSG_ID) is None:
            line = b"%b: %b%d-%x\r\n\r\n" % (_ID, base, number, crc32(data, crc32(subject.encode())))
            block = (_OPENING if not block else block[:-2]) + line
        found.append(Outgoing(subject, data, block))
    return found


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
        return _write(self.plan, iterator, streaming_batch_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make a batch visible."""
        _commit(self.plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Remove the staged files of a batch, as far as its tasks have reported them."""
        for message in _task_commits(messages)[:1]:
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
        for rows in rebatch(chain((first,), filled)):
            _add(staged, plan.encoder.messages(rows))
    return path


def _add(staged: StagedWriter, messages: EncodedRows) -> None:
    packed = None if messages.blocks is not None else pack(messages.subjects, messages.payloads)
    if packed is not None:
        staged.add_packed(packed)
    else:
        staged.add(messages.subjects.to_pylist(), messages.payloads.to_pylist(), messages.blocks)


def _commit(plan: WritePlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sorted(_task_commits(messages), key=lambda message: message.partition)
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
        staging_of(options).remove_batch(batch)


def _abort(plan: WritePlan, batch: BatchId) -> None:
    if not plan.options.store.is_cluster:
        staging_of(plan.options).remove_batch(batch)


def _task_commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]
