"""Plays planted faults (``mutants.py``): each is to be found by a round of the proof, within a minute.

A mutant is a folder of links to ``src/pelton`` in which one file is changed; the processes of a round look for modules
there first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from tests.proof.mutants import MUTANTS, Mutant
from tests.proof.play import round_of

SOURCE: Final = Path("src/pelton")
WITHIN_S: Final = 60.0


class Hunt(msgspec.Struct, frozen=True):
    """What was found of a mutant, by which round (empty: nothing was found) and after how many seconds."""

    name: str
    by: str
    found: str
    seconds: float


def changed(mutant: Mutant) -> str:
    """Return the file of a mutant, as it is planted. Raises ValueError unless its text is there once."""
    source = (SOURCE / mutant.file).read_text()
    if (found := source.count(mutant.text)) != 1:
        raise ValueError(f"{mutant.name}: its text is {found} times in {mutant.file}")
    return source.replace(mutant.text, mutant.instead)


def plant(mutant: Mutant, folder: Path) -> Path:
    """Make a package in a folder that is Pelton with this fault; return what its processes need as PYTHONPATH."""
    source, target = SOURCE.resolve(), folder / SOURCE.name
    target.mkdir()
    *parents, _ = Path(mutant.file).parts
    for parent in (None, *parents):
        if parent is not None:
            source, target = source / parent, target / parent
            target.unlink()
            target.mkdir()
        for each in source.iterdir():
            if each.name != "__pycache__":
                (target / each.name).symlink_to(each)
    planted = folder / SOURCE.name / mutant.file
    planted.unlink()
    planted.write_text(changed(mutant))
    return folder


async def hunt(mutant: Mutant, seed: int, within_s: float) -> Hunt:
    """Play rounds against a mutant until one finds it, or the time is over."""
    begun, numbers = time.monotonic(), [_begun(judge) for judge in mutant.judges]
    with TemporaryDirectory(prefix="mutant-") as folder:
        env = {"PYTHONPATH": str(plant(mutant, Path(folder)))}
        for turn in count():
            for kind, first, stride in numbers:
                left = begun + within_s - time.monotonic()
                if left <= 0:
                    return Hunt(mutant.name, "", "", time.monotonic() - begun)
                name = f"{kind}:{first + stride * turn}"
                tried = await round_of(kind, first + stride * turn, seed, env, within_s=left, is_over="")
                if tried.violations:
                    return Hunt(mutant.name, name, tried.violations[0], time.monotonic() - begun)
    raise AssertionError("counting ends never")


def _begun(judge: str) -> tuple[str, int, int]:
    """Return the kind of a judge, the number of its first round, and the distance to the next one."""
    kind, _, number = judge.partition(":")
    first, _, stride = number.partition("+")
    return kind, int(first or 0), int(stride or 1)


async def hunts(named: Sequence[str], seed: int, within_s: float, lanes: int) -> list[Hunt]:
    """Play all mutants, or those whose names begin as given, ``lanes`` at a time; print what is found of each."""
    todo = [one for one in MUTANTS if not named or any(one.name.startswith(name) for name in named)]
    found = list[Hunt]()

    async def lane() -> None:
        while todo:
            one = await hunt(todo.pop(0), seed, within_s)
            found.append(one)
            print(f"{one.seconds:5.1f} s  {one.by or 'NOT FOUND':14} {one.name}: {one.found[:200]!r}", flush=True)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return found
