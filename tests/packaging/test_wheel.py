"""The wheel, as somebody who installs it finds it."""

import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.nats_server import nats_server
from tools.packages import CleanEnvironment, build, check_types, lowest, pythons, requirements, strays

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


def test_the_source_distribution_has_what_is_not_ignored(wheel: Path) -> None:
    """Neither caches nor what the documentation, a benchmark or a demo has built."""
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    assert names - set(listed.stdout.split("\n")) == {"PKG-INFO"}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the metadata hook defines: hatchling is only where packages are built."""
    stub = SimpleNamespace(MetadataHookInterface=object)
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin", "hatchling.metadata.plugin.interface"):
        monkeypatch.setitem(sys.modules, name, stub)
    return runpy.run_path(str(ROOT / "tools/index_metadata.py"))


def test_an_index_shows_no_links_that_lead_nowhere(wheel: Path, hook: dict[str, Any]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    text = str(metadata.get_payload())
    assert "Durable streams and background jobs" in text
    assert not [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith(("https://", "#"))]
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pelton"]["home"]
    assert dict(line.split(", ") for line in metadata.get_all("Project-URL") or ()) == hook["urls_of"](home)


def test_with_an_address_links_are_absolute(hook: dict[str, Any]) -> None:
    home = "https://forge.example/pelton"
    for_index = hook["readme_for_index"]
    assert for_index("See [the guide](docs/a.md).", "") == "See the guide."
    readme = for_index((ROOT / "README.md").read_text(), home)
    found = re.findall(rf"{re.escape(home)}/(?:blob|raw)/main/([^)#]*)", readme)
    assert len(found) > 20
    assert all((ROOT / path).exists() for path in found)
    assert f"![Flights done per second by three workers; one is killed, another takes over]({home}/raw/" in readme
    assert set(hook["urls_of"](home)) == {"Repository", "Documentation", "Changelog", "Issues"}


def test_the_types_of_all_public_names_are_known() -> None:
    """A checker of another kind than ours infers nothing in what is installed."""
    pytest.importorskip("pyright")
    check_types()


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
