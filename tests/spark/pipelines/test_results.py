"""The results of jobs on executors as a table: one row per job, once, with the job's completion."""

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import pelton
from pelton.spark import enqueue_from, pipelines, work
from tests.spark.write.test_stream_writer import lose_last_commit


def paint(rows: pd.DataFrame) -> pd.DataFrame:
    done = rows[["id", "car"]].assign(hours=rows["coats"] * 0.5, permanent=True)
    return done.assign(error=rows["coats"].map(lambda coats: None if coats else "no coats"))


def test_results_become_a_table_once(spark: SparkSession, tmp_path: Path) -> None:
    place, target, checkpoint = {"path": str(tmp_path / "g.pelton")}, str(tmp_path / "painted"), tmp_path / "c"
    with pelton.sync.open(place["path"]) as jet:
        jet.queue("garage")
    for first in (0, 10):
        cars = spark.range(first, first + 10).selectExpr("concat('car', id) AS car", "int(id % 5) AS coats")
        enqueue_from(cars, "garage", "paint", **place)
        assert work("garage", paint, args="car STRING, coats INT", **place).completed == 8
        rows = pipelines.results(spark, "garage", "car STRING, hours DOUBLE", **place)
        pipelines.archive(rows, target, checkpoint=str(checkpoint)).awaitTermination()
        lose_last_commit(checkpoint)
    table = pipelines.read_archive(spark, target).orderBy("sequence").collect()
    assert len(table) == 20
    done = {row.result.car: row.result.hours for row in table if row.state == "completed"}
    assert done == {f"car{n}": n % 5 * 0.5 for n in range(20) if n % 5}
    assert [row.cause for row in table if row.state == "failed"] == ["PermanentJobError: no coats"] * 4


def test_a_queue_has_to_be_there(spark: SparkSession, tmp_path: Path) -> None:
    pelton.sync.open(tmp_path / "g.pelton").close()
    with pytest.raises(pelton.ConfigError, match="there is no queue 'garage'"):
        pipelines.results(spark, "garage", path=str(tmp_path / "g.pelton"))
