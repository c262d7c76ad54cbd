"""Workers are stopped for longer than their leases, and go on: what they then do must be theirs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from pelton.queue import Queue
from tests.crash.queue.stopped_worker import LEASE_S, QUEUE, Note, in_child, jobs, on_loop, on_thread
from tests.queue.conftest import ON_BOTH, path, server  # noqa: F401 - fixtures
from tests.queue.helpers import ROOT, open_store
from tests.stopping import stand_still

_LIMIT: Final = 3
_KEYS: Final = 5
_WORKERS: Final = 3
_BACKLOG: Final = 60
Stop = tuple[int, float]


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def troubles(notes: list[Note], stops: list[Stop]) -> list[str]:
    """Return what broke a promise; ``stops``: which worker was stopped, and when."""
    found, newest, recorded = list[str](), dict[str, Note](), set[tuple[str, str]]()
    running: dict[tuple[int, str, int], Note] = {}
    for seen in notes:
        kind, _, step = seen.what.partition(" ")
        attempt = (seen.worker, seen.job, seen.token)
        if kind == "begin":
            before = newest.get(seen.key)
            if before is not None and before.token >= seen.token:
                found.append(f"{seen} began after {before}")
            newest[seen.key] = seen
            running[attempt] = seen
            # What ran in a worker that has been stopped since is no longer its own.
            live = [one for one in running.values() if not _is_overtaken(one, seen.at, stops)]
            if len(live) > _LIMIT:
                found.append(f"beyond the limit: {live}")
        elif kind == "end":
            running.pop(attempt, None)
        elif kind == "recorded":
            recorded.add((seen.job, step))
        elif (seen.job, step) in recorded:
            found.append(f"called again after it was recorded: {seen}")
    return found


def _is_overtaken(one: Note, at: float, stops: list[Stop]) -> bool:
    # A child that was ended with its lease does not tell: no job takes so long by itself.
    return at - one.at > LEASE_S / 2 or any(worker == one.worker and one.at <= since < at for worker, since in stops)


async def feed(queue: Queue, chance: Random, key: int) -> None:
    missing = _BACKLOG - (await queue.counts()).unfinished
    for number in range(missing):
        job = chance.choice((on_loop, on_thread, on_thread, in_child))
        await queue.options(key=f"k{(key + number) % _KEYS}").enqueue(job, chance.choice((0.0, 0.001, 0.02)))


@ON_BOTH
async def test_what_a_worker_does_that_was_stopped_is_its_own(
    path: str,  # noqa: F811 - a fixture
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    rounds = 2 * int(pytestconfig.getoption("stopped"))
    chance, stops, log = Random(7), list[Stop](), tmp_path / "notes"
    log.touch()
    command = [sys.executable, "-m", "tests.crash.queue.stopped_worker", path]
    environment = {**os.environ, "STOPPED_NOTES": str(log)}
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=True, lease=LEASE_S, jobs=jobs)
        await queue.limit(concurrency=_LIMIT)
        workers = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(_WORKERS)]
        try:
            for turn in range(rounds):
                await feed(queue, chance, turn)
                size = log.stat().st_size
                while log.stat().st_size == size:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.random() * 0.3)
                worker, since = chance.choice(workers), now()
                stand_still(worker.pid, path)
                await asyncio.sleep(LEASE_S * (1.2 + 0.5 * chance.random()))
                stops.append((worker.pid, since))
                worker.send_signal(signal.SIGCONT)
            while (await queue.counts()).unfinished:
                await asyncio.sleep(0.05)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert {outcome.state async for outcome in queue.history()} == {"completed"}
    notes = sorted((msgspec.json.decode(line, type=Note) for line in log.read_bytes().splitlines()), key=lambda n: n.at)
    assert len(stops) == rounds
    assert troubles(notes, stops) == []
