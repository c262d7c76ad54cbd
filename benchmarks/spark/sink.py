"""``df.write`` into a store file, beside a sink that drops the rows (what bringing them to Python costs)."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

import pelton

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS = 1_000_000
SUBJECTS = 1000
ROUNDS = 5


class Dropping(DataSource):
    """A sink that looks at nothing."""

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


def drop(frame: DataFrame) -> float:
    """Return how long it takes to drop all rows."""
    begun = time.perf_counter()
    frame.write.format("dropping").mode("append").save()
    return time.perf_counter() - begun


def store(frame: DataFrame) -> float:
    """Return how long it takes to store all rows in a new store."""
    home = Path(tempfile.mkdtemp())
    with pelton.sync.open(home / "s.pelton") as jet:
        jet.create_stream("orders", subjects=["orders.>"])
    begun = time.perf_counter()
    frame.write.format("pelton").mode("append").options(path=str(home / "s.pelton"), stream="orders").save()
    took = time.perf_counter() - begun
    shutil.rmtree(home)
    return took


def run(spark: SparkSession, rows: int = ROWS, rounds: int = ROUNDS) -> None:
    """Print both rates, and the median of their ratios."""
    spark.dataSource.register(Dropping)
    frame = frame_of(spark, rows)
    drop(frame), store(frame)
    ratios = []
    for _ in range(rounds):
        dropped, stored = drop(frame), store(frame)
        ratios.append(dropped / stored)
        print(f"dropped {rows / dropped / 1e3:8.0f} k/s   stored {rows / stored / 1e3:8.0f} k/s   {ratios[-1]:.2f}")
    print(f"sink, of one that drops the rows: {sorted(ratios)[len(ratios) // 2]:.2f}x")


if __name__ == "__main__":
    from tests.spark.session import start_session

    run(start_session(Path(tempfile.mkdtemp()), **{"spark.driver.memory": "2g"}), *map(int, sys.argv[1:]))
