"""One task of executors as workers, in this process: what shares a transaction, and what does not wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import ConfigError
from pelton.queue import ClaimedJob, Claims, JobRules, Outcome
from pelton.spark.options import store_options
from pelton.spark.work import executors
from pelton.spark.work.executors import TaskPlan

PATIENT = 30.0


def plan(path: Path, function: Any, **changed: Any) -> TaskPlan:
    fixed = {
        "store": store_options({"path": str(path)}, ())[0],
        "queue": "g",
        "function": function,
        "kind": "arrow",
        "rules": JobRules(),
        "arguments": None,
        "results": None,
        "subject": None,
        "claim": 5,
        "until_empty": True,
        "max_jobs": None,
        "duration": None,
    }
    return TaskPlan(**{**fixed, **changed})


def tally(task: TaskPlan) -> dict[str, int]:
    [batch] = task.run(iter(()))
    [row] = batch.to_pylist()
    return {name: row[name] for name in ("completed", "failed", "lost")}


def same(rows: Any) -> Any:
    return rows.select(["id"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "g.pelton"


def make(path: Path, count: int) -> None:
    with pelton.sync.open(path, sync="off") as jet:
        jet.queue("g").job(_paint).enqueue_many([()] * count)


def _paint() -> None: ...


def history(path: Path) -> list[Outcome]:
    with pelton.sync.open(path) as jet:
        return list(jet.queue("g").history())


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each settlement has."""
    sizes: list[int] = []
    settle = Claims.settle

    async def counted(self: Claims, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        sizes.append(len(jobs))
        return await settle(self, jobs)

    monkeypatch.setattr(Claims, "settle", counted)
    return sizes


@pytest.fixture
def every_batch_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_AHEAD_S", PATIENT * 10)


@pytest.mark.usefixtures("every_batch_is_short")
def test_short_batches_are_settled_together(path: Path, settled: list[int]) -> None:
    make(path, 48)
    seen: list[int] = []

    def watched(rows: Any) -> Any:
        seen.append(rows.num_rows)
        return same(rows)

    assert tally(plan(path, watched))["completed"] == 48
    # Nothing is known of the first batch.
    assert settled == [5, 20, 20, 3]
    assert max(seen) == 5


@pytest.mark.usefixtures("every_batch_is_short")
def test_never_more_than_was_asked_for(path: Path, settled: list[int]) -> None:
    make(path, 48)
    assert tally(plan(path, same, max_jobs=12))["completed"] == 12
    assert settled == [5, 7]
    with pelton.sync.open(path) as jet:
        assert {info.attempt for info in jet.queue("g").jobs()} == {0}


def test_nothing_waits_for_a_slow_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, 30)
    calls: list[int] = []
    is_slow, goes_on = threading.Event(), threading.Event()

    def slow_at_last(rows: Any) -> Any:
        calls.append(rows.num_rows)
        if len(calls) == 3:
            is_slow.set()
            assert goes_on.wait(PATIENT)
        return same(rows)

    # Longer than any other batch takes.
    monkeypatch.setattr(executors, "_AHEAD_S", 1.0)

    async def others_go_on() -> None:
        async with asyncio.timeout(PATIENT), pelton.open(path) as jet:
            task = asyncio.create_task(asyncio.to_thread(tally, plan(path, slow_at_last)))
            try:
                queue = await jet.queue("g")
                await asyncio.to_thread(is_slow.wait, PATIENT)
                async with queue.claims(JobRules()) as claims:
                    others: list[ClaimedJob] = []
                    while len(others) < 15 or (await queue.counts()).completed < 10:
                        others += await claims.take(timeout=0.05)
                    assert {job.attempt for job in others} == {1}
                    for job in others:
                        job.complete()
                    assert await claims.settle(others) == []
            finally:
                goes_on.set()
            assert (await task)["completed"] == 15

    asyncio.run(others_go_on())


@pytest.mark.usefixtures("every_batch_is_short")
def test_a_broken_contract_undoes_only_its_batch(path: Path) -> None:
    make(path, 25)
    calls: list[int] = []

    def breaks_at_last(rows: Any) -> Any:
        calls.append(rows.num_rows)
        return rows.select(["job"]) if len(calls) == 3 else same(rows)

    with pytest.raises(ConfigError, match="keep the column id"):
        tally(plan(path, breaks_at_last))
    assert [outcome.id for outcome in history(path)] == [str(n + 1) for n in range(10)]
    with pelton.sync.open(path) as jet:
        assert [info.attempt for info in jet.queue("g").jobs()] == [0] * 15
