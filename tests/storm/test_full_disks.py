"""The disk becomes full in the middle of operations of every kind: they are refused, and nothing else fails.

A refusal is a StoreFullError, acknowledged data is stored, and once there is room everything continues. ``make storm``
fills disks hundreds of times; ``--storm-seed N`` uses another seed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Final

import pytest

import pelton
from tests.storm.disks import Disk, pretending_disk, small_disk
from tests.storm.operations import KINDS, Bench
from tests.storm.outcome import Attempt, contradictions, undelivered

_LANES: Final = 3
_OF_EACH_STORE: Final = 20
_SIZE: Final = 6000
_MOST_ROOM: Final = 200_000
_TRIES: Final = 60
_PATIENCE_S: Final = 0.5
_SOON_S: Final = 60.0
_PATIENT: Final = {"work_off", "hold", "hold_slot", "lead"}
"""Operations that wait for room, or for what those before them could not give back."""


class Filler:
    """Fills the disk of one store repeatedly."""

    def __init__(self, disk: Disk, bench: Bench) -> None:
        self.disk = disk
        self.bench = bench
        self.random = bench.random
        self.attempts: list[Attempt] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._is_full = False

    async def filling(self) -> None:
        """Fill the disk while operations run; then make room, and check that all of them continue."""
        await self.bench.stock()
        room = self.random.choice((0, self.random.randrange(_MOST_ROOM)))
        self._is_full = True
        self.disk.fill(room)
        await asyncio.gather(*(self._lane() for _ in range(_LANES)))
        self.disk.empty()
        self._is_full = False
        self.counts["fillings"] += 1
        await self.bench.stock()
        for kind in self.random.sample(list(KINDS), _LANES):
            await self._attempt(kind)

    async def _lane(self) -> None:
        kind = self.random.choice(list(KINDS))
        for _ in range(_TRIES):
            if len(self.bench.held) < 5 or len(self.bench.swept) < 5 or not self.bench.keys or not self.bench.objects:
                return
            if await self._attempt(kind):
                return

    async def _attempt(self, kind: str) -> bool:
        """Run an operation; return whether it was refused."""
        operation = self.bench.of(kind)
        patience = _PATIENCE_S if self._is_full and kind in _PATIENT else _SOON_S
        try:
            async with asyncio.timeout(patience):
                await operation.work()
        except pelton.StoreFullError as error:
            refused = True
            if not self._is_full:
                self.problems.append(f"{kind} was refused though there was room: {error!r}")
        except TimeoutError:
            refused = True
            if not self._is_full:
                self.problems.append(f"{kind} did not end within {patience:g} s")
        except Exception as error:
            refused = True
            if kind not in _PATIENT or not isinstance(error, pelton.LockLostError | pelton.TermLostError):
                self.problems.append(f"{kind} raised {error!r}")
        else:
            refused = False
        self.counts[f"{kind}, refused" if refused else kind] += 1
        self.attempts.append(Attempt(operation, acknowledged=not refused))
        return refused


@pytest.mark.parametrize("make", [pretending_disk, small_disk])
async def test_a_full_disk_refuses_and_loses_nothing(
    tmp_path: Path, make: Callable[[Path], AbstractContextManager[Disk]], pytestconfig: pytest.Config
) -> None:
    number, seed = (int(pytestconfig.getoption(f"--{option}")) for option in ("fillings", "storm-seed"))
    counts: Counter[str] = Counter()
    for begun in range(0, number // 2, _OF_EACH_STORE):
        random = Random(f"{seed}-{begun}")
        key = random.choice((None, b"a key"))
        with make(tmp_path / f"disk-{begun}") as disk:
            path = disk.folder / "a.pelton"
            async with disk.open(path, key=key) as jet:
                filler = Filler(disk, Bench(jet, random, size=_SIZE, ttl=1))
                await filler.bench.make()
                for _ in range(min(_OF_EACH_STORE, number // 2 - begun)):
                    await filler.filling()
                filler.problems += await contradictions(filler.bench, filler.attempts)
                filler.problems += await undelivered(filler.bench)
            filler.problems += pelton.verify(path, key)
        counts += filler.counts
        print(*filler.problems, sep="\n")
        assert filler.problems == [], f"--storm-seed {seed} --fillings {number}, store {begun}"
    print(*sorted(counts.items()), sep="\n")
    assert counts["fillings"] == number // 2
    assert sum(times for kind, times in counts.items() if "refused" in kind) > number // 2
