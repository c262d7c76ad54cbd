"""The demo's worker processes: started, counted, one of them killed and replaced, stopped gracefully."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from pelton.cli.demo.record import WorkerRecord
from pelton.cli.demo.screen import State, WorkerView
from pelton.cli.demo.work import begun, monotonic_ns
from pelton.runtime import Clock

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
        command = [sys.executable, "-m", "pelton.cli.demo.work", str(self._store), str(number), str(self._folder)]
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
