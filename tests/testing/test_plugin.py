"""pytest finds the fixtures by the entry point, whether or not a conftest names them, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contrib.entries import ROOT, write_entry_points

TESTS = """
async def test_a_job_waits_for_its_time(pelton_queue, pelton_clock):
    await pelton_queue.options(delay=60).enqueue("later")
    assert (await pelton_queue.counts()).scheduled == 1
    pelton_clock.advance(61)
    assert (await pelton_queue.counts()).scheduled == 0
"""
OPTIONS = ["-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-W", "error::pytest.PytestAssertRewriteWarning"]


@pytest.mark.parametrize("named", ["", 'pytest_plugins = ["pelton.testing.fixtures"]'])
def test_fixtures_are_found(tmp_path: Path, named: str) -> None:
    write_entry_points(tmp_path)
    (tmp_path / "conftest.py").write_text(named)
    (tmp_path / "test_jobs.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", *OPTIONS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
