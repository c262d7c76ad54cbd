"""Workers that are killed while their jobs wait for signals, call others and sleep: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pelton.queue import JobHandle, Outcome, Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.flow.test_kills import Workers
from tests.queue.helpers import open_store
from tests.queue.run.durable_process import QUEUE, SIGNALS, register
from tests.queue.run.test_steps import BOTH_KINDS

CLIENTS = 20
# So many jobs of a worker may be between doing something and remembering it when it is killed.
AT_ONCE = 4
# Ten seconds.
LONGEST_TURNS = 200
KILLS = pytest.mark.parametrize("kills", [pytest.param(3, id="3"), pytest.param(0, id="long", marks=pytest.mark.slow)])
Ended = dict[JobHandle[Any], Outcome]


class Stage(NamedTuple):
    """A queue whose two workers are killed, and what they have written down."""

    queue: Queue
    workers: Workers
    chance: random.Random
    journal: Path

    async def run(self, kills: int, one_job: Callable[[Stage, str], Coroutine[Any, Any, JobHandle[Any]]]) -> Ended:
        """Have clients run one job after the other until so many workers were killed; return how all have ended."""
        handles = list[JobHandle[Any]]()

        async def client(number: int) -> None:
            while True:
                handles.append(handle := await one_job(self, f"k{number}"))
                await handle.outcome(timeout=120)
                if self.workers.kills >= kills:
                    return

        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(client(number))
            while self.workers.kills < kills:
                # On a busy machine, workers that are killed as they start would get nothing done.
                await self._until_something_is_done()
                await asyncio.sleep(self.chance.uniform(0.0, 0.5))
                self.workers.kill_one()
        return {handle: await handle.outcome(timeout=120) for handle in handles}

    async def _until_something_is_done(self) -> None:
        before = self._written
        for _ in range(LONGEST_TURNS):
            if self._written > before:
                return
            await asyncio.sleep(0.05)

    @property
    def _written(self) -> int:
        return self.journal.stat().st_size


@asynccontextmanager
async def killed_workers(path: str, tmp_path: Path, *, exclusive: bool) -> AsyncIterator[Stage]:
    chance, journal = random.Random(7), tmp_path / "journal"
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=exclusive, lease=1)
        register(queue, str(journal))
        workers = Workers(path, journal, chance, "tests.queue.run.durable_process")
        try:
            yield Stage(queue, workers, chance, journal)
        finally:
            workers.end()


async def order(stage: Stage, key: str) -> JobHandle[Any]:
    handle = await stage.queue.options(key=key).enqueue("order")
    for signal in range(SIGNALS):
        await asyncio.sleep(stage.chance.uniform(0, 0.5))
        # Whoever does not know whether it was sent sends it again.
        for _ in range(stage.chance.choice([1, 1, 2])):
            await handle.send("n", signal, msg_id=f"{signal}")
    return handle


@KILLS
@ON_BOTH
@BOTH_KINDS
async def test_workers_are_killed(
    path: str, tmp_path: Path, exclusive: bool, kills: int, request: pytest.FixtureRequest
) -> None:
    async with killed_workers(path, tmp_path, exclusive=exclusive) as stage:
        outcomes = await stage.run(kills or int(request.config.getoption("--kills")), order)
        charged = stage.journal.read_text().splitlines()
        for handle, outcome in outcomes.items():
            assert (outcome.state, outcome.error) == ("completed", ""), outcome
            value: Any = outcome.value()
            receipt, found, packed = value
            assert receipt.startswith(f"{handle.id} ")
            assert receipt in charged
            assert found == list(range(SIGNALS)), "each once, and in order"
            assert packed == list(range(4))
        # Again only where a worker was killed before it could remember.
        assert len(charged) - len(outcomes) <= stage.workers.kills * AT_ONCE
        ended = Counter([(outcome.job, outcome.id) async for outcome in stage.queue.history()])
        assert set(ended.values()) == {1}
        assert Counter(job for job, _ in ended) == {"order": len(outcomes), "pack": 4 * len(outcomes)}


async def trip(stage: Stage, key: str) -> JobHandle[Any]:
    handle = await stage.queue.options(key=key).enqueue("trip")
    if int(handle.id) % 2 == 0:
        await asyncio.sleep(stage.chance.uniform(0, 0.5))
        await handle.cancel()
    return handle


@KILLS
@ON_BOTH
@BOTH_KINDS
async def test_workers_that_undo_are_killed(
    path: str, tmp_path: Path, exclusive: bool, kills: int, request: pytest.FixtureRequest
) -> None:
    async with killed_workers(path, tmp_path, exclusive=exclusive) as stage:
        outcomes = await stage.run(kills or int(request.config.getoption("--kills")), trip)
    for outcome in outcomes.values():
        assert outcome.state == ("failed" if int(outcome.id) % 2 else "cancelled"), outcome
        assert "not undone" not in outcome.error
    lines = stage.journal.read_text().splitlines()
    done = [line for line in lines if not line.startswith("undo ")]
    undone = Counter(line.removeprefix("undo ") for line in lines if line.startswith("undo "))
    assert set(undone) <= set(done), "only what was done"
    # A worker that was killed after a step, and before it was remembered, leaves one more.
    assert len(done) - len(undone) <= stage.workers.kills * AT_ONCE
    assert sum(undone.values()) - len(undone) <= stage.workers.kills * AT_ONCE
    by_job = Counter(receipt.split()[0] for receipt in undone)
    failed = [f"{outcome.id}{what}" for outcome in outcomes.values() if outcome.state == "failed" for what in "ab"]
    assert all(by_job[one] == 1 for one in failed), "all that is remembered, once"
