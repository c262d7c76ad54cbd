"""The example of Spark Declarative Pipelines runs twice in a row. Two JVMs: skipped unless requested."""

import subprocess
import sys
from pathlib import Path

import pytest

from pelton.spark.pipelines.session import no_java

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline" / "run.py"


def test_the_pipeline_goes_on_where_it_was(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--declarative"):
        pytest.skip("starts Spark twice: --declarative")
    if (reason := no_java()) is not None:
        pytest.skip(reason)
    for readings, alarms in ((10, 3), (20, 6)):
        command = [sys.executable, str(EXAMPLE), str(tmp_path / "work")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == f"{readings} readings, {alarms} alarms"
