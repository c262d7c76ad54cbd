"""The plan of a write: its target, and the encoder of its rows.

Made on the driver before anything is written, and pickled to every task.

**Encodes rows as jobs: each column is an argument by its name, except ``key`` and ``idempotency_key``.** The job's
function is not available here, so the queue's workers check the arguments: a job whose arguments do not fit becomes a
dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StreamConfig, StreamNotFoundError, headers
from pelton.buckets.entry import OPERATION_HEADER
from pelton.buckets.naming import check_key, key_prefix, stream_of
from pelton.columns import row_encoder as rows
from pelton.columns.row_encoder import EncodedRows, InputColumns, RowEncoder, ValueCheck
from pelton.columns.row_json import json_rows
from pelton.columns.stream_encoder import StreamEncoder, check_ttl
from pelton.queue.backing.setup import EXCLUSIVE
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import JobOptions
from pelton.spark.columns.read_schema import sql_types
from pelton.spark.store_handle import StoreHandle
from pelton.spark.write.commit_log import CommitLog, check_duplicate_window

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.spark.write.options import WriteOptions

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
        """Return one message for each row."""
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
