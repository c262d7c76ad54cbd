"""Plays a program on a simulated machine, and returns its history, which the played functions write themselves."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple

import msgspec

import pelton
from pelton.api import PeltonError
from pelton.connect import Jet
from pelton.queue import JobContext, Queue
from tests.simulation.loop import SimulatedLoop, StandsStill
from tests.simulation.machine import Machine, Process, simulated
from tests.simulation.program import LEASE_S, MAX_ATTEMPTS, Act, Program

NoteKind = Literal[
    "asked", "accepted", "cancelled", "flow", "limited", "scheduled", "start", "called", "step", "napping", "end",
    "lost", "hold", "outcome", "letter", "flow outcome", "fault", "calm", "error", "stuck",
]  # fmt: skip
_BACKOFF: Final = pelton.Backoff(base=0.2, factor=2, cap=1.0)
_CALM_S: Final = 15.0
_PATIENCE_S: Final = 240.0
_LOCK_S: Final = 2
_FOLDERS: Final = ("/dev/shm", None)


class Note(NamedTuple):
    """Something that happened, by the simulation's clock. ``number`` is the job's, as the program gives it."""

    at: float
    kind: NoteKind
    who: str
    number: int = 0
    id: str = ""
    token: int = 0
    attempt: int = 0
    key: str = ""
    name: str = ""
    value: str = ""


class Played(NamedTuple):
    """What a run was: its history, how many callbacks its loop has called, how many simulated seconds it took."""

    history: list[Note]
    steps: int
    seconds: float

    @property
    def digest(self) -> str:
        """A text that equal histories share."""
        return sha256(msgspec.json.encode(self.history)).hexdigest()


@cache
def _freeze() -> None:
    """Let the collection after each program not look at what was there before the first."""
    gc.collect()
    gc.freeze()


def play(program: Program) -> Played:
    """Play a program."""
    _freeze()
    folder = next(name for name in _FOLDERS if name is None or Path(name).is_dir())
    loop = SimulatedLoop(program.seed)
    logging.disable(logging.CRITICAL)
    try:
        with TemporaryDirectory(dir=folder, prefix="pelton-simulation-") as name:
            machine = Machine(loop, Path(name) / "a.pelton", program.seed)
            stage = Stage(program, machine)
            with simulated(machine):
                try:
                    loop.run_until_complete(stage.play())
                except StandsStill:
                    stage.note("stuck", "the machine", value="nothing happens any more")
                finally:
                    machine.close()
        stage.tell(loop.errors)
    finally:
        logging.disable(logging.NOTSET)
        loop.close()
    return Played(stage.history, loop.steps, loop.time())


class Stage:
    """A program that is played. ``history`` is what happened so far."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        self.loop = machine.loop
        self.history: list[Note] = []
        self._slots: list[Process | None] = [None] * program.processes
        self._queues: dict[str, Queue] = {}
        self._ids: dict[int, str] = {}
        self._flows: dict[int, str] = {}
        self._held: dict[str, dict[str, Any]] = {"car": {}, "boss": {}}
        self._is_over = False

    def note(self, kind: NoteKind, who: str, **facts: Any) -> None:
        """Write to the history, until it is over."""
        if self._is_over:
            return
        self.history.append(Note(round(self.loop.time(), 6), kind, who, **facts))

    def tell(self, errors: list[str]) -> None:
        """Write errors of the loop to the history."""
        self._is_over = False
        for error in errors:
            self.note("error", "the loop", value=error)

    async def play(self) -> None:
        """Play all acts; then end all faults, and wait for what must come."""
        for slot in range(self.program.processes):
            self._start(slot)
        for act in self.program.acts:
            await asyncio.sleep(max(0.0, act.at - self.loop.time()))
            self._act(act)
        await self._calm()

    # --- processes

    def _start(self, slot: int) -> None:
        if self._is_over:
            return
        process = self._slots[slot] = self.machine.start()
        app = process.spawn(self._app(process))
        context = self.machine.loop.director.context()
        app.add_done_callback(lambda done: self._on_exit(slot, process, done), context=context)

    def _on_exit(self, slot: int, process: Process, app: asyncio.Task[None]) -> None:
        """A program that ends with an error is started again, as by any supervisor."""
        if process.is_alive and not app.cancelled():
            self.note("fault", process.name, name="exit", value=repr(app.exception()))
            self._kill(slot, 1.0)

    def _kill(self, slot: int, seconds: float) -> None:
        process = self._slots[slot]
        if process is not None and process.is_alive:
            self.note("fault", process.name, name="kill")
            process.kill()
            self._forget(process)
            self._slots[slot] = None
            self.loop.call_later(seconds, self._start, slot)

    def _forget(self, process: Process) -> None:
        self._queues.pop(process.name, None)
        for held in self._held.values():
            held.pop(process.name, None)

    async def _app(self, process: Process) -> None:
        jet = process.open()
        tasks: list[Awaitable[None]] = []
        if self.program.queue:
            queue = await jet.queue("shop", exclusive=self.program.exclusive, lease=LEASE_S)
            Cast(self, process, queue).register()
            self._queues[process.name] = queue
            tasks.append(queue.work(concurrency=3, handle_signals=False))
        if self.program.locks:
            tasks.append(self._use_lock(process, jet))
        if self.program.election:
            tasks.append(self._lead(process, jet))
        await asyncio.gather(*tasks)

    # --- acts

    def _act(self, act: Act) -> None:
        process = self._slots[act.slot % len(self._slots)]
        if act.kind == "machine clock":
            self.note("fault", "the machine", name="clock", value=str(act.seconds))
            self.machine.ahead_ns += int(act.seconds * 1e9)
        elif process is None:
            return
        elif act.kind == "kill":
            self._kill(act.slot % len(self._slots), act.seconds)
        elif act.kind in ("stop", "full", "slow", "clock"):
            self._befall(process, act)
        elif (queue := self._queues.get(process.name)) is not None:
            process.spawn(self._ask(process, queue, act))

    def _befall(self, process: Process, act: Act) -> None:
        self.note("fault", process.name, name=act.kind)
        if act.kind == "stop":
            process.stop()
            self.loop.call_later(act.seconds, self._go_on, process)
        elif act.kind == "full":
            process.is_full = True
            self.loop.call_later(act.seconds, setattr, process, "is_full", False)
        elif act.kind == "clock":
            process.ahead_ns += int(act.seconds * 1e9)
        else:
            process.slow_s = 0.1
            self.loop.call_later(act.seconds, setattr, process, "slow_s", 0.0)

    def _go_on(self, process: Process) -> None:
        if process.is_stopped and process.is_alive:
            self.note("fault", process.name, name="go on")
            process.go_on()

    async def _ask(self, process: Process, queue: Queue, act: Act) -> None:
        ask: dict[str, Callable[[Process, Queue, Act], Awaitable[None]]] = {
            "enqueue": self._enqueue,
            "cancel": self._cancel,
            "flow": self._flow,
            "schedule": self._schedule,
            "limit": self._limit,
        }
        try:
            await ask[act.kind](process, queue, act)
        except (PeltonError, TimeoutError) as error:
            self.note("error", process.name, number=act.number, name=act.kind, value=type(error).__name__)

    async def _enqueue(self, process: Process, queue: Queue, act: Act) -> None:
        key, unique = act.options.get("key", ""), act.options.get("unique", "")
        if unique:
            # Of one tenant, or of one exclusive key, which goes before it.
            unique += "/" + ((key if self.program.exclusive else "") or act.options.get("tenant", ""))
        self.note("asked", process.name, number=act.number, key=key, name=act.job)
        handle = await queue.options(**act.options).enqueue(act.job, number=act.number, moves=act.moves)
        if not handle.duplicate:
            self._ids[act.number] = handle.id
            self.note("accepted", process.name, number=act.number, id=handle.id, key=key, name=act.job, value=unique)

    async def _cancel(self, process: Process, queue: Queue, act: Act) -> None:
        job_id = self._ids.get(act.number)
        if job_id is not None and await queue.cancel(job_id, reason="at random"):
            self.note("cancelled", process.name, number=act.number, id=job_id)

    async def _flow(self, process: Process, queue: Queue, act: Act) -> None:
        flow, nodes = await queue.new_flow(), list[Any]()
        for part in act.parts:
            options = flow.options(after=[nodes[one] for one in part.after])
            nodes.append(options.add("wash", number=part.number, moves=part.moves))
        handle = await flow.enqueue()
        self._flows[act.number] = handle.id
        self.note("flow", process.name, number=act.number, id=handle.id)

    async def _schedule(self, process: Process, queue: Queue, act: Act) -> None:
        await queue.schedule("tick", "paint", kwargs={"number": act.number, "moves": []}, every=act.seconds)
        self.note("scheduled", process.name, number=act.number, value=str(act.seconds))

    async def _limit(self, process: Process, queue: Queue, act: Act) -> None:
        await queue.limit(**act.options)
        self.note("limited", process.name, value=msgspec.json.encode(act.options).decode())

    # --- locks and elections

    async def _use_lock(self, process: Process, jet: Jet) -> None:
        while True:
            with suppress(PeltonError, TimeoutError):
                held = await jet.lock("car", ttl=_LOCK_S).acquire(timeout=process.random.choice((None, 3.0)))
                if held is not None:
                    await self._hold(process, "car", held)
                    await held.release()
            await asyncio.sleep(process.random.uniform(0, 0.5))

    async def _lead(self, process: Process, jet: Jet) -> None:
        while True:
            with suppress(PeltonError, TimeoutError):
                async with jet.elect("boss", ttl=_LOCK_S) as term:
                    await self._hold(process, "boss", term)
            await asyncio.sleep(process.random.uniform(0, 0.5))

    async def _hold(self, process: Process, name: str, held: Any) -> None:
        holders = self._held[name]
        holders[process.name] = held
        try:
            for _ in range(process.random.choice((1, 3, 12))):
                if held.is_held:
                    others = [who for who, one in holders.items() if who != process.name and one.is_held]
                    self.note("hold", process.name, name=name, token=held.token, value=" ".join(others))
                await asyncio.sleep(process.random.uniform(0.05, 0.6))
        finally:
            holders.pop(process.name, None)

    # --- the end

    async def _calm(self) -> None:
        for process in self._slots:
            if process is not None:
                self._go_on(process)
                process.is_full, process.slow_s = False, 0.0
        self.note("calm", "the machine")
        await asyncio.sleep(_CALM_S)
        if self.program.queue:
            observer = self.machine.start()
            await observer.spawn(self._observe(observer))
        self.note("calm", "the machine", name="over")
        self._is_over = True

    async def _observe(self, process: Process) -> None:
        jet = process.open()
        queue = await jet.queue("shop", exclusive=self.program.exclusive, lease=LEASE_S)
        for number, job_id in self._ids.items():
            try:
                outcome = await queue.handle(job_id).outcome(timeout=_PATIENCE_S)
            except TimeoutError:
                self.note("stuck", process.name, number=number, id=job_id, value=(await queue.get(job_id)).state)
                continue
            result = bytes(outcome.result).decode() if outcome.state == "completed" else ""
            self.note(
                "outcome",
                process.name,
                number=number,
                id=job_id,
                attempt=outcome.attempt,
                name=outcome.state,
                value=result,
            )
        async for letter in queue.dead_letters():
            self.note("letter", process.name, id=letter.outcome.id)
        for number, flow_id in self._flows.items():
            try:
                info = await queue.flow(flow_id).outcome(timeout=_PATIENCE_S)
            except TimeoutError:
                self.note("stuck", process.name, number=number, id=flow_id, value="a flow")
                continue
            self.note("flow outcome", process.name, number=number, id=flow_id, name=info.state)


class Cast:
    """The jobs of one process: they do the moves that they are given, and write what they do to the history."""

    def __init__(self, stage: Stage, process: Process, queue: Queue) -> None:
        self._stage = stage
        self._process = process
        self._queue = queue

    def register(self) -> None:
        """Declare the jobs."""

        @self._queue.job(max_attempts=MAX_ATTEMPTS, backoff=_BACKOFF)
        async def wash(number: int, moves: list[list[Any]], context: JobContext) -> int:
            return await self._play("wash", number, moves, context)

        @self._queue.job(max_attempts=MAX_ATTEMPTS, backoff=_BACKOFF)
        async def paint(number: int, moves: list[list[Any]], context: JobContext) -> int:
            return await self._play("paint", number, moves, context)

    async def _play(self, name: str, number: int, moves: list[list[Any]], context: JobContext) -> int:
        def note(kind: NoteKind, **facts: Any) -> None:
            who = {"number": number, "id": context.id, "token": context.token, "attempt": context.attempt}
            self._stage.note(kind, self._process.name, **{**who, "key": context.key, "name": name, **facts})

        note("start")
        try:
            for move in moves:
                await self._move(move, context, note)
        except BaseException as error:
            note("lost" if context.lost else "end", value=type(error).__name__)
            raise
        note("lost" if context.lost else "end", value="returned")
        return number

    async def _move(self, move: list[Any], context: JobContext, note: Callable[..., None]) -> None:
        match move:
            case ["work", seconds]:
                await asyncio.sleep(seconds)
            case ["step", name, seconds]:

                async def draw() -> int:
                    value = self._process.random.getrandbits(40)
                    note("called", name=name, value=str(value))
                    await asyncio.sleep(seconds)
                    return value

                value = await context.step(name, draw)
                note("step", name=name, value=str(value))
            case ["nap", seconds]:
                note("napping", value=str(seconds))
                await context.sleep(seconds)
            case ["fail", attempts] if context.attempt <= attempts:
                raise ValueError("it fails")
            case ["retry", attempts] if context.attempt <= attempts:
                raise pelton.RetryJob(0.3, "again")
            case ["cancel"]:
                raise pelton.Cancel("not wanted")
            case ["discard"]:
                raise pelton.Discard("no use")
