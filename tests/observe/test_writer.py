"""Who holds the writer of a store: a process that was stopped in the middle of a transaction is named by all looks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pelton
from pelton import metrics, observe
from pelton.cli.main import main
from pelton.storage import WriterHold, writer_hold
from tests.metrics.test_metrics import values

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="the system does not list locks")

_STUCK = """
import asyncio, sys, pelton
async def main():
    async with pelton.open(sys.argv[1]) as jet, jet.transaction(timeout=60) as tx:
        await tx.publish("s.a", b"")
        print("writes", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


@contextmanager
def stuck_writer(path: Path) -> Iterator[int]:
    """A process that was stopped in a transaction; its id."""
    process = subprocess.Popen([sys.executable, "-c", _STUCK, str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writes\n"
        process.send_signal(signal.SIGSTOP)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
    return path


async def test_a_stuck_writer_is_named(path: Path) -> None:
    with stuck_writer(path) as pid:
        async with pelton.open(path, read_only=True) as look:
            first, second = [await observe.store_summary(look, str(path)) for _ in range(2)]
            text, _ = await metrics.metrics_text(look, path=str(path))
        assert (first.writer_pid, first.writer_held) == (pid, 0)
        assert (second.writer_pid, second.writer_held > 0) == (pid, True)
        assert values(text)["pelton_store_writer_held_seconds", str(pid)] > second.writer_held


def test_info_names_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stuck_writer(path) as pid:
        assert main(["info", str(path)]) == 0
        assert f"held by process {pid}" in capsys.readouterr().out
    assert main(["info", str(path)]) == 0
    assert "held by" not in capsys.readouterr().out


async def test_what_it_writes_begins_the_time_anew(path: Path) -> None:
    async with pelton.open(path) as jet:
        async with jet.transaction() as tx:
            await tx.publish("s.a", b"")
            assert writer_hold(str(path), 10.0) == WriterHold(os.getpid(), 0.0)
            assert writer_hold(str(path), 12.5) == WriterHold(os.getpid(), 2.5)
        assert writer_hold(str(path), 13.0) is None
        async with jet.transaction() as tx:
            await tx.publish("s.a", b"")
            assert writer_hold(str(path), 14.0) == WriterHold(os.getpid(), 0.0)


def test_a_store_that_nobody_has_open(path: Path) -> None:
    assert writer_hold(str(path), 1.0) is None
    assert writer_hold(str(path.parent / "nothing"), 1.0) is None
