"""The one Spark session of a test run: small, quiet, and skipped with a reason if there is no Java."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "spark.driver.memory": "1g",
    # Half of what a short run costs is the second compiler's work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Where Spark Connect listens once a test has started it: a free port.
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def start_session(warehouse: Path, **settings: str) -> "SparkSession":
    """Start Spark in this process, with Python workers that see this source tree."""
    from pyspark.sql import SparkSession

    prepare()
    builder = SparkSession.builder.master("local[2]").appName("pelton")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse), **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare() -> None:
    """Set which Python the workers run, and where they find this source tree."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Return the session that all tests share."""
    from pelton.spark.pipelines.session import no_java

    reason = no_java()
    if reason is not None:
        pytest.skip(reason)
    session = start_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
