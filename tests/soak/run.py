"""The soak: processes on one store, killed, paused and misled by their clocks; then everything is checked.

The stage manager acts after a number of reports of its actors, drawn from a seeded generator: it kills one (SIGKILL)
and starts another, pauses one (SIGSTOP) for a while, asks one to end and starts another, or counts the store again
beside all of them. At the end it drains the store with a clock far in the future, counts once more, and passes the
history to the checker.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pelton
from pelton.api.events import MaxDeliveries, decode_event
from pelton.engine.salvage import recount
from tests.kit.clocks import PassingClock, runtime_with
from tests.kit.deliveries import Ending, Step, check_deliveries
from tests.soak import cast, plan
from tests.soak.ending import FAR_S, drain, floors, lies
from tests.soak.record import Record, read
from tests.soak.troupe import Troupe
from tests.storage.processes import Child

_ROLES: Final = (cast.publisher, cast.publisher, cast.worker, cast.worker, cast.worker, cast.listener, cast.listener)
_TROUBLES: Final = 20


@dataclass
class Result:
    """The actions, and the findings."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        width = max(len(word) for word in self.counts)
        lines = [f"{word:<{width}} {count:>9,}" for word, count in self.counts.items()]
        return "\n".join([*lines, *self.problems, f"{len(self.problems)} contradictions"])


class Stage:
    """One soak on the store ``path``; ``folder`` takes its history."""

    def __init__(self, path: Path, folder: Path, seed: int) -> None:
        self._path = path
        self._folder = folder
        self._random = Random(seed)
        self._born = 0
        self.result = Result()
        self.counts = self.result.counts

    async def run(self, go_on: Callable[[int], bool]) -> Result:
        """Act while ``go_on`` is true for the number of actions so far; then drain, and check."""
        await plan.make_store(self._path)
        troupe = Troupe(self._start, _ROLES, self.counts)
        try:
            acts = 0
            while go_on(acts) and len(self.result.problems) < _TROUBLES:
                self._act(troupe)
                acts += 1
            troupe.finish()
        finally:
            troupe.close()
        self.result.problems += troupe.deaths
        self._recount()
        await self._drain()
        self._recount()
        await self._check()
        return self.result

    def _start(self, role: Any) -> Child:
        self._born += 1
        who = f"{role.__name__}{self._born}"
        return Child(role, self._path, self._folder, who, self._random.randrange(1 << 30))

    def _act(self, troupe: Troupe) -> None:
        troupe.hear(self._random.randrange(1, 60))
        actor = self._random.choice(troupe.actors)
        act = self._random.choice(("kill", "kill", "stop", "stop", "renew", "recount"))
        if act == "recount":
            self._recount()
        elif actor.sleeping:
            return
        elif act == "stop":
            troupe.stop(actor, self._random.randrange(1, 120))
        elif act == "kill":
            troupe.kill(actor)
        else:
            troupe.renew(actor)

    def _recount(self) -> None:
        self.counts["recounts"] += 1
        self.result.problems += recount(str(self._path))

    # --- at the end

    async def _drain(self) -> None:
        """Take and settle what is left, at a time when all held messages are due again."""
        clock = PassingClock()
        clock.let_pass(FAR_S)
        async with pelton.open(self._path, runtime=runtime_with(clock)) as jet:
            self.result.problems += await drain(jet, Record(self._folder, "drain"), clock, plan.CONSUMERS)

    async def _check(self) -> None:
        steps = list(read(self._folder))
        count_steps(self.counts, steps)
        async with pelton.open(self._path) as jet:
            ending = Ending(
                stored=await lies(jet, plan.STREAMS),
                floor=await floors(jet, plan.STREAMS),
                told=await _given_up(jet),
                settled_away={"work", "wanted"},
            )
        self.counts["given up"] = len(ending.told)
        found = check_deliveries(steps, plan.promises(), ending)
        stored = set(ending.stored["log"].values())
        self.result.problems += [f"{one.rule}: {one.where}: {one.text}" for one in found]
        self.result.problems += [
            f"settled: {step.name} is stored, its ack was refused"
            for step in steps
            if step.kind == "refused" and step.name in stored
        ]


def count_steps(counts: Counter[str], steps: list[Step]) -> None:
    """Count the actors' records."""
    for step in steps:
        counts[step.kind] += 1
    counts["redeliveries"] = sum(step.kind == "delivered" and step.n > 1 for step in steps)


async def _given_up(jet: pelton.Jet) -> list[tuple[str, str, int]]:
    told = []
    handle = await jet.stream("told")
    for seq in range(1, (await handle.info()).state.last_seq + 1):
        event = decode_event((await handle.get_message(seq)).data)
        assert isinstance(event, MaxDeliveries)
        told.append((event.stream, event.consumer, event.stream_seq))
    return told


def for_minutes(minutes: float) -> Callable[[int], bool]:
    """Continue for that many seconds."""
    end = time.monotonic() + minutes * 60
    return lambda acts: time.monotonic() < end
