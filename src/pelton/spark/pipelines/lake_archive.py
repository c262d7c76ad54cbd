"""Archive: streams to a table in a lake, each message once.

The story. A streaming query reads; every batch of it is written by executors as Parquet files, which nobody sees, and
then made part of the Delta table in one transaction that also notes the query and the number of the batch. A batch that
Spark repeats, because its driver died before the checkpoint said that it was done, finds its note and adds nothing.
Plain Parquet has no transactions: there Spark's own file sink keeps a log of the files that count, beside them, and
readers that honour it (Spark) see each row once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it
from pyspark.sql.types import StructType

from pelton.api import ConfigError, PeltonError
from pelton.spark.columns.read_schema import arrow_schema
from pelton.spark.pipelines.parquet_files import PART_DDL, PARTITIONS, ParquetFile, ParquetWriter, whole
from pelton.spark.write.task_attempt import BatchId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Form = Literal["delta", "parquet"]
_METADATA: Final = "metadata"
_LOOK_S: Final = 1


def archive(
    frame: DataFrame, target: str, *, checkpoint: str, form: Form = "delta", every: float | None = None
) -> StreamingQuery:
    """Write a stream to a table partitioned by date (UTC) and stream; return the query, which has begun.

    ``frame`` is a ``readStream`` with at least the columns ``stream`` and ``time``; what else it has is kept.
    ``every``: a batch so many seconds, until stopped; None: all there is, then the query ends. ``checkpoint`` is the
    folder that tells how far the archive is: one a target, and kept with it. Raises ConfigError.
    """
    if not frame.isStreaming:
        raise ConfigError("archive follows a stream: spark.readStream; for a DataFrame that has an end use append")
    dated = with_date(frame)
    _schema(dated)
    if form == "delta":
        writer = dated.writeStream.foreachBatch(_Batches(target, whole(checkpoint)))
    else:
        writer = dated.writeStream.format("parquet").partitionBy(*PARTITIONS).option("path", whole(target))
    writer = writer.option("checkpointLocation", whole(checkpoint))
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every} seconds").start()


def watch(query: StreamingQuery, progress: Callable[[int], None]) -> int:
    """Wait for a query's end, telling how many rows it has read so far; return that. An interrupt stops the query."""
    rows: dict[int, int] = {}
    try:
        while True:
            has_ended = query.awaitTermination(_LOOK_S)
            rows.update({one.batchId: one.numInputRows for one in query.recentProgress})
            progress(sum(rows.values()))
            if has_ended:
                return sum(rows.values())
    except KeyboardInterrupt:
        query.stop()
        return sum(rows.values())


def append(frame: DataFrame, target: str, *, write_id: str | None = None, version: int = 0) -> bool:
    """Add a DataFrame to a Delta table in one transaction; return whether that was done.

    With ``write_id`` it can be repeated: where it, with this ``version`` or a greater one, is in the table already,
    nothing is added and False is returned. Use it in ``foreachBatch`` with the batch's id as version.
    Raises ConfigError.
    """
    if frame.isStreaming:
        raise ConfigError("append takes a DataFrame that has an end; a stream is archived with archive")
    return _append(with_date(frame), target, None if write_id is None else BatchId(write_id, version))


def read_archive(spark: SparkSession, target: str, *, form: Form = "delta", version: int | None = None) -> DataFrame:
    """Return an archive as a DataFrame: all of it, or (Delta) as it was at a ``version``. Raises ConfigError."""
    if form == "parquet":
        return spark.read.parquet(whole(target))
    from pelton.spark.pipelines import delta_table

    root, uris, schema = delta_table.files(target, version)
    columns = StructType.fromJson(json.loads(schema))
    if not uris:
        return spark.createDataFrame([], columns)
    # Spark puts columns that folders tell last.
    return spark.read.schema(columns).option("basePath", root).parquet(*uris).select(*columns.names)


def with_date(frame: DataFrame) -> DataFrame:
    """Return a frame with the column ``date``: the day of ``time`` in UTC, or as it is where there is one."""
    missing = {"stream", "time"} - set(frame.columns)
    if missing:
        raise ConfigError(f"an archive needs the columns stream and time; {', '.join(sorted(missing))} is missing")
    if "date" in frame.columns:
        return frame
    return frame.withColumn("date", F.to_date(F.to_utc_timestamp("time", F.current_timezone())))


class _Batches:
    """Appends each batch of a query; called by Spark, in the driver, or in a process beside it (Spark Connect)."""

    def __init__(self, target: str, checkpoint: str) -> None:
        self._target = whole(target)
        self._checkpoint = checkpoint
        self._query = ""

    def __call__(self, frame: DataFrame, number: int) -> None:
        self._query = self._query or _query_of(frame.sparkSession, self._checkpoint)
        _append(frame, self._target, BatchId(self._query, number))


def _query_of(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of the query that a checkpoint is of: one made anew in the same folder is another one.

    Only the checkpoint tells it everywhere. How it does is Spark's own affair, so what is found is looked at.
    """
    text = "".join(row.value for row in spark.read.text(f"{checkpoint.rstrip('/')}/{_METADATA}").collect())
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        raise PeltonError(
            f"{checkpoint}/{_METADATA} does not tell which query it is of: use append in foreachBatch"
        ) from None


def _append(frame: DataFrame, target: str, batch: BatchId | None) -> bool:
    from pelton.spark.pipelines.delta_table import LakeTable

    schema = _schema(frame)
    lake = LakeTable(target)
    lake.prepare(schema)
    if batch is not None and lake.has(batch):
        return False
    written = frame.mapInArrow(ParquetWriter(lake.target, schema), PART_DDL).collect()
    parts = [ParquetFile(*row) for row in written]
    return bool(parts) and lake.commit(parts, schema, batch)


def _schema(frame: DataFrame) -> Any:
    """Return the columns as Arrow has them; each may be null, because a table outlives the frames it is fed from."""
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
    for name, kind in (("date", "date"), ("stream", "string")):
        if kinds[name] != kind:
            raise ConfigError(f"an archive's column {name} must be a {kind}; here it is {kinds[name]}")
    open_schema = StructType.fromJson(frame.schema.jsonValue())
    for field in open_schema:
        field.nullable = True
    return arrow_schema(open_schema)
