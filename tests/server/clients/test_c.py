"""NATS's own client for C sees the same on a served store and on nats-server."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.nats_server import nats_server
from tests.server.conftest import Started

HERE = Path(__file__).parent
_LIMIT_S = 60


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler of C is installed")
    made = tmp_path_factory.mktemp("c") / "program"
    command = [compiler, "-o", str(made), str(HERE / "program.c"), "-lnats"]
    done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        pytest.skip("NATS's client for C is not installed (Debian: libnats-dev)")
    return made


async def seen(program: Path, address: str) -> list[str]:
    """Return what the program prints."""
    running = await asyncio.create_subprocess_exec(str(program), address, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(running.communicate(), _LIMIT_S)
    assert running.returncode == 0, out.decode()
    return out.decode().splitlines()


async def test_c_sees_the_same(program: Path, started: Started, tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        expected = await seen(program, server.url)
    ours = await started()
    assert await seen(program, f"nats://{ours.endpoints[0]}") == expected
    assert len(expected) > 100
