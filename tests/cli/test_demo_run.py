"""The demo as a user runs it, short: real processes, a real SIGKILL, every promise checked by the demo itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from pelton.cli.demo.work import PLANES


def pelton_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pelton.cli.main", *arguments]
    # Without Java: what the demo does with Spark is tested in the session that all tests share.
    env = {**os.environ, "JAVA_HOME": "/nowhere"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)


async def test_a_short_demo_keeps_every_promise(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    done = pelton_command("demo", "--limit", "3000", "--folder", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: every promise kept" in done.stdout
    assert "SIGKILL" in done.stdout
    assert "no aircraft" in done.stdout
    assert "It needs Java 17 or newer" in done.stdout
    assert (folder / "flights.html").read_text().startswith("<!doctype html>")
    async with pelton.open(folder / "flights.pelton") as jet:
        counts = await (await jet.queue("flights")).counts()
        assert counts.unfinished == 0
        assert counts.completed + counts.failed == 3000
        assert (await (await jet.stream(PLANES)).info()).state.messages == counts.completed


@pytest.mark.parametrize("earlier", [False, True])
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, earlier: bool) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose me")
    if earlier:
        (tmp_path / "flights.pelton").touch()
    done = pelton_command("demo", "--limit", "100", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "holds something else" in done.stderr
    assert (tmp_path / "thesis.txt").exists()


def test_a_misused_command_line_says_how_to_use_it() -> None:
    assert pelton_command().returncode == 2
    assert pelton_command("demo", "--limit", "0").returncode == 2
    assert "demo" in pelton_command("--help").stdout
