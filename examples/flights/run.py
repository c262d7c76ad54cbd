"""The run: a year of flights as jobs keyed by aircraft, three worker processes, one killed on the way.

The parent puts the flights into the queue, in time order, while the workers already work; kills one worker
with SIGKILL when part of the flights are done, starts another, and stops all when nothing is left. Then it
reads the whole record back and checks it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

import pelton
from examples.flights.checks import check
from examples.flights.flights import Flight, read_carriers, read_flights, read_planes
from examples.flights.lake import show_lake
from examples.flights.picture import spreaders, write_picture
from examples.flights.record import Run, Times, WorkerRecord, collect
from examples.flights.screen import Screen, Snapshot, State, WorkerView, live_page, print_report
from examples.flights.work import PLANES, begun, monotonic_ns, open_queue, register
from pelton.runtime import Clock, system_runtime

_STOP_S: Final = 30


class WorkerPool:
    """The worker processes on one store."""

    def __init__(self, store: Path, folder: Path, concurrency: int, clock: Clock) -> None:
        self._store = store
        self._folder = folder
        self._concurrency = concurrency
        self._clock = clock
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.workers: dict[int, WorkerRecord] = {}
        self._states: dict[int, State] = {}

    def start(self, state: State = "running") -> int:
        """Start one more worker and return its number."""
        number = len(self.workers) + 1
        command = [sys.executable, "-m", "examples.flights.work", str(self._store), str(number), str(self._folder)]
        process = subprocess.Popen([*command, str(self._concurrency)], start_new_session=True)
        self._processes[number] = process
        self.workers[number] = WorkerRecord(number, process.pid, monotonic_ns(self._clock))
        self._states[number] = state
        return number

    def kill_and_replace(self, number: int) -> None:
        """Kill a worker with SIGKILL, and start another in its place."""
        process = self._processes.pop(number)
        killed = monotonic_ns(self._clock)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.workers[number] = self.workers[number]._replace(killed_ns=killed, gone_ns=monotonic_ns(self._clock))
        self._states[number] = "killed"
        self.start("replacing")

    def fallen(self) -> list[int]:
        """Return the workers that ended without being stopped."""
        return [number for number, process in self._processes.items() if process.poll() is not None]

    def stop(self) -> None:
        """Stop all workers gracefully, with SIGTERM; those that do not end in time are killed."""
        for process in self._processes.values():
            process.terminate()
        for number, process in self._processes.items():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._states[number] = "finished"
        self._processes.clear()

    def views(self) -> tuple[WorkerView, ...]:
        """Return the workers for the screen."""
        return tuple(
            WorkerView(number, worker.pid, begun(self._folder, number), self._states[number])
            for number, worker in self.workers.items()
        )


_BATCH: Final = 2000
_LOOK_S: Final = 0.25
_KILL_AT: Final = 0.35


@dataclass(frozen=True)
class DemoSettings:
    """What to run: ``limit`` flights (None: all), the number of workers, and the folder for the results."""

    folder: Path
    limit: int | None = None
    workers: int = 3
    concurrency: int = 64


class DemoFailedError(pelton.PeltonError):
    """The demo could not be finished."""


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run the demo, print its report, write its picture; return whether every promise was kept."""
    flights = read_flights(settings.limit)
    console.print(f"{len(flights):,} flights read; the store is {_store(settings)}")
    run = asyncio.run(_Demo(settings, flights, console).run())
    verdicts = check(run)
    worst = spreaders(run, read_planes(), read_carriers())
    kept = print_report(console, run, verdicts, worst)
    picture = settings.folder / "flights.html"
    write_picture(picture, run, verdicts, worst)
    console.print(f"Picture: {picture}")
    show_lake(console, _store(settings), flights, read_carriers())
    return kept


def _store(settings: DemoSettings) -> Path:
    return settings.folder / "flights.pelton"


class _Demo:
    """One run."""

    def __init__(self, settings: DemoSettings, flights: Sequence[Flight], console: Console) -> None:
        self._settings = settings
        self._flights = flights
        self._console = console
        self._runtime = system_runtime()
        self._clock: Clock = self._runtime.clock
        self._crew = WorkerPool(_store(settings), settings.folder, settings.concurrency, self._clock)
        self._victim: int | None = None
        self._killed = asyncio.Event()
        self._started = 0

    async def run(self) -> Run:
        async with pelton.open(_store(self._settings)) as jet:
            planes = await jet.create_stream(PLANES, subjects=[f"{PLANES}.>"], allow_direct=True)
            queue = await open_queue(jet)
            with live_page(_store(self._settings)) as address:
                if address:
                    self._console.print(f"Live, with the workers: {address}queues/{queue.name}", soft_wrap=True)
                times = await self._work(jet, queue, planes)
            workers = list(self._crew.workers.values())
            return await collect(jet, self._settings.folder, self._flights, workers, times)

    async def _work(self, jet: pelton.Jet, queue: pelton.Queue, planes: pelton.Stream) -> Times:
        self._started = monotonic_ns(self._clock)
        for _ in range(self._settings.workers):
            self._crew.start()
        try:
            feeding = self._runtime.spawn(self._feed(queue, planes), "demo feeder")
            with Screen(self._console) as screen:
                await self._watch(screen, planes, await jet.stream(queue.names.dead))
            await feeding
            return Times(self._started, monotonic_ns(self._clock))
        finally:
            await asyncio.to_thread(self._crew.stop)

    async def _feed(self, queue: pelton.Queue, planes: pelton.Stream) -> None:
        """Enqueue all flights in time order; those without an aircraft have no key.

        The second half waits for the kill, so that something is left to take over, however short the run.
        """
        fly = register(queue, planes, 0, -1)
        half = (len(self._flights) + 1) // 2
        await self._enqueue(fly, self._flights[:half])
        await self._killed.wait()
        await self._enqueue(fly, self._flights[half:])

    async def _enqueue(self, fly: pelton.Job[..., None], flights: Sequence[Flight]) -> None:
        for first in range(0, len(flights), _BATCH):
            batch = flights[first : first + _BATCH]
            await fly.enqueue_many([(f,) for f in batch], keys=[f.tailnum or "" for f in batch])

    async def _watch(self, screen: Screen, planes: pelton.Stream, dead: pelton.Stream) -> None:
        """Show the progress until every flight is done or dead; kill a worker in between."""
        total = len(self._flights)
        while True:
            done = (await planes.info()).state.messages
            failed = (await dead.info()).state.messages
            if self._victim is None and done + failed >= total * _KILL_AT:
                await asyncio.to_thread(self._kill)
                self._killed.set()
            screen.show(self._snapshot(done, failed))
            if done + failed >= total:
                return
            if fallen := self._crew.fallen():
                raise DemoFailedError(f"worker {fallen[0]} ended by itself; see its message above")
            await self._clock.sleep(_LOOK_S)

    def _kill(self) -> None:
        self._victim = min(2, self._settings.workers)
        self._crew.kill_and_replace(self._victim)

    def _snapshot(self, done: int, failed: int) -> Snapshot:
        at = (monotonic_ns(self._clock) - self._started) / 1e9
        note = (
            "" if self._victim is None else f"worker {self._victim} was killed; its flights come back after the lease"
        )
        return Snapshot(at, done, len(self._flights), failed, self._crew.views(), note)
