"""Archive: streams to a table in a data lake, each message exactly once.

Design: a streaming query reads. Executors write each batch as Parquet files, which are not visible until one
transaction adds them to the Delta table, and records the query and the batch number in it. If Spark repeats a batch,
because the driver died before the checkpoint recorded it as done, it is found in the table, and nothing is added. Plain
Parquet has no transactions: there, Spark's own file sink keeps a log of the committed files beside them, and
readers that honour it (Spark) see each row once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it
from pyspark.sql.types import StructType

from pelton.api import ConfigError, PeltonError
from pelton.spark.columns import arrow_schema
from pelton.spark.pipelines.parquet_files import PART_DDL, PARTITIONS, ParquetFile, PartitionWriter, absolute_path
from pelton.spark.write.staging import BatchId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Form = Literal["delta", "parquet"]
_METADATA: Final = "metadata"
_POLL_S: Final = 1


def archive(
    frame: DataFrame, target: str, *, checkpoint: str, form: Form = "delta", every: float | None = None
) -> StreamingQuery:
    """Write a stream to a table partitioned by date (UTC) and stream; return the query, which is running.

    ``frame`` is a ``readStream`` with at least the columns ``stream`` and ``time``; its other columns are kept.
    ``every``: seconds between batches, until stopped; None: archive everything stored, then end. ``checkpoint``
    is the query's checkpoint folder: use one for each target, and keep it with the target. Raises ConfigError.
    """
    if not frame.isStreaming:
        raise ConfigError("archive follows a stream: spark.readStream; for a DataFrame that has an end use append")
    dated = with_date(frame)
    _schema(dated)
    if form == "delta":
        writer = dated.writeStream.foreachBatch(_Batches(target, absolute_path(checkpoint)))
    else:
        writer = dated.writeStream.format("parquet").partitionBy(*PARTITIONS).option("path", absolute_path(target))
    writer = writer.option("checkpointLocation", absolute_path(checkpoint))
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every} seconds").start()


def watch(query: StreamingQuery, progress: Callable[[int], None]) -> int:
    """Wait for a query's end, and return its number of rows; calls ``progress``. An interrupt stops the query."""
    rows: dict[int, int] = {}
    try:
        while True:
            has_ended = query.awaitTermination(_POLL_S)
            rows.update({one.batchId: one.numInputRows for one in query.recentProgress})
            progress(sum(rows.values()))
            if has_ended:
                return sum(rows.values())
    except KeyboardInterrupt:
        query.stop()
        return sum(rows.values())


def append(frame: DataFrame, target: str, *, write_id: str | None = None, version: int = 0) -> bool:
    """Add a DataFrame to a Delta table in one transaction; return whether it was added.

    With ``write_id`` the call can be repeated: if the table already has this ``version`` of it, or a later one, nothing
    is added and the result is False. In ``foreachBatch``, use the batch's id as version. Raises ConfigError.
    """
    if frame.isStreaming:
        raise ConfigError("append takes a DataFrame that has an end; a stream is archived with archive")
    return _append(with_date(frame), target, None if write_id is None else BatchId(write_id, version))


def read_archive(spark: SparkSession, target: str, *, form: Form = "delta", version: int | None = None) -> DataFrame:
    """Return an archive as a DataFrame: all of it, or (Delta) as of a ``version``. Raises ConfigError."""
    if form == "parquet":
        return spark.read.parquet(absolute_path(target))
    from pelton.spark.pipelines import delta_table

    root, uris, schema = delta_table.files(target, version)
    columns = StructType.fromJson(json.loads(schema))
    if not uris:
        return spark.createDataFrame([], columns)
    # Spark puts partition columns last.
    return spark.read.schema(columns).option("basePath", root).parquet(*uris).select(*columns.names)


def with_date(frame: DataFrame) -> DataFrame:
    """Return a frame with the column ``date``: the day of ``time`` in UTC, unless it has one already."""
    missing = {"stream", "time"} - set(frame.columns)
    if missing:
        raise ConfigError(f"an archive needs the columns stream and time; {', '.join(sorted(missing))} is missing")
    if "date" in frame.columns:
        return frame
    return frame.withColumn("date", F.to_date(F.to_utc_timestamp("time", F.current_timezone())))


class _Batches:
    """Appends each batch of a query; Spark calls it in the driver, or in a process beside it (Spark Connect)."""

    def __init__(self, target: str, checkpoint: str) -> None:
        self._target = absolute_path(target)
        self._checkpoint = checkpoint
        self._query = ""

    def __call__(self, frame: DataFrame, number: int) -> None:
        self._query = self._query or _query_of(frame.sparkSession, self._checkpoint)
        _append(frame, self._target, BatchId(self._query, number))


def _query_of(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of a checkpoint's query; a new checkpoint in the same folder has another one.

    Only the checkpoint has it in every environment. Its format is internal to Spark, so the id is validated.
    """
    text = "".join(row.value for row in spark.read.text(f"{checkpoint.rstrip('/')}/{_METADATA}").collect())
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        raise PeltonError(f"{checkpoint}/{_METADATA} does not name its query: use append in foreachBatch") from None


def _append(frame: DataFrame, target: str, batch: BatchId | None) -> bool:
    from pelton.spark.pipelines.delta_table import LakeTable

    schema = _schema(frame)
    lake = LakeTable(target)
    lake.prepare(schema)
    if batch is not None and lake.has(batch):
        return False
    written = frame.mapInArrow(PartitionWriter(lake.target, schema), PART_DDL).collect()
    parts = [ParquetFile(*row) for row in written]
    return bool(parts) and lake.commit(parts, schema, batch)


def _schema(frame: DataFrame) -> Any:
    """Return the Arrow schema, with all columns nullable, because a table outlives the frames that feed it."""
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
    for name, kind in (("date", "date"), ("stream", "string")):
        if kinds[name] != kind:
            raise ConfigError(f"an archive's column {name} must be a {kind}; here it is {kinds[name]}")
    open_schema = StructType.fromJson(frame.schema.jsonValue())
    for field in open_schema:
        field.nullable = True
    return arrow_schema(open_schema)
