"""A simulated machine: one store, processes that use it, and what befalls them.

Each process has its own opening of the store, its own runtime, and threads of its own: lanes of one
:class:`~tests.simulation.loop.SimulatedLoop`. A killed process does nothing more: its connections are cut first,
without a commit. A stopped one goes on later where it was; a disk that is full refuses commits; a slow one makes all
wait.

What reaches for the machine itself is replaced while a simulation runs: threads are lanes, and processes wake each
other without sockets.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, Final, TypeVar

import apsw

from pelton.connect import Jet
from pelton.engine import connections, engine
from pelton.engine.connections import EngineSettings
from pelton.engine.engine import Engine
from pelton.locks import candidate_runner, keeper
from pelton.queue.run import leases
from pelton.runtime import Ids, Runtime, Timer, cpu_wait, pause, stopwatch
from pelton.storage import Database, Fault, wake
from tests.kit.patches import patched
from tests.simulation.loop import LANE, Lane, SimulatedLoop

T = TypeVar("T")
_START_NS: Final = 1_700_000_000_000_000_000


class Machine:
    """One store at ``path``, and its processes."""

    def __init__(self, loop: SimulatedLoop, path: Path, seed: int) -> None:
        self.loop = loop
        self.path = str(path)
        self.ahead_ns = 0
        self.processes: list[Process] = []
        self.random = Random(seed)
        self._names = count(1)

    def start(self) -> Process:
        """Start a process."""
        process = Process(self, f"p{next(self._names)}")
        self.processes.append(process)
        return process

    def others(self, path: str, than: Channel) -> list[Channel]:
        """Return the openings of a store, but for one."""
        return [
            channel
            for one in self.processes
            for channel in one.channels
            if channel is not than and channel.path == path
        ]

    def close(self) -> None:
        """End all processes, and let go of what they held."""
        for process in self.processes:
            process.kill()
        self.loop.forget([lane for process in self.processes for lane in process.lanes])


class Process:
    """A process of a machine. ``jet`` is its opening of the store."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name
        self.lanes: list[Lane] = []
        self.channels: list[Channel] = []
        self.connections: list[Any] = []
        self.marks: list[wake.BegunMarks] = []
        self.is_alive = True
        self.is_stopped = False
        self.is_full = False
        self.slow_s = 0.0
        self.ahead_ns = 0
        self._main = self.lane("main")
        chance = Random(machine.random.getrandbits(64))
        self.random = chance
        self.runtime = Runtime(clock=ProcessClock(self), random=chance, ids=Ids(chance))

    def lane(self, name: str) -> Lane:
        lane = self.machine.loop.lane(f"{self.name} {name}", self)
        lane.is_held = self.is_stopped if self.lanes else False
        self.lanes.append(lane)
        return lane

    def spawn(self, coro: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run a coroutine as this process."""
        return self.machine.loop.spawn(self._main, coro, name)

    def open(self) -> Jet:
        """Open the store; call it in a coroutine of this process."""
        settings = EngineSettings(self.machine.path, sync_file=self._sync)
        return Jet(Engine(settings, self.runtime), self.runtime)

    def _sync(self, descriptor: int) -> None:
        if self.slow_s:
            self.machine.loop.block(self.random.uniform(0, self.slow_s))

    # --- what befalls it

    def kill(self) -> None:
        """Kill it: nothing it has not committed is seen any more."""
        if not self.is_alive:
            return
        self.is_alive = False
        for lane in self.lanes:
            self.machine.loop.kill(lane)
        self.channels.clear()
        for connection in self.connections:
            _cut(connection)
        self.connections.clear()
        for marks in self.marks:
            marks.disown()
        # What it has committed, it may have told.
        for channel in self.machine.others(self.machine.path, None):  # type: ignore[arg-type]
            channel.wake_up()

    def stop(self) -> None:
        """Stop it, as SIGSTOP does."""
        self.is_stopped = True
        for lane in self.lanes:
            lane.is_held = True

    def go_on(self) -> None:
        """Let it go on."""
        if self.is_alive:
            self.is_stopped = False
            for lane in self.lanes:
                lane.is_held = False


def _cut(connection: Any) -> None:
    if connection.is_closed:
        return
    connection.ending.fault = Fault("closed", connection.path, "its process was killed")
    connection._closed = True
    with suppress(apsw.Error):
        connection.let_go()
    with suppress(AttributeError):
        connection._file.leaving()
        connection._file.close()


class ProcessClock:
    """The clocks of a process: its machine's, with a wall clock that may be set."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._machine = process.machine
        self._loop = process.machine.loop
        self.monotonic = self.boottime = self._loop.time

    def now(self) -> int:
        return _START_NS + self._machine.ahead_ns + self._process.ahead_ns + int(self._loop._seconds * 1e9)

    def boot_id(self) -> str:
        return "simulated"

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0.0, delay_s), fn)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def here() -> Process:
    """Return the process of what runs now."""
    process: Process = LANE.get().owner
    return process


class Channel:
    """Wakes the other processes of a machine."""

    polled = False
    _numbers: ClassVar[Iterator[int]] = count(1)

    def __init__(self, path: str, on_wake: Callable[[], None], monotonic: Callable[[], float]) -> None:
        process = here()
        self.path = path
        self.name = f"{process.name}-{len(process.connections)}"
        self._machine = process.machine
        self._process = process
        self._on_wake = on_wake
        self._context = LANE.get().context()
        self._is_woken = False
        process.channels.append(self)

    def wake_others(self) -> None:
        for other in self._machine.others(self.path, self):
            other.wake_up()

    def wake_up(self) -> None:
        """Wake this opening soon, once for all that wake it until then."""
        if not self._is_woken:
            self._is_woken = True
            self._machine.loop.call_soon(self._wake, context=self._context)

    def _wake(self) -> None:
        self._is_woken = False
        if self in self._process.channels:
            self._on_wake()

    def wake(self, name: str) -> None:
        for other in self._machine.others(self.path, self):
            if other.name == name:
                other.wake_up()

    def is_alive(self, name: str) -> bool:
        return any(channel.name == name for one in self._machine.processes for channel in one.channels)

    def is_gone(self, name: str) -> bool:
        return not self.is_alive(name)

    def close(self) -> None:
        with suppress(ValueError):
            self._process.channels.remove(self)


class Event:
    """An event between two threads of a process."""

    def __init__(self) -> None:
        self._is_set = False
        self.waiters: list[asyncio.Future[bool]] = []

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(True)
        self.waiters.clear()


class Thread:
    """A loop on a thread of its own: a lane."""

    is_blocked = False

    def __init__(self, main: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        self._main = main
        self._name = name
        self._task: asyncio.Task[object] | None = None

    def start(self) -> None:
        process = here()
        self._loop = process.machine.loop
        self._lane = process.lane(self._name)
        self._task = self._loop.spawn(self._lane, self._main(), self._name)

    @property
    def is_here(self) -> bool:
        return self._task is not None and LANE.get() is self._lane

    @property
    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def call_soon(self, function: Callable[..., object], *args: Any) -> bool:
        if self.is_alive:
            self._loop.call_soon(function, *args, context=self._lane.context())
        return self.is_alive

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.is_alive:
            work.close()
            raise RuntimeError(f"the event loop of thread {self._name!r} is not running")
        return await self._loop.spawn(self._lane, work, self._name)

    async def block(self, event: Event, timeout: float) -> bool:
        if event.is_set():
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        event.waiters.append(waiter)
        timer = self._loop.call_later(timeout, _time_out, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            if waiter in event.waiters:
                event.waiters.remove(waiter)

    def join(self) -> None:
        """Do nothing: it ends soon."""


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class _Opened:
    """The connections that are open."""

    def add(self, connection: Any) -> None:
        here().connections.append(connection)

    def discard(self, connection: Any) -> None:
        for process in _machine[0].processes:
            if connection in process.connections:
                process.connections.remove(connection)


_machine: list[Machine] = []


class _SimulatedDatabase(Database):
    """A connection whose commits fail while the disk of its process is full."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(path, **options)
        process, execute = here(), self.execute

        def run(sql: str, *args: Any) -> apsw.Cursor:
            if process.is_full and sql == "COMMIT":
                raise apsw.FullError("database or disk is full")
            return execute(sql, *args)

        self.execute = run


class _Marks(wake.BegunMarks):
    def __init__(self, path: str, *, folder: bool) -> None:
        super().__init__(path, folder=folder)
        here().marks.append(self)


@contextmanager
def simulated(machine: Machine) -> Iterator[None]:
    """Let programs run on a simulated machine."""
    from pelton.storage import database

    with ExitStack() as stack:
        _machine.append(machine)
        stack.callback(_machine.clear)
        for module, names in (
            (engine, {"WakeChannel": Channel, "BegunMarks": _Marks}),
            (connections, {"Database": _SimulatedDatabase}),
            (database, {"opened": _Opened()}),
            (leases, {"LoopThread": Thread, "threading": SimpleNamespace(Event=Event)}),
            (keeper, {"LoopThread": Thread}),
            (candidate_runner, {"LoopThread": Thread}),
        ):
            stack.enter_context(patched(module, **names))
        loop = machine.loop
        for module in [module for name, module in sys.modules.items() if name.startswith("pelton.")]:
            clocks = {
                "stopwatch": (stopwatch, loop.time),
                "pause": (pause, loop.block),
                "cpu_wait": (cpu_wait, lambda: 0.0),
            }
            found = {name: new for name, (old, new) in clocks.items() if vars(module).get(name) is old}
            stack.enter_context(patched(module, **found))
        yield
