"""Spark Connect: a program without a JVM, whose session is on a server, has all features."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

EXPECTED = {
    "reads": [90, 4950],
    "registers": 100,
    "tells_errors": True,
    "writes": ['{"id": 6}', 100],
    "streams": [[{"orders": 0}, {"orders": 0}], True],
    "works": [[19, 1, 0], [["PermanentJobError: no paint", 1]], 20, [1, 0]],
    "archives": [5, 5],
    "replays": [[[30, 0], [0, 30]], 30],
}
FOR_EACH_BATCH = ("archives",)


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[str]:
    """Let the JVM of the tests serve programs; its own session is not affected."""
    jvm: Any = spark._jvm
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(spark._jsc.sc())
    module = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    yield f"sc://127.0.0.1:{module.localPort()}"
    none = jvm.scala.Option.empty()
    service.stop(none, none)


@pytest.fixture(scope="module")
def told(server: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The reports of a program that uses the server."""
    steps = [step for step in EXPECTED if step not in FOR_EACH_BATCH or request.config.getoption("--connect")]
    # The environment of this session's own processes must not reach others.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    role = [sys.executable, "-m", "tests.spark.connect_role", server, str(tmp_path_factory.mktemp("connect"))]
    done = subprocess.run([*role, *steps], capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr
    return {name: value for line in done.stdout.splitlines() for name, value in json.loads(line).items()}


@pytest.mark.parametrize("step", EXPECTED)
def test_a_program_without_a_jvm(told: dict[str, Any], step: str) -> None:
    if step not in told:
        pytest.skip("Spark gives a process for foreachBatch 10 s to start: --connect")
    assert told[step] == EXPECTED[step]
