"""``pelton work``: run the jobs that a program declares in a ``pelton.Jobs()``, in one process or several.

SIGTERM and SIGINT end it in order: it takes no more jobs, running ones have their grace, and what is left is handed
back, which does not count as an attempt. A second signal ends it at once. With --processes, --max-jobs, --max-memory
or --reload, a supervisor starts the processes that work, and replaces those that die; at SIGHUP it replaces them one
after the other.

The exit status is 0 when it ended in order, 1 when it failed or could not start, 2 for a wrong command line, and
128 + N when a second signal N ended it.
"""
# The supervisor: each child has a task that lets it live one life after another. A life ends when the child was asked
# to stop (the command ends, or it is to be replaced by one with newer code), when it has run its number of jobs, or
# when it dies: then the next one begins after a wait that doubles each time, until a child has lived for a while.
#
# No signal is sent to a child that is to stop: its socket is closed, so that a supervisor that is killed stops them
# too, and that a service manager may send its signal to all processes, without a child that sees two.

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pelton.api import Backoff, ConfigError
from pelton.cli.arguments import KEY, declare, fields_of, option
from pelton.cli.work_process import CANNOT_START, READY, WorkPlan, found_jobs, work, write_work_logs
from pelton.runtime import Runtime, Signal, end_tasks, system_runtime

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceFiles:
    """The Python files under a folder; those of hidden folders and of virtual environments are skipped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def find_changed(self) -> list[str]:
        """Return the files that were written, created or removed since the last call."""
        before, self._seen = self._seen, self._look()
        return sorted(
            os.path.relpath(name, self._folder)
            for name in before.keys() | self._seen.keys()
            if before.get(name) != self._seen.get(name)
        )

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder, names, files in os.walk(self._folder):
            names[:] = [name for name in names if not _is_skipped(Path(folder, name))]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    try:
                        status = os.stat(path)
                    except FileNotFoundError:  # removed since
                        continue
                    found[path] = (status.st_mtime_ns, status.st_size)
        return found


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _SKIPPED or (folder / "pyvenv.cfg").exists()


_log: Final = logging.getLogger("pelton.work")
_AGAIN: Final = Backoff(base=0.5, factor=2, cap=30, jitter=0)
_WELL_S: Final = 30.0
_LOOK_S: Final = 0.3


class WorkProcess:
    """One place for a process, and the one that lives there."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.control: socket.socket | None = None
        self.is_ready = False
        self.lives = 0
        # How many have died, and how many of them in a row early.
        self.deaths = 0
        self.early = 0

    def __str__(self) -> str:
        pid = "" if self.process is None else f" (pid {self.process.pid})"
        return f"worker {self.number}{pid}"

    def stop(self) -> None:
        """Ask its process to stop in order."""
        control, self.control = self.control, None
        if control is not None:
            control.close()

    def kill(self) -> None:
        """End its process at once."""
        # Not Process.kill: it reaps a dead process, and asyncio misses its end.
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)


class Supervisor:
    """Keeps ``processes`` children at work; ``files``: they are replaced when one of these changes."""

    def __init__(self, plan: WorkPlan, processes: int, runtime: Runtime, files: SourceFiles | None = None) -> None:
        self._arguments = msgspec.json.encode(plan).decode()
        self._places = [WorkProcess(number) for number in range(1, processes + 1)]
        self._clock = runtime.clock
        self._runtime = runtime
        self._files = files
        self._is_ending = False
        self._was_killed = 0
        self._wants_roll = False
        self._has_failed = False
        # How often there was newer code.
        self._changes = 0
        # Something has happened that a task may be waiting for.
        self._news = Signal()

    async def run(self) -> int:
        """Supervise until a signal, or until no child can start; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped_by, number)
        loop.add_signal_handler(signal.SIGHUP, self._roll_later)
        others = [self._runtime.spawn(self._roll(), "roll")]
        if self._files is not None:
            others.append(self._runtime.spawn(self._watch(self._files), "reload"))
        try:
            await asyncio.gather(*(self._keep(place) for place in self._places))
        finally:
            await end_tasks(*others)
        if self._was_killed:
            return 128 + self._was_killed
        return 1 if self._has_failed else 0

    # --- signals

    def _stopped_by(self, number: int) -> None:
        if self._is_ending:
            _log.warning("%s again: the workers end at once", signal.Signals(number).name)
            self._was_killed = number
            for place in self._places:
                place.kill()
            return
        _log.info("%s: the workers finish what they run, and end", signal.Signals(number).name)
        self._end()

    def _end(self) -> None:
        self._is_ending = True
        for place in self._places:
            place.stop()
        self._news.notify()

    def _roll_later(self) -> None:
        self._wants_roll = True
        # Those that wait after a death start at once.
        self._changes += 1
        self._news.notify()

    # --- the life of a child

    async def _keep(self, place: WorkProcess) -> None:
        while not self._is_ending:
            began = self._clock.boottime()
            status, was_asked = await self._live(place)
            if self._is_ending:
                break
            lived = self._clock.boottime() - began
            if was_asked or status == 0:
                place.early = 0
                continue
            if not self._may_start_again(place, status):
                self._has_failed = True
                self._end()
                break
            place.deaths += 1
            place.early = 1 if lived >= _WELL_S else place.early + 1
            wait = _AGAIN.delay(place.early, self._runtime.random)
            _log.error("worker %d %s; the next one starts in %g s", place.number, _how(status), wait)
            await self._pause(wait)

    def _may_start_again(self, place: WorkProcess, status: int) -> bool:
        """Whether it is worth it: one that could not be started from the first is a wrong command line."""
        return self._files is not None or status != CANNOT_START or place.lives > 0

    async def _live(self, place: WorkProcess) -> tuple[int, bool]:
        """Let a child live to its end; return its exit status, and whether it was asked to end."""
        ours, theirs = socket.socketpair()
        place.control, place.is_ready = ours, False
        with theirs:
            command = [sys.executable, "-m", "pelton.cli.work_process", self._arguments, str(theirs.fileno())]
            # A group of its own: Ctrl-C is for the supervisor, which asks the children.
            process = place.process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
        if self._is_ending:
            place.stop()
        told = self._runtime.spawn(self._listen(place, ours), f"worker {place.number}")
        try:
            status = await process.wait()
        finally:
            place.kill()
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)
            was_asked = place.control is None
            place.stop()
            ours.close()
            place.process, place.is_ready = None, False
            self._news.notify()
        return status, was_asked

    async def _listen(self, place: WorkProcess, control: socket.socket) -> None:
        control.setblocking(False)
        with suppress(OSError):
            if await asyncio.get_running_loop().sock_recv(control, len(READY)):
                _log.info("%s has begun", place)
                place.is_ready = True
                place.lives += 1
                self._news.notify()

    async def _pause(self, seconds: float) -> None:
        """Wait, at most until it is time to end, or there is newer code."""
        until, changes = self._clock.boottime() + seconds, self._changes
        while not self._is_ending and self._changes == changes and (left := until - self._clock.boottime()) > 0:
            await self._news.wait_at_most(self._clock, left, self._news.generation)

    # --- newer code

    async def _roll(self) -> None:
        """Replace the children, one after the other, whenever that was asked for."""
        while True:
            while not self._wants_roll:
                await self._news.wait(self._news.generation)
            self._wants_roll = False
            # First those that do not work: while the code can't start, the last one that works must stay.
            for place in sorted(self._places, key=lambda place: place.is_ready):
                if not await self._replace(place):
                    _log.error("worker %d could not be replaced; the others go on as they are", place.number)
                    break

    async def _replace(self, place: WorkProcess) -> bool:
        """Ask a child to stop, and wait for the next one; return whether that one works."""
        lives, deaths = place.lives, place.deaths
        _log.info("%s is replaced", place)
        place.stop()
        while place.lives == lives:
            if self._is_ending or place.deaths > deaths:
                return False
            await self._news.wait(self._news.generation)
        return True

    async def _watch(self, files: SourceFiles) -> None:
        """Replace all children when a file changes."""
        while True:
            await self._clock.sleep(_LOOK_S)
            changed = await asyncio.to_thread(files.find_changed)
            if changed:
                more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
                _log.info("%s%s changed: the workers start again", ", ".join(changed[:3]), more)
                self._changes += 1
                for place in self._places:
                    place.stop()
                self._news.notify()


def _how(status: int) -> str:
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return "could not start" if status == CANNOT_START else f"ended with status {status}"


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")


@declare("work", description=__doc__)
@option("MODULE:ATTRIBUTE...", "a pelton.Jobs(), such as shop.jobs:jobs", dest="jobs")
@option("--store STORE", "a file or nats://host (default: the variable PELTON_STORE)")
@option("--queue NAME", "created if missing; repeatable", action="append", required=True, dest="queues")
@option("--concurrency N", "jobs at a time, of each queue in each process (default 8)", default=8)
@option("--processes N", "processes, under a supervisor")
@option("--max-jobs N", "replace a process after N jobs of a queue")
@option("--max-memory SIZE", "replace a process that has more, such as 500M; its jobs end first")
@option("--reload", "start again when a Python file changes (development)")
@option("--grace SECONDS", "for running jobs, at the end (default 30)", type=_seconds, default=30.0)
@option("--json-logs --json", "log in JSON, an object a line")
@option("--otel", "trace jobs with OpenTelemetry, as the program configures it")
@KEY
def run_work(options: argparse.Namespace) -> int:
    """Work until stopped; return the exit status."""
    store = options.store or os.environ.get("PELTON_STORE")
    if not store:
        raise ConfigError("which store? give --store FILE, or set PELTON_STORE")
    given = {"jobs": tuple(options.jobs), "store": store, "queues": tuple(dict.fromkeys(options.queues))}
    plan = WorkPlan(**{**fields_of(options, WorkPlan.__struct_fields__), **given})
    write_work_logs(plan)
    if not (options.processes or options.max_jobs or options.max_memory or options.reload):
        for name in plan.jobs:
            found_jobs(name)
        asyncio.run(work(plan))
        return 0
    files = SourceFiles(Path.cwd()) if options.reload else None
    return asyncio.run(Supervisor(plan, options.processes or 1, system_runtime(), files).run())
