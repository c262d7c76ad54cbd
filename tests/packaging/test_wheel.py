"""The wheel, as somebody who installs it finds it."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.kit.nats_server import nats_server
from tools.packages import CleanEnvironment, build, lowest, pythons, requirements, strays

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    found = CleanEnvironment(sys.executable, tmp_path_factory.mktemp("clean"))
    found.install(str(wheel))
    return found


def test_the_wheel_has_the_program_and_nothing_else(wheel: Path) -> None:
    assert not strays(wheel)


def test_the_source_distribution_has_what_is_tracked(wheel: Path) -> None:
    """Neither caches nor what the documentation, a benchmark or a demo has built."""
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if listed.returncode:
        pytest.skip("this is no clone")
    assert names - set(listed.stdout.split("\n")) == {"PKG-INFO"}


def test_few_distributions_come_with_it(clean: CleanEnvironment) -> None:
    command = [clean.python, "-I", "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=clean.folder, timeout=60)
    names = {line.partition("==")[0].replace("_", "-") for line in listed.stdout.split()}
    assert names - {"pip", "setuptools"} == {"pelton", "apsw-sqlite3mc", "msgspec"}


def test_the_quick_start_runs_from_the_wheel(clean: CleanEnvironment) -> None:
    clean.run_pages(ROOT / "README.md")


def test_the_command_is_there(clean: CleanEnvironment, tmp_path: Path) -> None:
    pelton = Path(clean.python).with_name("pelton")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([pelton, "--version"], capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("pelton ")


def test_the_lowest_versions_of_all_dependencies_do(wheel: Path, tmp_path: Path) -> None:
    env = CleanEnvironment(sys.executable, tmp_path)
    env.install(f"{wheel}[arrow,cli,cluster,dashboard,metrics,otel,serve]", constraints=lowest(requirements(wheel)))
    rooms = ("arrow", "cli.main", "cluster", "dashboard", "metrics", "otel", "server")
    env.run(f"import {', '.join(f'pelton.{room}' for room in rooms)}")
    env.run_pages(ROOT / "README.md", ROOT / "docs/guides/streams/streams.md", ROOT / "docs/guides/transactions.md")


@pytest.mark.parametrize("version", ["lowest", "highest"])
def test_a_newcomers_path(wheel: Path, tmp_path: Path, version: str) -> None:
    """From an empty folder: install, the tutorial, the outbox, a web application, a cluster, Spark."""
    found = pythons() or [sys.executable]
    if version == "highest" and len(found) == 1:
        pytest.skip("one version of Python is here")
    python = found[0 if version == "lowest" else -1]
    env = CleanEnvironment(python, tmp_path)
    # FastAPI's test client needs httpx2; pip finds setuptools where PySpark is built from source.
    env.install(f"{wheel}[cluster,fastapi,spark]", "httpx2", constraints=["-c " + str(ROOT / "constraints.txt")])
    tutorial = ROOT / "docs/tutorial"
    env.run_pages(tutorial / "first-stream.md", tutorial / "first-queue.md", tutorial / "first-transaction.md")
    for example in ("outbox", "web_app"):
        env.run(
            "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", str(ROOT / f"examples/{example}.py")
        )
    with nats_server(tmp_path / "nats") as server:
        env.run_pages(tutorial / "to-a-cluster.md", given={"cluster": server.url})
    env.run_pages(tutorial / "spark-tables.md", given={"spark": "yes"})
