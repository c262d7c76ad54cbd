"""Spark finds the data source."""

import asyncio
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pelton.spark


def test_the_format_is_found_without_registration(spark: SparkSession) -> None:
    names = [field.name for field in spark.read.format("pelton").options(path="nowhere", stream="orders").load().schema]
    assert names[:3] == ["stream", "subject", "sequence"]


def test_it_can_be_registered(spark: SparkSession) -> None:
    pelton.spark.register(spark)
    assert spark.read.format("pelton").options(path="nowhere", stream="orders").load().schema


async def test_another_thread_writes_once_it_has_registered(spark: SparkSession, tmp_path: Path) -> None:
    def write() -> None:
        pelton.spark.register(spark)
        frame = spark.sql("SELECT 'orders.a' AS subject, 'x' AS data").write.format("pelton").mode("append")
        frame.options(path=str(tmp_path / "s.pelton"), stream="orders").save()
        pelton.spark.enqueue_from(spark.sql("SELECT 1 AS n"), "g", "paint", path=str(tmp_path / "s.pelton"))

    async with pelton.open(tmp_path / "s.pelton") as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        garage = await jet.queue("g")
        await asyncio.to_thread(write)
        assert (await orders.info()).state.messages == 1
        assert (await garage.counts()).pending == 1


def test_without_pyspark_the_extra_is_named() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport pelton.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'pelton[spark]'" in done.stderr
