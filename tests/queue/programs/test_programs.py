"""Random programs on queues, with crashes, pauses and clock steps: no history breaks a promise."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.queue import Queue
from pelton.testing import ManualClock, manual_runtime
from tests.kit.judge.queue_history import HistoryEvent, Tolerance, check_queue
from tests.queue.programs.cast import LEASE_S, MAX_ATTEMPTS, QUEUES, Note
from tests.queue.programs.program import Program, opened

TOLERANCE = Tolerance(hears_within=0.1, turns=4, held=8)


class Stage:
    """Two openings of one store file, whose workers run, and crash, when the play wants it; time is turned by hand."""

    def __init__(self, openings: list[list[Queue]], chance: Random, clock: ManualClock, note: Note) -> None:
        self._openings = openings
        self._note = note
        self._chance = chance
        self._clock = clock

    async def play(self, program: Program, acts: int) -> None:
        for _ in range(acts):
            if (drawn := self._chance.random()) < 0.6:
                await program.act()
            elif drawn < 0.85:
                await self._work(program, crash=drawn > 0.78)
            elif drawn < 0.97:
                self._advance(self._chance.choice((0.1, 0.5, LEASE_S * 1.1, 5.0)))
            else:
                step = self._chance.uniform(-20, 20)
                self._tell_step(step)
                self._clock.set_wall(self._clock.now() + round(step * 1e9))

    async def drain(self, program: Program) -> None:
        """Work until nothing is left; waits for retries and schedules by turning the clock."""
        for _ in range(200):
            await self._work(None)
            left = sum([(await queue.counts()).unfinished for queue in self._openings[0]])
            # Between two jobs of a flow, none may be unfinished.
            if not left and not await program.unfinished_flows():
                return
            self._advance(LEASE_S)
        raise AssertionError("jobs are left that never end")

    def _advance(self, seconds: float) -> None:
        self._tell_step(seconds)
        self._clock.advance(seconds)

    def _tell_step(self, seconds: float) -> None:
        for queue in QUEUES:
            self._note(HistoryEvent(kind="stepped", queue=queue, at=time.monotonic_ns(), seconds=seconds))

    async def _work(self, program: Program | None, *, crash: bool = False) -> None:
        queues = [queue for queues in self._openings for queue in queues]
        workers = [asyncio.create_task(q.work(concurrency=3, until_idle=True, handle_signals=False)) for q in queues]
        if crash:
            await asyncio.sleep(self._chance.choice((0, 0.001, 0.004)))
            for worker in self._chance.sample(workers, 2):
                await _kill(worker)
        elif program is not None and self._chance.random() < 0.5:
            await program.act()
        works = asyncio.gather(*workers, return_exceptions=crash)
        async with asyncio.timeout(100):
            while not (await asyncio.wait([works], timeout=0.5))[0]:
                # The last second of a job's sleep passes in its worker.
                self._advance(0.1)
        await works


async def _kill(worker: asyncio.Task[None]) -> None:
    """Crash a worker: what runs is neither settled nor handed back."""
    for _ in range(2):
        worker.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(100, 120), id="long")])
@pytest.mark.parametrize("exclusive", [False, True])
async def test_no_history_breaks_a_promise(tmp_path: Path, seeds: range, exclusive: bool) -> None:
    for seed in seeds:
        runtime, chance, events = manual_runtime(seed), Random(seed), list[HistoryEvent]()
        path = str(tmp_path / f"{seed}.pelton")
        async with (
            pelton.open(path, sync="off", runtime=runtime) as one,
            pelton.open(path, sync="off", runtime=runtime) as two,
        ):
            openings = [await opened(jet, exclusive, events.append) for jet in (one, two)]
            program, stage = (
                Program(openings, chance, events.append),
                Stage(openings, chance, runtime.clock, events.append),
            )
            await stage.play(program, 60)
            await program.finish()
            await stage.drain(program)
            await program.tell_the_end()
        broken = check_queue(events, exclusive=exclusive, max_attempts=MAX_ATTEMPTS, tolerance=TOLERANCE)
        assert not broken, f"seed {seed}"
