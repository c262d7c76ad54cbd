"""``pelton completion``: what bash, zsh and fish complete, asked of the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import pelton
from pelton.cli.main import COMMANDS, main
from tests.kit.served import ServedStore

_LIMIT_S = 30
# What has been typed, and what completes its last word: the only one of them, where zsh is to insert it.
CASES = [
    ("str", ["stream"]),
    ("stream e", ["edit"]),
    ("consumer pa", ["pause"]),
    ("stream purge a.pelton orders --ke", ["--keep", "--key-file"]),
    ("info --j", ["--json"]),
    ("top a.pelton --e", ["--every"]),
    ("stream info a.pel", ["a.pelton"]),
    ("stream add a.pelton orders --ret", ["--retention"]),
    ("stream add a.pelton orders --retention in", ["interest"]),
    ("stream add a.pelton orders --discard o", ["old"]),
    ("jobs ls a.pelton garage --state sche", ["scheduled"]),
    ("completion fi", ["fish"]),
    ("--ver", ["--version"]),
    # A queue that is called as a command is changes nothing, nor does a file where there is none to be named.
    ("queue info a.pelton dead --js", ["--json"]),
    ("jobs ls a.pelton cron --tena", ["--tenant"]),
    ("stream a.pel", []),
    ("jobs ls a.pelton garage sho", []),
]
ONE = [(typed, found[0]) for typed, found in CASES if len(found) == 1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pelton").touch()
    (tmp_path / "two words.pelton").touch()
    return tmp_path


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    assert not done.stderr
    return done.stdout


def test_bash(capsys: pytest.CaptureFixture[str]) -> None:
    needs("bash")
    lines = [script("bash", capsys)]
    for typed, _ in [*CASES, ("stream info two", [])]:
        count = len(typed.split())
        lines.append(f"COMP_WORDS=(pelton {typed}); COMP_CWORD={count}; COMPREPLY=(); _pelton")
        lines.append('printf "%s|" "${COMPREPLY[@]}"; echo')
    answers = [line.rstrip("|") for line in said("bash", "-c", "\n".join(lines)).splitlines()]
    assert answers == ["|".join(found) for _, found in CASES] + ["two words.pelton"]


NAMES = [
    ("queue info b.pelton ga", ["garage"]),
    ("jobs ls b.pelton garage ", []),
    ("stream info b.pelton or", ["orders"]),
    ("consumer info b.pelton orders ", ["packer"]),
    ("consumer info b.pelton orders --json p", ["packer"]),
    ("kv get b.pelton se", ["settings"]),
    ("kv get b.pelton settings col", ["colour"]),
    ("kv del b.pelton settings col", ["colour"]),
    ("object info b.pelton files pl", ["plans/1"]),
    ("object ls b.pelton fi", ["files"]),
    ("cron run b.pelton garage n", ["nightly"]),
    ("queue info gone.pelton ga", []),
    ("queue", []),
]


def _fill(path: str) -> None:
    with pelton.sync.open(path) as jet:
        jet.create_stream("orders", subjects=["orders"]).create_consumer(durable_name="packer")
        jet.create_bucket("settings").put("colour", b"red")
        jet.create_objects("files").put("plans/1", b"x")
        jet.objects("files").put("two words", b"x")
        jet.queue("garage").schedule("nightly", "repair", every=60)


@pytest.mark.parametrize(("typed", "expected"), NAMES)
def test_names_in_a_store(
    typed: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fill("b.pelton")
    *words, last = typed.split(" ")
    for given in ([*words, ""], [*words, last]):
        assert main(["completion", "names", "--", *given]) == 0
        assert set(expected) <= set(capsys.readouterr().out.splitlines())
    monkeypatch.setenv("PELTON_STORE", "b.pelton")
    assert main(["completion", "names", "--", *[word for word in words if word != "b.pelton"], last]) == 0
    assert set(expected) <= set(capsys.readouterr().out.splitlines())


@pytest.fixture
def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that finds the command."""
    command = folder / "bin" / "pelton"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pelton "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_shells_complete_names_through_an_address(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs(shell)
    _fill("b.pelton")
    server = ServedStore(folder / "b.pelton")
    server.start()
    try:
        # Bash parts words at colons.
        address = server.url.replace(":", " : ") if shell == "bash" else server.url
        lines = [script(shell, capsys)]
        for typed in (
            "queue info b.pelton ga",
            f"consumer info {address} orders pa",
            "kv get b.pelton settings col",
            "object get b.pelton files pl",
        ):
            if shell == "fish":
                lines.append(f"complete -C 'pelton {typed}' | string join '|'")
                continue
            lines.append(f"COMP_WORDS=(pelton {typed}); COMP_CWORD={len(typed.split())}; COMPREPLY=(); _pelton")
            lines.append('(IFS="|"; echo "${COMPREPLY[*]}")')
        options = ["--no-config"] if shell == "fish" else []
        found = said(shell, *options, "-c", "\n".join([*lines, "true"])).splitlines()
        assert found == ["garage", "packer", "colour", "plans/1"]
    finally:
        server.stop()


def test_fish(capsys: pytest.CaptureFixture[str]) -> None:
    needs("fish")
    lines = [script("fish", capsys)]
    lines += [f"complete -C 'pelton {typed}'; echo ==" for typed, _ in CASES]
    answers = said("fish", "--no-config", "-c", "\n".join(lines)).split("==\n")[:-1]
    # Each line is a word, and what it means.
    words = [[line.split("\t")[0] for line in answer.splitlines()] for answer in answers]
    assert words == [found for _, found in CASES]
    assert all(f"-a {name} -d" in lines[0] for name in COMMANDS)


@pytest.mark.usefixtures("on_path")
def test_zsh(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person's zsh, on a terminal, who has not asked for any completions before."""
    needs("zsh")
    (folder / "completions").write_text(script("zsh", capsys))
    typed = ["source completions", 'pelton() { print -r -- "$@" >> answers }']
    typed += [f"pelton {text}\t" for text, _ in ONE]
    _fill("b.pelton")
    typed += ["pelton stream purge a.pelton orders --ke\t", "pelton consumer info b.pelton orders pa\t", "exit"]
    at_terminal(folder, "zsh", "-f", "-i", lines=typed)
    expected = [" ".join([*text.split()[:-1], found]) for text, found in ONE]
    expected += ["stream purge a.pelton orders --ke", "consumer info b.pelton orders packer"]
    assert (folder / "answers").read_text().splitlines() == expected


def at_terminal(folder: Path, *command: str, lines: list[str]) -> None:
    """Run a program on a terminal of its own, and type some lines."""
    screen, keyboard = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "HOME": str(folder)}
    process = subprocess.Popen(
        command, stdin=keyboard, stdout=keyboard, stderr=keyboard, start_new_session=True, env=environment
    )
    os.close(keyboard)
    try:
        os.write(screen, "".join(f"{line}\n" for line in lines).encode())
        # What it writes has to be read, or it waits; at its end, there is nothing more to be read.
        with suppress(OSError):
            while select.select([screen], [], [], _LIMIT_S)[0] and os.read(screen, 4096):
                pass
        process.wait(_LIMIT_S)
    finally:
        process.kill()
        process.wait(_LIMIT_S)
        os.close(screen)
