"""NATS's own client for Node sees the same on a served store and on nats-server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Started
from tests.server.oracle import Oracle, running_oracle

HERE = Path(__file__).parent
_LIMIT_S = 60


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, beside the packages that it needs."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        pytest.skip("node and npm are not installed")
    home = tmp_path_factory.mktemp("node")
    for name in ("package.json", "program.mjs"):
        shutil.copy(HERE / name, home)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home)]
    done = subprocess.run(command, cwd=home, capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install the clients: {done.stderr[-300:].decode(errors='replace')}")
    return home / "program.mjs"


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running_oracle(tmp_path_factory.mktemp("nats")) as running:
        yield running


async def seen(program: Path, where: str, user: str = "") -> list[Any]:
    """Return what the program tells, step by step."""
    running = await asyncio.create_subprocess_exec(
        "node",
        str(program),
        where,
        *((user,) if user else ()),
        cwd=program.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await asyncio.wait_for(running.communicate(), _LIMIT_S)
    assert running.returncode == 0, error.decode()
    return [json.loads(line) for line in out.splitlines()]


async def test_node_sees_the_same(program: Path, started: Started, oracle: Oracle) -> None:
    expected = await seen(program, f"127.0.0.1:{oracle.port}", oracle.user())
    server = await started()
    found = await seen(program, str(server.endpoints[0]))
    assert [one["step"] for one in found] == [one["step"] for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs
