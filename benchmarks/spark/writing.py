"""Writes: into a store file, beside a sink that drops the rows (what bringing them to Python costs)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

import pelton
from benchmarks.spark.measure import Case, Result, best_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SUBJECTS = 1000
# One batch after another: what a batch leaves to be done after its answer, the next one waits for.
BATCHES = 3


class Dropping(DataSource):
    """A sink that drops all rows."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is given."""
        return "dropping"

    def writer(self, schema: StructType, overwrite: bool) -> DroppingWriter:
        """Return what drops rows."""
        return DroppingWriter()


class DroppingWriter(DataSourceArrowWriter):
    """Drops rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop them."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows of 128 bytes under 1,000 subjects, held in memory by Spark."""
    data = "cast(lpad(string(id), 128, 'x') AS binary) AS data"
    frame = spark.range(0, rows, 1, 2).selectExpr(f"concat('orders.', id % {SUBJECTS}) AS subject", data).cache()
    frame.count()
    return frame


def drop(frame: DataFrame) -> None:
    """Bring all rows to Python as often, and drop them there."""
    for _ in range(BATCHES):
        frame.write.format("dropping").mode("append").save()


def store(frame: DataFrame, folder: Path) -> None:
    """Store all rows in a new store, ``BATCHES`` times, and wait until nothing is left to be done in the background."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        path = Path(home, "s.pelton")
        with pelton.sync.open(path) as jet:
            jet.create_stream("orders", subjects=["orders.>"])
        for _ in range(BATCHES):
            frame.write.format("pelton").mode("append").options(path=str(path), stream="orders").save()
        while Path(f"{path}-wal").exists():
            time.sleep(0.002)


def sink(spark: SparkSession, folder: Path, rows: int, rounds: int) -> list[Result]:
    """Write rows into a store, and drop them."""
    spark.dataSource.register(Dropping)
    frame = frame_of(spark, rows)
    cases: dict[str, Case] = {"rows dropped": lambda: drop(frame), "pelton sink": lambda: store(frame, folder)}
    found = best_of(cases, rows * BATCHES, rounds)
    frame.unpersist()
    ratio = found["pelton sink"].rate / found["rows dropped"].rate
    print(f"sink: {ratio:.2f}x of one that drops the rows (asked for: 0.5)")
    return list(found.values())
