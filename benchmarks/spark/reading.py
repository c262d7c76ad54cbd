"""Reads: batch beside Parquet, backfill, micro-batches beside a source that does nothing, memory of a large store."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import pelton
from benchmarks.spark.measure import Result, best_of, peak_memory

ALL = "stream STRING, subject STRING, sequence BIGINT, time TIMESTAMP, data BINARY, size BIGINT"
_PAYLOAD = 128
_BATCH = 5000


def fill(path: Path, rows: int) -> None:
    """Store ``rows`` messages of 128 bytes under a hundred subjects."""
    with pelton.sync.open(path, sync="off") as jet:
        jet.create_stream("s", subjects=["s.>"])
        for first in range(0, rows, _BATCH):
            data = (b"%07d" % first) * (_PAYLOAD // 7) + b"xx"
            jet.publish_batch([(f"s.{n % 100}", data) for n in range(first, min(first + _BATCH, rows))])


def drop(frame: DataFrame) -> None:
    """Read everything, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def batch(spark: SparkSession, folder: Path, rows: int, rounds: int) -> list[Result]:
    """Read a store, the same rows from Parquet, and those through a Python function that hands them on."""
    path, parquet = folder / "s.pelton", folder / "rows.parquet"
    source = spark.read.format("pelton").options(path=str(path), stream="s", minPartitions=2, rowsPerPartition=rows)
    source.schema(ALL).load().write.mode("overwrite").parquet(str(parquet))
    table = spark.read.parquet(str(parquet))
    cases = {
        "Parquet": lambda: drop(spark.read.parquet(str(parquet))),
        "pelton": lambda: drop(source.schema(ALL).load()),
        "pelton, one column": lambda: drop(source.schema("sequence BIGINT").load()),
        "Parquet through mapInArrow": lambda: drop(table.mapInArrow(lambda batches: batches, table.schema)),
    }
    found = best_of(cases, rows, rounds)
    ratio = found["pelton"].rate / found["Parquet"].rate
    print(f"batch read: {ratio:.2f}x of Parquet (asked for: 0.4)")
    return list(found.values())


def backfill(spark: SparkSession, folder: Path, rows: int, per_batch: int) -> list[Result]:
    """Read a store by AvailableNow: the whole query, which starts a Python process, and its batches alone."""
    whole = batches = float("inf")
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
            options = {"path": str(folder / "s.pelton"), "stream": "s", "maxRowsPerTrigger": per_batch}
            frame = spark.readStream.format("pelton").options(**options).schema(ALL).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            began = time.perf_counter()
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            whole = min(whole, time.perf_counter() - began)
            taken = sum(progress["batchDuration"] for progress in query.recentProgress if progress["numInputRows"])
            batches = min(batches, taken / 1000)
    return [
        Result(f"backfill, {per_batch} a batch, with its start", whole, rows / whole),
        Result(f"backfill, {per_batch} a batch, its batches", batches, rows / batches),
    ]


class BareSource(DataSource):
    """A Python source that does next to nothing: the cost that all of them have."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "sequence BIGINT"

    def streamReader(self, schema: StructType) -> "BareReader":  # noqa: N802  # Spark's name
        return BareReader()


class BareReader(DataSourceStreamReader):
    """Ten rows a batch, whenever it is asked."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"s": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        return {"s": start["s"] + 10}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((start["s"], end["s"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from ((n,) for n in range(*partition.value))


def micro_batches(spark: SparkSession, folder: Path, count: int) -> list[Result]:
    """Compare what a batch of ten rows takes, of ours and of a source that does nothing."""
    spark.dataSource.register(BareSource)
    options = {"path": str(folder / "s.pelton"), "stream": "s", "maxRowsPerTrigger": 10}
    frames = {
        "micro-batch, bare Python source": spark.readStream.format("bare").load(),
        "micro-batch, pelton": spark.readStream.format("pelton").options(**options).schema("sequence BIGINT").load(),
    }
    taken = {name: _median_batch(frame, folder, count) for name, frame in frames.items()}
    bare, ours = taken.values()
    print(f"micro-batch: {ours / bare:.2f}x of a bare Python source (asked for: at most 1.3)")
    return [Result(name, seconds, 10 / seconds) for name, seconds in taken.items()]


def _median_batch(frame: DataFrame, folder: Path, count: int) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            while len(query.recentProgress) < count:
                query.awaitTermination(1)
            times = sorted(progress["batchDuration"] for progress in query.recentProgress[count // 2 :])
        finally:
            query.stop()
    return float(times[len(times) // 2]) / 1000


def memory(spark: SparkSession, folder: Path, rows: int) -> None:
    """Read a large store, and report the memory of Spark's largest Python process."""
    path = folder / "large.pelton"
    fill(path, rows)
    frame = spark.read.format("pelton").options(path=str(path), stream="s", minPartitions=2, rowsPerPartition=rows)
    drop(frame.load())
    print(f"memory: {rows} rows read in two tasks, the largest Python process took {peak_memory()} MiB")
