"""Random programs on queues whose workers are processes that are killed, on a file and on servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import pelton
from pelton.queue import Queue
from tests.kit.judge.queue_history import Tolerance, check_queue
from tests.kit.nats_server import nats_cluster, nats_server
from tests.queue.programs.cast import MAX_ATTEMPTS, EventLog
from tests.queue.programs.program import Program, opened, until

ROOT = Path(__file__).parents[3]
TOLERANCE = Tolerance(hears_within=3.0, loses_within=0.5, starts_within=0.5)
"""Workers on a loaded machine may hear late: six of them and a run of other tests share two processors."""
AHEAD = 9
"""What a worker takes at once, and may hold when it is killed: as many as it runs, and some more of short ones."""


class Crew:
    """Worker processes; a killed one is replaced."""

    def __init__(self, store: str, log: str, number: int) -> None:
        self._command = [sys.executable, "-m", "tests.queue.programs.cast", store, log]
        self._number = number
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._workers = [self._hired() for _ in range(self._number)]

    def _hired(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    async def ready(self) -> None:
        for worker in self._workers:
            assert worker.stdout is not None
            assert await asyncio.to_thread(worker.stdout.readline) == b"ready\n"

    def kill_one(self, chance: Random) -> None:
        worker = chance.choice(self._workers)
        worker.kill()
        worker.communicate()
        self._workers[self._workers.index(worker)] = self._hired()

    def dismiss(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()


async def unfinished(queues: list[Queue]) -> int:
    """Return how many jobs have not ended, also for a replica that is behind: one of three servers answers lists."""
    counted = sum([(await queue.counts()).unfinished for queue in queues])
    return counted or sum([1 for queue in queues async for _ in queue.jobs()])


async def play(store: str, log: EventLog, crew: Crew, exclusive: bool, acts: int, seed: int, **options: Any) -> None:
    """Act at random while workers are killed; then check what happened. ``midway`` is called in the middle."""
    chance, midway = Random(seed), options.pop("midway", None)
    patience = {"patience": 90} if "://" in store else {}
    async with pelton.open(store, **patience) as one, pelton.open(store, **patience) as two:
        openings = [await opened(jet, exclusive, log.write, **options) for jet in (one, two)]
        program = Program(openings, chance, log.write, drains=True)
        crew.start()
        try:
            await crew.ready()
            for number in range(acts):
                await program.act()
                if chance.random() < 0.08:
                    await asyncio.sleep(chance.uniform(0.0, 0.2))
                    crew.kill_one(chance)
                if number == acts // 2 and midway is not None:
                    await asyncio.to_thread(midway)
                await asyncio.sleep(chance.choice((0, 0, 0.01, 0.05)))
            await program.finish()

            async def nothing_left() -> bool:
                return not await unfinished(openings[0]) and not await program.unfinished_flows()

            await until(nothing_left, 120)
        finally:
            crew.dismiss()
        await program.tell_the_end()
    broken = check_queue(log.read(), exclusive=exclusive, max_attempts=MAX_ATTEMPTS, tolerance=TOLERANCE)
    assert not broken


async def hurry_all(store: str, log: EventLog, crew: Crew, exclusive: bool) -> None:
    """Enqueue jobs of all priorities while workers run them and are killed; none waits for too many others."""
    chance = Random(5)
    async with pelton.open(store) as jet:
        [queue, _] = openings = await opened(jet, exclusive, log.write)
        program = Program([openings], chance, log.write)
        await program.hurry(300)
        crew.start()
        try:
            await crew.ready()
            for _ in range(6):
                await program.hurry(40)
                await asyncio.sleep(0.1)
                crew.kill_one(chance)

            async def nothing_left() -> bool:
                return not await unfinished([queue])

            await until(nothing_left, 60)
        finally:
            crew.dismiss()
        await program.tell_the_end()
    # Of 24 jobs that a worker takes one is of each priority; it may have taken some more at once.
    tolerance = msgspec.structs.replace(TOLERANCE, bypass=24 + AHEAD, held=12 * AHEAD)
    assert not check_queue(log.read(), exclusive=exclusive, max_attempts=MAX_ATTEMPTS, tolerance=tolerance)


async def take_turns(store: str, log: EventLog, crew: Crew, exclusive: bool, **options: Any) -> None:
    """Enqueue jobs of tenants, of one many more than of others, while workers are killed; each has its turns."""
    chance, midway = Random(7), options.pop("midway", None)
    patience = {"patience": 90} if "://" in store else {}
    async with pelton.open(store, **patience) as jet:
        [queue, _] = openings = await opened(jet, exclusive, log.write, **options)
        program = Program([openings], chance, log.write)
        await program.weigh("w", 3)
        await program.crowd(300)
        crew.start()
        try:
            await crew.ready()
            for number in range(6):
                if number == 3 and midway is not None:
                    await asyncio.to_thread(midway)
                await program.crowd(60)
                await asyncio.sleep(0.2)
                crew.kill_one(chance)
            await program.weigh("w", 1)

            async def nothing_left() -> bool:
                return not await unfinished([queue])

            await until(nothing_left, 120)
        finally:
            crew.dismiss()
        await program.tell_the_end()
    # What a worker has taken at once starts in any order.
    tolerance = msgspec.structs.replace(TOLERANCE, hears_within=1.0, turns=AHEAD, held=2 * AHEAD)
    assert not check_queue(log.read(), exclusive=exclusive, max_attempts=MAX_ATTEMPTS, tolerance=tolerance)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_every_tenant_has_its_turns_on_a_file(tmp_path: Path, exclusive: bool) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await take_turns(store, EventLog(log), Crew(store, log, 2), exclusive)


async def test_every_tenant_has_its_turns_on_a_server(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with nats_server(tmp_path / "nats") as server:
        await take_turns(server.url, EventLog(log), Crew(server.url, log, 2), exclusive=False)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_every_tenant_has_its_turns_when_one_of_three_servers_is_killed(tmp_path: Path, exclusive: bool) -> None:
    log = str(tmp_path / "log")
    with nats_cluster(tmp_path / "nats") as cluster:
        crew = Crew(cluster.url, log, 2)
        kill = cluster.servers[1].kill
        await take_turns(cluster.url, EventLog(log), crew, exclusive, midway=kill, num_replicas=3)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_no_priority_waits_for_ever_on_a_file(tmp_path: Path, exclusive: bool) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await hurry_all(store, EventLog(log), Crew(store, log, 2), exclusive)


async def test_no_priority_waits_for_ever_on_a_server(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with nats_server(tmp_path / "nats") as server:
        await hurry_all(server.url, EventLog(log), Crew(server.url, log, 2), exclusive=False)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_killed_workers_on_a_file(tmp_path: Path, exclusive: bool) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await play(store, EventLog(log), Crew(store, log, 3), exclusive, 400, seed=3)


async def test_six_workers_of_exclusive_keys_are_killed_on_a_file(tmp_path: Path) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await play(store, EventLog(log), Crew(store, log, 6), True, 400, seed=4)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_killed_workers_on_a_server(tmp_path: Path, exclusive: bool) -> None:
    log = str(tmp_path / "log")
    with nats_server(tmp_path / "nats") as server:
        await play(server.url, EventLog(log), Crew(server.url, log, 2), exclusive, 150, seed=1)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_one_of_three_servers_is_killed(tmp_path: Path, exclusive: bool) -> None:
    log = str(tmp_path / "log")
    with nats_cluster(tmp_path / "nats") as cluster:
        crew = Crew(cluster.url, log, 2)
        kill = cluster.servers[1].kill
        await play(cluster.url, EventLog(log), crew, exclusive, 80, seed=2, midway=kill, num_replicas=3)


async def hurry_keys(store: str, log: EventLog, crew: Crew, key_turns: int) -> None:
    """Enqueue jobs of many keys, of one more than of the others; no key waits for too many of it, or of priorities."""
    async with pelton.open(store) as jet:
        openings = await opened(jet, True, log.write)
        program = Program([openings], Random(7), log.write)
        await program.hurry(60, ["hot"])
        await program.hurry(100, [f"key{number}" for number in range(30)])
        crew.start()
        try:
            await crew.ready()
            await program.hurry(40, [f"key{number}" for number in range(60)])

            async def nothing_left() -> bool:
                return not await unfinished(openings[:1])

            await until(nothing_left, 60)
        finally:
            crew.dismiss()
        await program.tell_the_end()
    tolerance = msgspec.structs.replace(TOLERANCE, bypass=24 + AHEAD, held=12 * AHEAD, key_turns=key_turns)
    assert not check_queue(log.read(), exclusive=True, max_attempts=MAX_ATTEMPTS, tolerance=tolerance)


async def test_no_key_waits_for_ever_on_a_file(tmp_path: Path) -> None:
    store, log = str(tmp_path / "store.pelton"), str(tmp_path / "log")
    await hurry_keys(store, EventLog(log), Crew(store, log, 2), key_turns=3)


async def test_no_key_waits_for_ever_on_a_server(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with nats_server(tmp_path / "nats") as server:
        await hurry_keys(server.url, EventLog(log), Crew(server.url, log, 2), key_turns=12)
