"""The plan of a write: its target, and the encoder of its rows.

Made on the driver before anything is written, and pickled to every task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pelton.api import ConfigError, StreamNotFoundError
from pelton.buckets.naming import stream_of
from pelton.columns.stream_encoder import StreamEncoder
from pelton.queue.backing.setup import EXCLUSIVE
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.model.naming import QueueNames
from pelton.spark.columns.read_schema import sql_types
from pelton.spark.store_handle import StoreHandle
from pelton.spark.write.bucket_encoder import BucketEncoder
from pelton.spark.write.commit_log import CommitLog, check_duplicate_window
from pelton.spark.write.job_encoder import JobEncoder

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.api import StreamConfig
    from pelton.columns.row_encoder import RowEncoder
    from pelton.spark.write.options import WriteOptions

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
