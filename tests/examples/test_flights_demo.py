"""The demo as a user runs it, short: real processes, a real SIGKILL, every guarantee checked by the demo itself."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

import pelton
from examples.flights.__main__ import main
from examples.flights.work import PLANES


def flights_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights", *arguments]
    # Without Java: the demo's Spark part is tested in the session that all tests share.
    env = {**os.environ, "JAVA_HOME": "/nowhere"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)


def watched(demo: subprocess.Popen[str], folder: Path) -> tuple[str, set[str]]:
    """Look at the page whose address a demo prints; return what it prints until it ends, and the workers seen."""
    assert demo.stdout is not None
    printed, address, workers = "", "", set[str]()
    while not address:
        line = demo.stdout.readline()
        assert line, printed
        printed += line
        found = re.search(r"Live, with the workers: (http://127\.0\.0\.1:\d+/queues/flights)", line)
        address = found[1] if found else ""
    while demo.poll() is None and not list(folder.glob("worker-*.starts")):
        select.select([], [], [], 0.05)
    # A look is shared for two seconds, in which a quick machine does all. The page stays while its demo stands.
    demo.send_signal(signal.SIGSTOP)
    try:
        while demo.poll() is None and not workers:
            with urlopen(address, timeout=10) as page:
                workers |= set(
                    re.findall(r'<tr><th scope="row">([^<]+)</th><td class="text">[^<,]+, \d+', page.read().decode())
                )
            select.select([], [], [], 0.1)
    finally:
        demo.send_signal(signal.SIGCONT)
    return printed + demo.stdout.read(), workers


async def test_a_short_demo_keeps_every_promise(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    command = [sys.executable, "-m", "examples.flights", "--limit", "9000", "--folder", str(folder)]
    env = {**os.environ, "JAVA_HOME": "/nowhere"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as demo:
        printed, workers = watched(demo, folder)
    assert demo.returncode == 0, printed
    assert workers, "the page shows who works"
    assert "PASS: every promise kept" in printed
    assert "SIGKILL" in printed
    assert "no aircraft" in printed
    assert "It needs Java 17 or newer" in printed
    assert (folder / "flights.html").read_text().startswith("<!doctype html>")
    async with pelton.open(folder / "flights.pelton") as jet:
        counts = await (await jet.queue("flights")).counts()
        assert counts.unfinished == 0
        assert counts.completed + counts.failed == 9000
        assert (await (await jet.stream(PLANES)).info()).state.messages == counts.completed


@pytest.mark.parametrize("earlier", [False, True])
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, earlier: bool) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose me")
    if earlier:
        (tmp_path / "flights.pelton").touch()
    done = flights_demo("--limit", "100", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "holds something else" in done.stderr
    assert (tmp_path / "thesis.txt").exists()


def test_what_an_interrupted_demo_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[list[Path]]()
    monkeypatch.setattr(
        "examples.flights.__main__.run_demo", lambda settings, _: not ran.append([*settings.folder.iterdir()])
    )
    for name in ("flights.pelton", "flights.pelton-wal", "flights.pelton-shm", "flights.pelton-sync", "flights.csv"):
        (tmp_path / name).touch()
    for name in ("flights.html", "jobs.html", "worker-12.starts"):
        (tmp_path / name).touch()
    for name in ("flights.pelton-wake", "flights.lake/date=2013-01-01", "flights.lake-checkpoint/offsets"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "0").touch()
    assert main(["--limit", "100", "--folder", str(tmp_path)]) == 0
    assert ran == [[]]


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").touch()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "flights.lake").symlink_to(tmp_path / "precious")
    assert main(["--limit", "100", "--folder", str(tmp_path / "report")]) == 2
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_a_misused_command_line_says_how_to_use_it() -> None:
    assert flights_demo("--limit", "0").returncode == 2
    assert "--workers" in flights_demo("--help").stdout
