"""Operations of every kind, cancelled at any moment: each is in effect or not, and none of it stays behind.

``make storm`` cancels tens of thousands; ``--storm-seed N`` uses another seed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import pytest

import pelton
from pelton.engine import Engine
from tests.storm.operations import KINDS, Bench, Operation
from tests.storm.outcome import Attempt, contradictions, undelivered

_LANES: Final = 6
_STREAMS: Final = ("KV_keys", "KV_pelton_locks", "OBJ_objects", "JOBS_jobs_history", "work", "swept")
_POOLS: Final = ("pelton-sync", "asyncio")
"""Threads that are kept for the next one who needs them."""
_SOON_S: Final = 20.0
_LONGEST_S: Final = 0.004


class Canceller:
    """Runs operations, and cancels most of them: after some turns of the loop, or some time."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.random = bench.random
        self.attempts: list[Attempt] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    async def lane(self, operations: int) -> None:
        for _ in range(operations):
            await self.bench.stock()
            await self._attempt(self.bench.draw())

    async def _attempt(self, operation: Operation) -> None:
        task = asyncio.ensure_future(operation.work())
        await self._wait(task)
        cancelled = task.cancel()
        if cancelled and self.random.random() < 0.2:
            # Once more, while it cleans up.
            await asyncio.sleep(0)
            task.cancel()
        _, pending = await asyncio.wait([task], timeout=_SOON_S)
        if pending:
            self.problems.append(f"{operation.kind} does not end: {task.get_stack()[-1:]}")
            return
        self.counts[operation.kind] += 1
        self.counts["cancelled"] += task.cancelled()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.problems.append(f"{operation.kind} raised {error!r}")
        self.attempts.append(Attempt(operation, not task.cancelled() and task.exception() is None))

    async def _wait(self, task: asyncio.Future[object]) -> None:
        way = self.random.random()
        if way < 0.1:
            await asyncio.wait([task], timeout=_SOON_S)
        elif way < 0.3:
            await asyncio.wait([task], timeout=self.random.uniform(0, _LONGEST_S))
        else:
            for _ in range(int(self.random.expovariate(1 / 8))):
                if task.done():
                    break
                await asyncio.sleep(0)


@pytest.mark.parametrize("memory", [False, True])
async def test_what_is_cancelled_is_in_effect_or_not(tmp_path: Path, memory: bool, pytestconfig: pytest.Config) -> None:
    number, seed = (int(pytestconfig.getoption(f"--{option}")) for option in ("cancelled", "storm-seed"))
    path = tmp_path / "a.pelton"
    async with pelton.open("memory:" if memory else path) as jet:
        bench = Bench(jet, Random(seed))
        await bench.make()
        await warm_up(bench)
        before = await remains(bench)
        canceller = Canceller(bench)
        await asyncio.gather(*(canceller.lane(number // _LANES // 2) for _ in range(_LANES)))
        canceller.problems += await contradictions(bench, canceller.attempts)
        canceller.problems += await undelivered(bench)
        after = await settled(bench, before)
        canceller.problems += [f"{what}: {before[what]} before, {after[what]} after" for what in after - before]
    if not memory:
        canceller.problems += pelton.verify(path)
    print(*sorted(canceller.counts.items()), sep="\n")
    print(*canceller.problems, sep="\n")
    assert canceller.problems == [], f"--storm-seed {seed} --cancelled {number}"
    assert canceller.counts["cancelled"] > number // 8


async def warm_up(bench: Bench) -> None:
    """Run each operation once: whatever the first opens stays open."""
    for kind in KINDS:
        await bench.stock()
        await bench.of(kind).work()
    await bench.queue.work(until_empty=True, handle_signals=False)


async def remains(bench: Bench) -> Counter[str]:
    """Return the resources that a process may leak."""
    engine = bench.jet.backend
    assert isinstance(engine, Engine)
    info = await bench.worker.info()
    found = Counter(
        {
            "tasks of the store": len(bench.jet.runtime.tasks),
            "tasks": len(asyncio.all_tasks()),
            "threads": sum(not thread.name.startswith(_POOLS) for thread in threading.enumerate()),
            "waiting pulls": info.num_waiting,
            "consumers": sum([len(await (await bench.jet.stream(name)).consumer_names()) for name in _STREAMS]),
            "holders of the lock": len(await bench.lock.holders()),
            "holders of slots": len(await bench.semaphore.holders()),
        }
    )
    if os.path.exists("/proc/self/fd"):
        # SQLite keeps some of the file itself for later openers.
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        found["descriptors"] = sum(not name.endswith(".pelton") for name in opened)
    return found


async def settled(bench: Bench, before: Counter[str]) -> Counter[str]:
    """Return what remains when background work has ended, which must be soon."""
    end = asyncio.get_running_loop().time() + _SOON_S
    while (found := await remains(bench)) - before and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.01)
    return found
