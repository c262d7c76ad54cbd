"""Spark finds the data source."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pelton.spark
from pelton.spark.store_handle import choose_python


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


def test_a_session_that_starts_later_has_this_python() -> None:
    environ: dict[str, str] = {}
    assert choose_python(environ, "/env/bin/python", None) is None
    assert environ == {"PYSPARK_PYTHON": "/env/bin/python", "PYSPARK_DRIVER_PYTHON": "/env/bin/python"}


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "PYTHON_WORKER_FACTORY_PORT"])
def test_what_others_have_decided_stays(name: str) -> None:
    environ = {name: "1"}
    assert choose_python(environ, "/env/bin/python", "/usr/bin/python3") is None
    assert environ == {name: "1"}


def test_a_session_with_another_python_is_told() -> None:
    environ: dict[str, str] = {}
    assert "set PYSPARK_PYTHON" in (choose_python(environ, "/env/bin/python", "/usr/bin/python3") or "")
    assert choose_python(environ, "/env/bin/python", "/env/bin/python") is None
    assert environ == {}


_PROGRAM = """
import sys
import pelton.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.format("pelton").options(path=sys.argv[1], stream="orders").load().count())
"""


def test_an_environments_python_needs_no_activation(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("orders", subjects=["orders"])
        jet.publish("orders", b"")
    java = Path(shutil.which("java") or "").resolve().parent
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environ["PATH"] = f"{java}:/usr/bin:/bin"
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "s.pelton")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert done.stdout.split()[-1:] == ["1"], done.stderr[-2000:]
