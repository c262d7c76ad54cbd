"""The kinds of rounds of a proof: each is short, begins anew from its number, and says what it tried and what it found.

To add one, write ``async def NAME(folder, seed) -> Tried`` in a module of its own, and a line here.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.proof.record import Tried


class Round(NamedTuple):
    """A kind of round: the module of its function, and in which count it is to reach how much in a full proof.

    ``of`` is a kind of fault, ``programs``, ``inputs`` or ``models``; empty: the rounds themselves.
    """

    module: str
    asked: int
    of: str = ""


# A full proof takes half an hour on two cores. It asks for a fifth more kills, power losses, programs, inputs than it
# has to reach, and of the others for a sixteenth of what eight hours have to reach, and more. In seconds of a core, a
# round of programs takes 40, a storm 28, inputs 21, a simulation or power 15, jobs 9, networks 7, and all others less.
ROUNDS: Final[dict[str, Round]] = {
    "kills": Round("faults", 2_400, "kill"),
    "power": Round("faults", 2_400, "power"),
    "programs": Round("servers", 24_000, "programs"),
    "inputs": Round("servers", 1_200_000, "inputs"),
    "storm": Round("faults", 150, "stop"),
    "disks": Round("faults", 200, "disk"),
    "networks": Round("servers", 120, "network"),
    "rekeys": Round("faults", 100, "rekey"),
    "migrations": Round("faults", 300, "migration"),
    "cancelled": Round("faults", 10_000, "cancellation"),
    "histories": Round("faults", 30),
    "locks": Round("models", 30),
    "elections": Round("models", 30),
    "keys": Round("models", 20),
    "models": Round("models", 22),
    "jobs": Round("models", 12),
    "limits": Round("models", 16),
    "tokens": Round("models", 20),
    "simulation": Round("models", 18),
    "damage": Round("models", 2_000, "flip"),
}


async def played(kind: str, number: int, seed: int, folder: Path) -> Tried:
    """Play one round; what it raises is a violation as well."""
    # Only what it needs: most rounds take seconds.
    play: Any = getattr(import_module(f"tests.proof.{ROUNDS[kind].module}"), kind)
    try:
        tried: Tried = await play(folder, seed * 1_000_000 + number)
    except Exception as error:
        return Tried(violations=[f"{type(error).__name__}: {error}"])
    return tried
