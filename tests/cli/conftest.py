"""A command line on a store file, and on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pelton.cli.main import main
from tests.places import PLACES, address_of


class Done(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def facts(self) -> dict[str, str]:
        """What is shown of one thing, by name."""
        pairs = (line.split(":", 1) for line in self.lines[1:] if line.startswith("  ") and ":" in line)
        return {name.strip(): value.strip() for name, value in pairs}


Run = Callable[..., Done]


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    with address_of(request.param, tmp_path) as found:
        monkeypatch.setenv("PELTON_STORE", found)
        yield found


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the store of ``PELTON_STORE``."""

    def run(*words: object, status: int = 0) -> Done:
        capsys.readouterr()
        ended = main([str(word) for word in words])
        written = capsys.readouterr()
        assert ended == status, written.err
        return Done(ended, written.out, written.err)

    return run
