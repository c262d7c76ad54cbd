"""The data source is found."""

import subprocess
import sys

from pyspark.sql import SparkSession

import pelton.spark


def test_the_format_is_found_without_registration(spark: SparkSession) -> None:
    names = [field.name for field in spark.read.format("pelton").options(path="nowhere", stream="orders").load().schema]
    assert names[:3] == ["stream", "subject", "sequence"]


def test_it_can_be_registered(spark: SparkSession) -> None:
    pelton.spark.register(spark)
    assert spark.read.format("pelton").options(path="nowhere", stream="orders").load().schema


def test_without_pyspark_the_extra_is_named() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport pelton.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'pelton[spark]'" in done.stderr
