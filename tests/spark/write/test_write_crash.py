"""The driver is killed after its tasks have written and before the commit."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from pelton.api import Outgoing, PeltonError
from pelton.spark.pipelines.session import no_java
from tests.kit.staged import read_staged
from tests.spark.write.test_stream_writer import feed
from tests.spark.write.test_writer import make, rows

_ROOT = Path(__file__).parents[3]
LINES = [str(n) * (n % 5 + 1) for n in range(200)]


def start(home: Path, place: str, value: str) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
    command = [sys.executable, "-m", "tests.spark.write.write_role", str(home), place, value]
    return subprocess.Popen(command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True)


def count_staged(folder: Path) -> int:
    """Return how many rows are staged in complete files."""
    found = 0
    for path in folder.glob("*/*/*"):
        try:
            found += sum(len(portion) for portion in read_staged(str(path)))
        except PeltonError:
            continue
    return found


async def test_a_driver_killed_before_the_commit_leaves_nothing_and_the_next_one_all(tmp_path: Path) -> None:
    if reason := no_java():
        pytest.skip(reason)
    store = tmp_path / "s.pelton"
    await asyncio.to_thread(make, store)
    feed(tmp_path / "in", "1", LINES)
    async with pelton.open(store) as jet:
        # While this is open the commit waits, and its tasks have written.
        transaction = jet.backend.transaction(600.0)
        await transaction.enter()
        await transaction.publish([Outgoing("orders.held", b"")])
        driver = start(tmp_path, "path", str(store))
        while await asyncio.to_thread(count_staged, Path(f"{store}-spark")) < len(LINES):
            assert driver.poll() is None
            await asyncio.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        await transaction.leave(0, keep=False)
    # A commit that outlives its driver may still happen: then all of it is stored.
    assert sorted(await asyncio.to_thread(rows, store)) in ([], sorted_rows())
    await asyncio.to_thread(lambda: start(tmp_path, "path", str(store)).wait())
    assert sorted(await asyncio.to_thread(rows, store)) == sorted_rows()
    assert not Path(f"{store}-spark").exists()


def sorted_rows() -> list[tuple[str, bytes]]:
    return sorted((f"orders.{len(line)}", line.encode()) for line in LINES)
