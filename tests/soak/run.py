"""The soak: processes on one store, killed, paused and led astray by their clocks; then everything is checked.

The stage manager acts after a number of words of its actors, drawn from a seeded generator: it kills one (SIGKILL) and
starts another, lets one stand still (SIGSTOP) for a while, asks one to go and starts another, or counts the store again
beside all of them. At the end it drains the store with a clock far in the future, counts once more, and hands the
history to the checker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any, Final

import pelton
from pelton.api import AckOp, Delivered
from pelton.api.events import MaxDeliveries, decode_event
from pelton.testing import recount
from pelton.testing.deliveries import Ending, Step, check_deliveries
from tests.crash.roles import name_of
from tests.soak import cast, plan
from tests.soak.record import Record, machine_ns, read
from tests.storage.processes import Child

_ROLES: Final = (cast.publisher, cast.publisher, cast.worker, cast.worker, cast.worker, cast.listener, cast.listener)
_SILENT_S: Final = 1.0
_FAR_NS: Final = 60 * 10**9
_PUSHED_WITHIN_S: Final = 20.0
_TROUBLES: Final = 20


@dataclass
class Result:
    """What a soak did, and what it found."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        width = max(len(word) for word in self.counts)
        lines = [f"{word:<{width}} {count:>9,}" for word, count in self.counts.items()]
        return "\n".join([*lines, *self.problems, f"{len(self.problems)} contradictions"])


@dataclass
class _Actor:
    role: Any
    child: Child
    sleeping: bool = False
    wake_after: int = 0


class Stage:
    """One soak on the store ``path``; ``folder`` takes its history."""

    def __init__(self, path: Path, folder: Path, seed: int) -> None:
        self._path = path
        self._folder = folder
        self._random = Random(seed)
        self._actors: list[_Actor] = []
        self._born = 0
        self.result = Result()
        self.counts = self.result.counts

    async def run(self, go_on: Callable[[int], bool]) -> Result:
        """Act while ``go_on`` says so of the number of acts so far; then drain, and check."""
        await plan.make_store(self._path)
        try:
            self._actors = [self._start(role) for role in _ROLES]
            acts = 0
            while go_on(acts) and len(self.result.problems) < _TROUBLES:
                self._act()
                acts += 1
            self._finish()
        finally:
            for actor in self._actors:
                actor.child.kill()
        self._recount()
        await self._drain()
        self._recount()
        await self._check()
        return self.result

    # --- while it runs

    def _start(self, role: Any) -> _Actor:
        self._born += 1
        who = f"{role.__name__}{self._born}"
        return _Actor(role, Child(role, self._path, self._folder, who, self._random.randrange(1 << 30)))

    def _act(self) -> None:
        self._hear(self._random.randrange(1, 60))
        place = self._random.randrange(len(self._actors))
        actor = self._actors[place]
        act = self._random.choice(("kill", "kill", "pause", "pause", "leave", "recount"))
        if act == "recount":
            self._recount()
        elif actor.sleeping:
            return
        elif act == "pause":
            self.counts["pauses"] += 1
            os.kill(actor.child.process.pid or 0, signal.SIGSTOP)
            actor.sleeping, actor.wake_after = True, self._random.randrange(1, 120)
        elif act == "kill":
            self.counts["kills"] += 1
            actor.child.kill()
            self._actors[place] = self._start(actor.role)
        else:
            self.counts["departures"] += 1
            self._leave(actor)
            self._actors[place] = self._start(actor.role)

    def _hear(self, words: int) -> None:
        """Wait for words of the actors; whoever stands still goes on after some of the others'."""
        while words > 0:
            pipes = {actor.child.pipe: actor for actor in self._actors if not actor.sleeping}
            ready = wait(list(pipes), _SILENT_S)
            for pipe in ready:
                self._word(pipes[pipe].child)  # type: ignore[index]  # what is ready is one of the pipes
            words -= len(ready) or 1
            for actor in self._actors:
                actor.wake_after -= len(ready) or 60
                if actor.wake_after <= 0:
                    self._wake(actor)

    def _wake(self, actor: _Actor) -> None:
        if not actor.sleeping:
            return
        actor.sleeping, actor.wake_after = False, 0
        os.kill(actor.child.process.pid or 0, signal.SIGCONT)

    def _word(self, child: Child) -> str:
        word: str = child.hear()
        if word == "clock":
            self.counts["clock steps"] += 1
        return word

    def _leave(self, actor: _Actor) -> None:
        # Who stands still may hold the lock that the other waits for.
        for other in self._actors:
            self._wake(other)
        actor.child.say("go")
        while self._word(actor.child) != "closed":
            pass
        actor.child.join()

    def _finish(self) -> None:
        for actor in self._actors:
            self._leave(actor)

    def _recount(self) -> None:
        self.counts["recounts"] += 1
        self.result.problems += recount(str(self._path))

    # --- at the end

    async def _drain(self) -> None:
        """Take and settle what is left, at a time when all that is held is due again."""
        record = Record(self._folder, "drain")
        clock = cast.SteppedClock(_FAR_NS)
        async with pelton.open(self._path, runtime=cast.stepped_runtime(clock)) as jet:
            for (stream, name), fields in plan.CONSUMERS.items():
                drain = _Drain(jet, record, clock, await (await jet.stream(stream)).consumer(name))
                left = await drain.run(pushed="deliver_subject" in fields)
                if left:
                    self.result.problems.append(f"consumer {stream}/{name}: {left} are left and do not come")

    async def _check(self) -> None:
        steps = list(read(self._folder))
        for step in steps:
            self.counts[step.kind] += 1
        self.counts["redeliveries"] = sum(step.kind == "delivered" and step.n > 1 for step in steps)
        async with pelton.open(self._path) as jet:
            ending = await _ending(jet)
        self.counts["given up"] = len(ending.told)
        found = check_deliveries(steps, plan.promises(), ending)
        stored = set(ending.stored["log"].values())
        self.result.problems += [f"{one.rule}: {one.where}: {one.text}" for one in found]
        self.result.problems += [
            f"settled: {step.name} is stored, its ack was refused"
            for step in steps
            if step.kind == "refused" and step.name in stored
        ]


class _Drain:
    """Takes all that one consumer has left."""

    def __init__(self, jet: pelton.Jet, record: Record, clock: cast.SteppedClock, consumer: pelton.Consumer) -> None:
        self._jet = jet
        self._record = record
        self._clock = clock
        self._consumer = consumer

    async def run(self, *, pushed: bool) -> int:
        """Return how many messages are left that do not come."""
        silent = 0
        if pushed:
            return await self._listen()
        while silent < 3:
            began = machine_ns()
            silent = 0 if await self._settle(await self._pull(), began) else silent + 1
            self._clock.offset_ns += 20 * 10**9
        return await self._left()

    async def _left(self) -> int:
        info = await self._consumer.info()
        return info.num_pending + info.num_ack_pending

    async def _pull(self) -> list[Delivered]:
        c = self._consumer
        found = await c.fetch(500, no_wait=True, group="g" if c.config.priority_groups else "")
        return [message.delivered for message in found]

    async def _listen(self) -> int:
        messages = self._consumer.messages(prefetch=500)
        try:
            with suppress(TimeoutError):
                while await self._left():
                    async with asyncio.timeout(_PUSHED_WITHIN_S):
                        message = await anext(messages)
                    await self._settle([message.delivered], 0)
        finally:
            await messages.aclose()
        return await self._left()

    async def _settle(self, found: list[Delivered], began: int) -> int:
        if not found:
            return 0
        record, c = self._record, self._consumer
        record.note(*(record.of("delivered", d, name=name_of(d.data), began=began) for d in found))
        if c.config.ack_policy == "none":
            return len(found)
        acked = found[-1:] if c.config.ack_policy == "all" else found
        record.note(*(record.of("settling", d, how="ack") for d in acked))
        ops = [AckOp(seq=d.seq, consumer_seq=d.consumer_seq) for d in acked]
        answers = await self._jet.backend.ack(c.stream_name, c.name, ops)
        done = zip(acked, answers, strict=True)
        record.note(*(record.of("refused" if answer else "settled", d, how="ack") for d, answer in done))
        return len(found)


async def _ending(jet: pelton.Jet) -> Ending:
    stored: dict[str, dict[int, str]] = {}
    floor: dict[str, int] = {}
    for name in plan.STREAMS:
        handle = await jet.stream(name)
        state = (await handle.info(deleted_details=True)).state
        there = sorted({*range(state.first_seq, state.last_seq + 1)} - {*state.deleted})
        stored[name] = {seq: name_of((await handle.get_message(seq)).data) for seq in there}
        if "max_msgs" in plan.STREAMS[name]:
            floor[name] = max(state.last_seq - plan.BOUND + 1, 1)
    told = []
    handle = await jet.stream("told")
    for seq in range(1, (await handle.info()).state.last_seq + 1):
        event = decode_event((await handle.get_message(seq)).data)
        assert isinstance(event, MaxDeliveries)
        told.append((event.stream, event.consumer, event.stream_seq))
    return Ending(stored=stored, floor=floor, told=told, settled_away={"work", "wanted"})


def for_minutes(minutes: float) -> Callable[[int], bool]:
    """Go on for so long."""
    end = time.monotonic() + minutes * 60
    return lambda acts: time.monotonic() < end


__all__ = ["Result", "Stage", "Step", "for_minutes"]
