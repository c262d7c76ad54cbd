"""The commands of the guide do what it shows, on a file; on a cluster they work, too."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pelton.cli.main import main, parser
from tests.docs.pages import ROOT, blocks
from tests.kit.nats_server import nats_server

PAGE = ROOT / "docs" / "guides" / "operating" / "command-line.md"


class Step(NamedTuple):
    """A command, and the lines that it writes; ``...`` stands for any text, and spaces for any number of them."""

    words: list[str]
    expected: list[str]


def steps() -> Iterator[Step]:
    for block in blocks(PAGE, "console"):
        step: Step | None = None
        for line in block.text.splitlines():
            if line.startswith("$ "):
                if step is not None:
                    yield step
                step = Step(shlex.split(line[2:]), [])
            elif step is not None:
                step.expected.append(line)
        if step is not None:
            yield step


def _matches(expected: str, written: str) -> bool:
    # Columns are as wide as their contents, such as a time since.
    one, other = (" ".join(text.split()) for text in (expected, written))
    return re.fullmatch(".*".join(re.escape(part) for part in one.split("...")), other) is not None


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PELTON_STORE", raising=False)


def test_the_commands_write_what_the_guide_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in steps():
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            continue
        assert main(words[1:]) == 0, capsys.readouterr().err
        written = capsys.readouterr().out.splitlines()
        assert len(written) == len(expected), (words, written)
        for line, shown in zip(written, expected, strict=True):
            assert _matches(shown, line), (words, shown, line)


def test_the_commands_work_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with nats_server(tmp_path) as server:
        for words, _ in steps():
            if words[0] == "export":
                monkeypatch.setenv("PELTON_STORE", server.url)
            elif words[1] != "sql":
                assert main([server.url if word == "shop.pelton" else word for word in words[1:]]) == 0


def test_the_guide_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    from pelton.cli.main import COMMANDS

    text = PAGE.read_text()
    assert not [name for name in COMMANDS if not re.search(rf"[`| ]{name}[` ]", text)]


# --- commands that other pages and the alerts name in passing: their verbs and options are there

ALERTS = ROOT / "examples" / "prometheus" / "alerts.yaml"


def named() -> list[str]:
    """Every ``pelton ...`` within a line of the docs, and in what the alerts say."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    found = [one for page in pages for one in re.findall(r"`(pelton [a-z][^`]*)`", page.read_text())]
    found += re.findall(r"(?:`|with |on: |one: |go on: )(pelton [a-z][^\"`,]*)", ALERTS.read_text())
    return sorted({" ".join(one.split()) for one in found})


@pytest.mark.parametrize("command", named())
def test_what_is_named_in_passing_is_there(command: str) -> None:
    from pelton.cli.main import COMMANDS

    words = [word.strip(".,()") for word in re.sub(r"[{}$]", "", command).split()][1:]
    assert words[0] in COMMANDS
    if words[0] == "serve" or "..." in command:
        return
    known = parser(words[0])
    for word in words:
        for action in known._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                known = action.choices[word]
                break
    options = {option for action in known._actions for option in action.option_strings}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options
    verbs = [action for action in known._actions if isinstance(action, argparse._SubParsersAction)]
    # A group of verbs may be named as a whole.
    assert not verbs or len(words) == 1, f"{command}: there is no such verb"
