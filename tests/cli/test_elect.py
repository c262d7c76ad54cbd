"""``pelton elect``: without a terminal it writes lines; on one, it shows a table and reads keys."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import pytest

import pelton
from pelton.cli.main import main

COMMAND = [sys.executable, "-m", "pelton.cli.main", "elect"]


@contextmanager
def elect(*arguments: str, terminal: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command; it is terminated at the end of the context."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        env={**os.environ, "NOSPLAY": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_without_a_terminal_it_writes_lines(tmp_path: Path) -> None:
    store = str(tmp_path / "s.pelton")
    with elect(store, "--candidates", "2", "--ttl", "1", "--kill-every", "2", "--name", "c") as process:
        assert process.stdout is not None
        said = list(islice(became_leader(process.stdout), 2))
    assert [int(token) for _, token in said] == sorted({int(token) for _, token in said})


def became_leader(lines: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for line in lines:
        found = re.search(rb"(c \d): became leader, token (\d+)", line)
        if found:
            yield found[1], found[2]


def test_a_bucket_that_does_not_serve_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "s.pelton")
    with pelton.sync.open(store) as jet:
        jet.create_bucket("plain")
    assert main(["elect", store, "--bucket", "plain", "--candidates", "1"]) == 1
    assert "TTL of 0 s" in capfd.readouterr().err


def test_a_context_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CONTEXT", "mine")
    assert main(["elect"]) == 1
    assert "mine.json" in capsys.readouterr().err


def test_on_a_terminal_k_kills_the_leader(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with elect(str(tmp_path / "s.pelton"), "--ttl", "1", terminal=theirs) as process:
        os.close(theirs)
        seen = until(ours, rb"worker \d +\d+ +leader")
        assert b"k: kill the leader" in seen
        until(ours, rb"after the one before was killed", pressing=b"k")
        until(ours, rb"after the one before was asked to step down", pressing=b"d")
        # What is typed at once is all read.
        os.write(ours, b"xq")
        while read(ours):
            pass
        assert process.wait(60) == 0
    os.close(ours)


def until(terminal: int, pattern: bytes, pressing: bytes = b"") -> bytes:
    seen = b""
    while not re.search(pattern, seen):
        # Repeatedly: at any one moment there may be no leader.
        os.write(terminal, pressing)
        more = read(terminal)
        assert more, seen
        seen += more
    return seen


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has its other end any more
        return b""
