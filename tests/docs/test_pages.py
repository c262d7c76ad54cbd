"""The README and the documentation are correct."""

import inspect
import logging
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import nats
import pytest

import pelton
from tests.consumers.test_states import LINES as DELIVERY_LINES
from tests.contrib.entries import write_entry_points
from tests.docs.pages import PAGES, ROOT, blocks, run_page
from tests.kit.nats_server import free_ports, nats_cluster, nats_server
from tests.kit.served import served_store
from tests.queue.control.test_states import LINES as JOB_LINES
from tests.server.test_leaf import linked

NEED_A_SERVED_STORE = {"serve.md", "from-nats.md"}
NEED_SERVERS = {"cluster.md", "copy.md", "to-a-cluster.md"}
WITH_CODE = [page for page in PAGES if blocks(page, "python")]
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


async def answers_across(edge: str, hub: str) -> None:
    """Wait until a leaf and its hub share interest."""
    async with await nats.connect(edge) as here, await nats.connect(hub) as there:
        await linked(here, there)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
async def test_examples_of_a_page_run_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    # A page may make the log quieter than the tests after it need it.
    log = logging.getLogger("pelton")
    request.addfinalizer(partial(log.setLevel, log.level))
    if page.name in ("celery-broker.md", "frameworks.md"):
        # Celery takes over the log of its process, Django has one set of settings for it, and fsspec one look at the
        # entry points.
        write_entry_points(tmp_path)
        program = "import asyncio, sys; from pathlib import Path; from tests.docs.pages import run_page\n"
        program += "asyncio.run(run_page(Path(sys.argv[1])))"
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src"), str(ROOT)]))
        command = [sys.executable, "-c", program, str(page)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr[-4000:]
        return
    if page.name.startswith(("spark", "pipelines")):
        await run_page(page, spark=request.getfixturevalue("spark"))
        return
    if page.name in NEED_A_SERVED_STORE:
        with served_store(tmp_path / "garage.pelton") as running:
            await run_page(page, server=running.url)
        return
    if page.name == "leaf.md":
        (port,) = free_ports(1)
        flags = ("--leaf", f"nats://127.0.0.1:{port}", "--domain", "edge")
        extra = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
        with (
            nats_server(tmp_path / "hub", domain="hub", extra=extra) as hub,
            served_store(tmp_path / "edge.pelton", flags) as edge,
        ):
            await answers_across(edge.url, hub.url)
            await run_page(page, hub=hub.url, edge=edge.url, hub_leafs=f"nats://127.0.0.1:{port}")
        return
    if page.name not in NEED_SERVERS:
        await run_page(page)
        return
    with nats_cluster(tmp_path / "servers") as running:
        await run_page(page, cluster=running.url)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


# --- the README, and its commands ------------------------------------------------------------------


def commands() -> list[list[str]]:
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    lines = [line for page in pages for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_make_targets_of_the_readme_exist() -> None:
    targets = {words[1] for words in commands() if words[0] == "make"}
    assert "demo" in targets
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_pelton_commands_of_the_readme_are_understood() -> None:
    for words in commands():
        if words[0] == "pelton":
            told = help_of(words[1])
            if "VERB" in told:
                told = help_of(*words[1:3])
            for option in [word for word in words[2:] if word.startswith("--")]:
                assert option in told


def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "pelton.cli.main", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_readme_installs_is_this_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for words in commands():
        if words[0] == "pip":
            assert words[1] == "install"
            extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", words[2])
            assert extras, f"{words[2]} is no install from the clone"
            assert set((extras[1] or "").split(",")) - {""} <= set(project["optional-dependencies"])


def test_every_command_of_the_readme_is_checked_here() -> None:
    assert {words[0] for words in commands()} <= {"make", "pip", "pelton", "git", "cd"}


def test_the_readme_is_read_to_its_end() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8_000


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(_LINK.findall((folder / "README.md").read_text()))
    assert listed == {page.name for page in folder.glob("0*.md")}


def test_every_page_is_reached_from_the_readme() -> None:
    found, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in found or page.suffix != ".md" or not page.is_file():
            continue
        found.add(page)
        waiting += [(page.parent / target).resolve() for target in _LINK.findall(page.read_text())]
    assert set(PAGES) <= found


# --- drawings and tables --------------------------------------------------------------------------


def test_every_room_is_in_the_architecture_and_its_drawing() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    drawing = (ROOT / "docs" / "internals" / "rooms.svg").read_text()
    for path in (ROOT / "src" / "pelton").iterdir():
        room = path.stem
        if room.startswith("_") or path.suffix not in ("", ".py"):
            continue
        assert f"| `{room}` |" in page, room
        assert f">{room}</text>" in drawing or room == "testing", room


def test_the_states_of_a_job_are_drawn_as_they_are() -> None:
    (drawing,) = blocks(ROOT / "docs" / "guides" / "jobs" / "queue.md", "mermaid")
    drawn = re.findall(r"(\S+) --> (\w+): (.+)", drawing.text)
    assert drawn == [(before or "[*]", after, event) for before, event, after in JOB_LINES]


def test_the_states_of_a_delivery_are_drawn_as_they_are() -> None:
    (drawing,) = blocks(ROOT / "docs" / "explanation" / "consumers.md", "mermaid")
    drawn = re.findall(r"(\S+) --> (\w+): (.+)", drawing.text)
    assert drawn == [(before or "[*]", after, event) for before, event, after in DELIVERY_LINES]


# --- the public surface ---------------------------------------------------------------------------


def test_every_public_error_is_on_the_page_of_errors() -> None:
    path = ROOT / "docs" / "reference" / "errors.md"
    page, tree = path.read_text(), blocks(path, "text")[0].text
    for name in pelton.__all__:
        kind = getattr(pelton, name)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            assert f"`{name}`" in page, name
            assert name in tree, f"{name} is not in the tree"


def test_every_public_name_has_a_docstring() -> None:
    for name in pelton.__all__:
        value = getattr(pelton, name)
        if isinstance(value, type) or inspect.isroutine(value) or inspect.ismodule(value):
            assert (value.__doc__ or "").strip(), name


def test_every_public_method_has_a_docstring() -> None:
    for name in pelton.__all__:
        value = getattr(pelton, name)
        if isinstance(value, type) and value.__module__.startswith("pelton."):
            # What a class inherits from a part of its face, too.
            own = [base for base in value.__mro__ if base.__module__.startswith("pelton.")]
            for method, member in ((found, member) for base in own for found, member in vars(base).items()):
                if not method.startswith("_") and inspect.isroutine(member):
                    assert (member.__doc__ or "").strip(), f"{name}.{method}"
