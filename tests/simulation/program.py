"""What a simulation plays: a program is plain data, drawn from a seed, and can be cut down and kept.

An act happens at a time, in the process of a slot, or befalls it. The moves of a job are what its function does. Jobs
are told apart by their numbers, which the program gives, never by what the queue says of them.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final, Literal

import msgspec

LEASE_S: Final = 2.0
MAX_ATTEMPTS: Final = 5
KEYS: Final = ("a", "b")
_SECONDS: Final = 25.0
Kind = Literal[
    "enqueue", "cancel", "flow", "schedule", "limit", "kill", "stop", "full", "slow", "clock", "machine clock"
]  # fmt: skip
FAULTS: Final[frozenset[Kind]] = frozenset(("kill", "stop", "full", "slow", "clock", "machine clock"))


class FlowPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job of a flow, which comes after others."""

    number: int
    moves: list[list[Any]] = []
    after: list[int] = []


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that happens ``at`` some seconds, in the process at a ``slot``.

    ``seconds``: how long a fault lasts, by how much a clock is set, or how often a schedule is due.
    """

    at: float
    kind: Kind
    slot: int = 0
    number: int = 0
    job: str = ""
    moves: list[list[Any]] = []
    options: dict[str, Any] = {}
    parts: list[FlowPart] = []
    seconds: float = 0.0


class Program(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Some processes, and what happens to them. ``why``: what it once broke, for one that is kept."""

    seed: int
    processes: int = 3
    exclusive: bool = False
    queue: bool = True
    locks: bool = False
    election: bool = False
    acts: list[Act] = []
    why: str = ""


def drawn(seed: int) -> Program:
    """Return the program of a seed."""
    return _Draw(seed).program()


class _Draw:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = Random(f"program {seed}")
        self._numbers = 0
        self._acts: list[Act] = []
        self._enqueued: list[int] = []

    def program(self) -> Program:
        chance = self._chance
        queue = chance.random() < 0.85
        locks = not queue or chance.random() < 0.1
        self._exclusive = chance.random() < 0.4
        self._size = chance.choice((1, 2, 3, 3))
        if queue:
            self._limits()
            weights = {self._enqueue: 20.0, self._cancel: chance.choice((0, 2)), self._flow: chance.choice((0, 0, 2))}
            for _ in range(chance.randrange(5, 45)):
                [act] = chance.choices(list(weights), list(weights.values()))
                act()
            if chance.random() < 0.2:
                self._schedule()
        self._faults()
        return Program(
            seed=self._seed,
            processes=self._size,
            exclusive=self._exclusive,
            queue=queue,
            locks=locks,
            election=not queue and chance.random() < 0.7,
            acts=sorted(self._acts, key=lambda act: act.at),
        )

    def _add(self, kind: Kind, **fields: Any) -> None:
        at, slot = round(self._chance.uniform(1.0, _SECONDS), 3), self._chance.randrange(self._size)
        self._acts.append(Act(**{"at": at, "kind": kind, "slot": slot, **fields}))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- what programs ask for

    def _moves(self) -> list[list[Any]]:
        chance, moves = self._chance, list[list[Any]]()
        for place in range(chance.choice((0, 1, 1, 2, 3))):
            match chance.choices(("work", "step", "nap"), (5, 3, 1))[0]:
                case "work":
                    moves.append(["work", chance.choice((0.0, 0.0, 0.1, 0.1, 0.5, 0.5, 3.0, 3.0, 9.0))])
                case "step":
                    moves.append(["step", f"s{place}", chance.choice((0.0, 0.4))])
                case "nap":
                    moves.append(["nap", chance.choice((0.2, 1.5, 3.0))])
        if chance.random() < 0.25:
            moves.append([chance.choice(("fail", "fail", "retry")), chance.choice((1, 1, 2, 9))])
        elif chance.random() < 0.05:
            moves.append([chance.choice(("cancel", "discard"))])
        return moves

    def _enqueue(self) -> None:
        chance, options = self._chance, dict[str, Any]()
        if self._exclusive or chance.random() < 0.3:
            options["key"] = chance.choice(KEYS)
        if chance.random() < 0.1:
            options["delay"] = chance.choice((0.3, 2.0))
        if chance.random() < 0.15:
            options["priority"] = chance.randrange(1, 4)
        if chance.random() < 0.2 and not self._exclusive:
            options["tenant"] = chance.choice(("t", "u"))
        if chance.random() < 0.2:
            options["unique"] = chance.choice(("x", "y"))
        number = self._number()
        self._enqueued.append(number)
        job = chance.choice(("wash", "wash", "paint"))
        self._add("enqueue", number=number, job=job, moves=self._moves(), options=options)

    def _cancel(self) -> None:
        if self._enqueued:
            self._add("cancel", number=self._chance.choice(self._enqueued))

    def _cancel_before_it_is_given_again(self, at: float) -> None:
        """Cancel jobs that a process may have held at ``at``, when it was lost, and has a lease of."""
        for act in [act for act in self._acts if act.kind == "enqueue" and at - 5.0 < act.at < at]:
            if self._chance.random() < 0.3:
                self._add("cancel", number=act.number, at=round(at + self._chance.uniform(0.05, 1.5), 3))

    def _flow(self) -> None:
        chance, parts = self._chance, list[FlowPart]()
        for place in range(chance.randrange(2, 5)):
            after = sorted(chance.sample(range(place), chance.randrange(min(place, 2) + 1)))
            parts.append(FlowPart(self._number(), self._moves(), after))
        self._add("flow", number=self._number(), parts=parts)

    def _schedule(self) -> None:
        self._add("schedule", number=self._number(), seconds=self._chance.choice((2.0, 3.0)))

    def _limits(self) -> None:
        if self._chance.random() < 0.4:
            options: dict[str, Any] = {"concurrency": self._chance.choice((1, 2))}
            if self._chance.random() < 0.5:
                options["job"] = "wash"
            if self._chance.random() < 0.3:
                options["per_key"] = True
            self._add("limit", at=0.7, options=options)

    # --- what befalls them

    def _faults(self) -> None:
        chance = self._chance
        weights: dict[Kind, int] = {"kill": 4, "stop": 4, "full": 1, "slow": 2, "machine clock": 1, "clock": 1}
        # Of some kinds none, so that what one of them hides is seen.
        kinds = [kind for kind in weights if chance.random() < 0.5]
        for _ in range(chance.choice((0, 1, 3, 6, 12)) if kinds else 0):
            [kind] = chance.choices(kinds, [weights[kind] for kind in kinds])
            match kind:
                case "kill":
                    self._add("kill", seconds=chance.choice((0.01, 0.5, 4.0)))
                case "stop":
                    self._add("stop", seconds=chance.choice((0.3, 1.0, 2.5, 6.0)))
                case "full":
                    self._add("full", seconds=chance.choice((0.1, 1.0, 5.0)))
                case "slow":
                    self._add("slow", seconds=chance.choice((0.5, 3.0)))
                case _:
                    self._add(kind, seconds=chance.choice((-3600.0, -3.0, 3.0, 3600.0)))
            if kind in ("kill", "stop"):
                self._cancel_before_it_is_given_again(self._acts[-1].at)
