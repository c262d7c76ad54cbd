"""How a queue went: one small write a minute, whoever works on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pelton
from pelton.api import MinuteNotes
from pelton.jet.backlogs import MINUTE
from pelton.queue.model.naming import QueueNames
from pelton.queue.scan import TrendPoint, note_trend, trend_points
from pelton.testing import ManualRuntime, manual_runtime
from tests.queue.helpers import working


async def _note(jet: pelton.Jet) -> None:
    await note_trend(jet, QueueNames("garage"))


async def _all(jet: pelton.Jet) -> list[TrendPoint]:
    return await trend_points(jet, "garage", 0)


def _next_minute(runtime: ManualRuntime, minutes: int = 1) -> None:
    runtime.clock.advance((MINUTE - runtime.clock.now() % MINUTE) / 1e9 + (minutes - 1) * 60 + 0.5)


async def test_a_point_says_what_ended_and_what_waits() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        garage = await jet.queue("garage")

        @garage.job(max_attempts=1)
        async def repair(seconds: float) -> None:
            runtime.clock.advance(seconds)
            if seconds > 3:
                raise ValueError

        _next_minute(runtime)
        for seconds in (1, 2, 4):
            await repair.enqueue(seconds)
        await garage.work(until_empty=True, handle_signals=False)
        await repair.enqueue(1)
        await garage.options(delay=600).enqueue(repair, 1)
        await garage.schedule("nightly", repair, args=(1,), cron="0 3 * * *")
        _next_minute(runtime)
        await _note(jet)
        (point,) = await _all(jet)
        assert (point.minute, point.ended, point.dead, point.depth) == (runtime.clock.now() // MINUTE - 1, 3, 1, 1)
        assert (point.run, point.run_p95, point.wait_p95) == (2.0, 4.0, 3.0)
        # Nothing has ended since.
        _next_minute(runtime)
        await _note(jet)
        assert (await _all(jet))[1] == TrendPoint(point.minute + 1, 3, 1, 1)


async def test_of_several_workers_one_writes_and_a_restart_goes_on(tmp_path: Path) -> None:
    runtime = manual_runtime()
    path = tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as one, pelton.open(path, runtime=runtime) as other:
        await one.queue("garage")
        running = await one.stream("JOBS_garage_running")
        for _ in range(3):
            _next_minute(runtime)
            await asyncio.gather(_note(one), _note(other), return_exceptions=True)
            await _note(one)
        assert (await running.info()).state.last_seq == 3
    async with pelton.open(path, runtime=runtime) as jet:
        await _note(jet)
        assert len(await _all(jet)) == 3
    async with pelton.open(path, read_only=True, runtime=runtime) as look:
        assert len(await _all(look)) == 3


async def test_a_day_takes_the_same_space_for_ever() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await jet.queue("garage")
        for _ in range(60):
            _next_minute(runtime, 30)
            await _note(jet)
        points = await _all(jet)
        now = runtime.clock.now() // MINUTE
        assert [now - one.minute for one in points] == list(range(1 + 30 * (len(points) - 1), 0, -30))
        assert 48 <= len(points) <= 50
        state = (await (await jet.stream("JOBS_garage_running")).info()).state
        assert state.messages <= 25
        assert state.bytes < 10_000
        assert len(await trend_points(jet, "garage", runtime.clock.now() - 3600 * 10**9)) == 2
        # A queue without a worker costs nothing any more.
        runtime.clock.advance(26 * 3600)
        assert (await (await jet.stream("JOBS_garage_running")).info()).state.messages == 0
        assert await _all(jet) == []


async def test_what_cannot_be_read_is_written_over() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await jet.queue("garage")
        _next_minute(runtime)
        place = runtime.clock.now() // MINUTE // 60 % 25
        await jet.publish(QueueNames("garage").trend_subject(place), b"{")
        await _note(jet)
        assert len(await _all(jet)) <= 1
        assert await trend_points(jet, "none", 0) == []


async def test_a_worker_writes_one_point_a_minute() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        garage = await jet.queue("garage")
        async with working(garage):
            for count in range(1, 4):
                while len(await _all(jet)) < count:
                    runtime.clock.advance(10)
                    await asyncio.sleep(0.001)
        points = await _all(jet)
        assert 3 <= len(points) <= 4
        # It notes how consumers went as well.
        minutes = MinuteNotes(first=points[0].minute, last=points[-1].minute)
        assert len((await jet.backend.call(minutes)).notes) >= len(points) - 1
