"""Ten thousand faults: ``make proof HOURS=8``, with its record in benchmarks/results/proof.json.

Rounds of every kind run side by side, three on two cores, each in a process and a folder of its own. The next one is
always of the kind that is furthest from what it is to reach (``rounds.py``: in half an hour, or in proportion). A proof
that was interrupted goes on, as long as code and seed are the same. ``python -m tests.proof KIND:NUMBER`` plays a round
again, and ``--mutants`` plays rounds on code with planted faults.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from tests.proof.page import PAGE, record_at, write_page
from tests.proof.play import round_of
from tests.proof.record import RECORD, ProofRecord, code_here
from tests.proof.rounds import ROUNDS, played
from tests.proof.sabotage import WITHIN_S, hunts

_HOURS: Final = 8.0
# How long a full proof takes.
_FULL_HOURS: Final = 0.5
# Rounds wait for disks, leases and networks.
_LANES_A_CORE: Final = 1.5


def main() -> int:
    """Play rounds, or one of them; the status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", nargs="*", metavar="KIND:NUMBER", help="rounds to play, instead of many")
    parser.add_argument("--hours", type=float, default=_HOURS, help="for how long (8); all targets are in proportion")
    parser.add_argument("--seed", type=int, default=1, help="which rounds (1)")
    parser.add_argument("--record", type=Path, default=RECORD, help=f"where the record is ({RECORD})")
    parser.add_argument("--page", action="store_true", help=f"write the figures of the record to {PAGE}, instead")
    parser.add_argument("--mutants", action="store_true", help="play planted faults, all or those named so, instead")
    parser.add_argument(
        "--within", type=float, default=WITHIN_S, help="in how many seconds a mutant is to be found (60)"
    )
    parser.add_argument("--lanes", type=int, default=0, help="how many rounds are played at a time (by the cores)")
    parser.add_argument("--as-json", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.page:
        write_page(record_at(given.record))
        return 0
    if given.mutants:
        return _hunt(given.record, given.seed, given.rounds, given.within, given.lanes)
    if not given.rounds:
        return asyncio.run(Proof(given.record, given.seed, given.hours).run(given.lanes))
    status = 0
    for named in given.rounds:
        kind, _, number = named.partition(":")
        with TemporaryDirectory(prefix=f"proof-{kind}-") as folder:
            tried = asyncio.run(played(kind, int(number), given.seed, Path(folder)))
        print(msgspec.json.encode(tried).decode() if given.as_json else tried, flush=True)
        status |= bool(tried.violations)
    return status


def _hunt(path: Path, seed: int, named: list[str], within_s: float, lanes: int) -> int:
    hunted = asyncio.run(hunts(named, seed, within_s, lanes or os.cpu_count() or 1))
    missed = [one.name for one in hunted if not one.found]
    print(f"{len(hunted) - len(missed)} of {len(hunted)} found; not found: {', '.join(missed) or 'none'}")
    if not named:
        record = ProofRecord.of(path, _commit(), code_here(), seed)
        record.mutants = {"planted": len(hunted), "found": len(hunted) - len(missed)}
        record.save(path)
        if path == RECORD:
            write_page(record)
    return 1 if missed else 0


class Proof:
    """A run of rounds, for some hours."""

    def __init__(self, path: Path, seed: int, hours: float) -> None:
        self._path = path
        self._share = hours / _FULL_HOURS
        self._record = ProofRecord.of(path, _commit(), code_here(), seed)
        self._before = self._record.seconds
        self._begun = time.monotonic()
        self._end = self._begun + hours * 3600 - self._before
        self._next = dict(self._record.rounds)
        self._playing = dict.fromkeys(ROUNDS, 0)

    async def run(self, lanes: int) -> int:
        """Play until the time is over; return the status."""
        lanes = lanes or ceil((os.cpu_count() or 1) * _LANES_A_CORE)
        await asyncio.gather(*(self._lane() for _ in range(lanes)))
        record = self._record
        if self._path == RECORD:
            write_page(record)
        print(self._report())
        return 1 if record.violations else 0

    async def _lane(self) -> None:
        while time.monotonic() < self._end:
            await self._round(max(ROUNDS, key=self._missing))
            self._record.seconds = self._before + time.monotonic() - self._begun
            self._record.save(self._path)

    def _missing(self, kind: str) -> float:
        """Return how far a kind is from what it is to reach by the end, at most 1; more is begun first."""
        asked = max(ROUNDS[kind].asked * self._share, 1)
        return 1 - (self._reached(kind) + self._expected(kind)) / asked

    def _reached(self, kind: str) -> float:
        of, record = ROUNDS[kind].of, self._record
        counts = {
            "programs": record.programs,
            "inputs": record.inputs,
            "models": record.models,
            "": record.rounds.get(kind, 0),
        }
        return counts[of] if of in counts else record.faults.get(of, 0)

    def _expected(self, kind: str) -> float:
        """Return what the rounds that are under way will add, as those before them did."""
        done = self._record.rounds.get(kind, 0)
        each = self._reached(kind) / done if done else ROUNDS[kind].asked * self._share
        return self._playing[kind] * each

    async def _round(self, kind: str) -> None:
        number = self._next[kind] = self._next.get(kind, -1) + 1
        self._playing[kind] += 1
        begun = time.monotonic()
        tried = await round_of(kind, number, self._record.seed)
        self._playing[kind] -= 1
        self._record.add(kind, number, tried)
        took = time.monotonic() - begun
        print(f"{kind}:{number} {took:.1f} s {tried.faults} {' '.join(tried.violations)[:2000]}", flush=True)

    def _report(self) -> str:
        record = self._record
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(record.faults.items()))
        played = f"{record.programs:,} programs, {record.models:,} models, {record.inputs:,} inputs"
        return (
            f"{record.seconds:,.0f} s at {record.commit}: {counts}; {played}, {record.operations:,} operations; "
            f"{len(record.violations)} violations"
        )


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
