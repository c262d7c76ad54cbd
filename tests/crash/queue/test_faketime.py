"""A machine whose wall clock jumps a day ahead, back, and to the right time again, under workers that are killed.

libfaketime shows all its processes the same clock, from one file: ``apt-get install faketime``. The time since boot
is the machine's own.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import pelton
from tests.crash.queue.test_crash import ROOT, Play, Workers

LIBRARIES: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
_AHEAD: Final = ("+1d", "-1h", "+40", "+0")
_WITHIN_S: Final = 30
# libfaketime refuses Python's absolute sleeps.
_SLEEP: Final = "import threading, time; time.sleep = lambda seconds: threading.Event().wait(seconds)\n"


@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed: apt-get install faketime")
def test_a_machine_whose_clock_jumps(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SLEEP)
    set_clock(tmp_path / "clock", "+0")
    environment = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(tmp_path),
        # Each look at the clock reads a file: what takes its time there is no matter of leases.
        "LEASE_S": "4",
    }
    machine = subprocess.Popen(
        [sys.executable, "-m", __name__, str(tmp_path)], cwd=ROOT, env=os.environ | environment, start_new_session=True
    )
    try:
        assert machine.wait(100) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(machine.pid, signal.SIGKILL)


def set_clock(path: Path, ahead: str) -> None:
    """Let the clock of all processes jump."""
    path.with_suffix(".next").write_text(f"{ahead}\n")
    path.with_suffix(".next").replace(path)


async def main(folder: Path) -> None:
    """Be the machine."""
    clock, store, log = folder / "clock", str(folder / "store.pelton"), str(folder / "log")
    play = Play(store, log, crew=3, rounds=len(_AHEAD), keys=3, chance=random.Random(1))
    ahead = iter(_AHEAD)

    async with pelton.open(store) as jet:
        queue, ran = await jet.queue("often"), asyncio.Semaphore(0)

        @queue.job(max_attempts=1)
        async def tick() -> None:
            ran.release()

        await queue.schedule("often", tick, every=1)
        later: list[pelton.JobHandle[None]] = []

        async def jump(workers: Workers) -> None:
            later.append(await queue.options(delay=1).enqueue(tick))
            set_clock(clock, next(ahead))
            await asyncio.sleep(play.chance.uniform(0.1, 0.6))
            workers.kill(workers.pick(play.chance))

        working = asyncio.create_task(queue.work(handle_signals=False))
        await play.befalling(jump)
        for handle in later:
            await handle.value(timeout=_WITHIN_S)
        async with asyncio.timeout(_WITHIN_S):
            while not ran.locked():
                await ran.acquire()
            await ran.acquire()
            await ran.acquire()
        queue.stop()
        await working
        assert (await queue.counts()).failed == 0


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
