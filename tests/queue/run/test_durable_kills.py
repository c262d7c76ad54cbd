"""Workers that are killed while their jobs wait for signals, call others and sleep: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from pelton.queue import JobHandle
from tests.queue.conftest import ON_BOTH
from tests.queue.flow.test_kills import Workers
from tests.queue.helpers import open_store
from tests.queue.run.durable_process import QUEUE, SIGNALS, register
from tests.queue.run.test_steps import BOTH_KINDS


@pytest.mark.parametrize("number", [20, pytest.param(300, marks=pytest.mark.slow)])
@ON_BOTH
@BOTH_KINDS
async def test_workers_are_killed(path: str, tmp_path: Path, exclusive: bool, number: int) -> None:
    chance, journal = random.Random(7), tmp_path / "journal"
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=exclusive, lease=1)
        register(queue, str(journal))
        workers = Workers(path, journal, chance, "tests.queue.run.durable_process")
        try:
            handles = [await queue.options(key=f"k{n}").enqueue("order") for n in range(number)]
            for signal in range(SIGNALS):
                for handle in chance.sample(handles, len(handles)):
                    # Whoever does not know whether it was sent sends it again.
                    for _ in range(chance.choice([1, 1, 2])):
                        await handle.send("n", signal, msg_id=f"{signal}")
                    if chance.random() < 0.1:
                        workers.kill_one()
                        await asyncio.sleep(0.1)
            outcomes = [await handle.outcome(timeout=120) for handle in handles]
        finally:
            workers.end()
        charged = journal.read_text().splitlines()
        for handle, outcome in zip(handles, outcomes, strict=True):
            assert (outcome.state, outcome.error) == ("completed", ""), outcome
            receipt, found, packed = _value(handle, outcome.value())
            assert receipt in charged
            assert found == list(range(SIGNALS)), "each once, and in order"
            assert packed == list(range(4))
        ended = Counter([(outcome.job, outcome.id) async for outcome in queue.history()])
        assert set(ended.values()) == {1}
        assert Counter(job for job, _ in ended) == {"order": number, "pack": 4 * number}
    assert workers.kills > 3


def _value(handle: JobHandle[object], value: object) -> tuple[str, list[int], list[int]]:
    assert isinstance(value, list), handle
    receipt, found, packed = value
    assert receipt.startswith(f"{handle.id} ")
    return receipt, found, packed


@pytest.mark.parametrize("number", [20, pytest.param(300, marks=pytest.mark.slow)])
@ON_BOTH
@BOTH_KINDS
async def test_workers_that_undo_are_killed(path: str, tmp_path: Path, exclusive: bool, number: int) -> None:
    chance, journal = random.Random(7), tmp_path / "journal"
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=exclusive, lease=1)
        register(queue, str(journal))
        workers = Workers(path, journal, chance, "tests.queue.run.durable_process")
        try:
            handles = [await queue.options(key=f"k{n}").enqueue("trip") for n in range(number)]
            for handle in handles:
                if chance.random() < 0.3:
                    workers.kill_one()
                    await asyncio.sleep(0.05)
                if int(handle.id) % 2 == 0:
                    await handle.cancel()
            outcomes = [await handle.outcome(timeout=120) for handle in handles]
        finally:
            workers.end()
        for outcome in outcomes:
            assert outcome.state == ("failed" if int(outcome.id) % 2 else "cancelled"), outcome
            assert "not undone" not in outcome.error
    lines = journal.read_text().splitlines()
    done = [line for line in lines if not line.startswith("undo ")]
    undone = Counter(line.removeprefix("undo ") for line in lines if line.startswith("undo "))
    assert set(undone) <= set(done), "only what was done"
    # A worker that was killed after a step, and before it was remembered, leaves one more.
    assert len(done) - len(undone) <= workers.kills * 4
    assert sum(undone.values()) - len(undone) <= workers.kills * 4
    by_job = Counter(receipt.split()[0] for receipt in undone)
    failed = [f"{outcome.id}{what}" for outcome in outcomes if outcome.state == "failed" for what in "ab"]
    assert all(by_job[one] == 1 for one in failed), "all that is remembered, once"
    assert workers.kills
