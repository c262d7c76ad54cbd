"""Plays simulations, seed by seed: ``python -m tests.simulation 0:1000``; what fails is made small, and kept.

It is added to ``kept.jsonl``: so it is a test from then on.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from tests.simulation.judge import judge
from tests.simulation.program import Program, drawn
from tests.simulation.shrink import broken_by, shrunk
from tests.simulation.stage import play

KEPT: Final = Path(__file__).with_name("kept.jsonl")


def main() -> int:
    """Play the programs of some seeds; the status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", metavar="FIRST:END", help="the seeds to play")
    parser.add_argument("--until-found", action="store_true", help="end with the first that breaks a promise")
    parser.add_argument("--as-it-is", action="store_true", help="do not make small what breaks a promise")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    steps, notes, failed, began = 0, 0, 0, time.process_time()
    for seed in range(first, end):
        program = drawn(seed)
        played = play(program)
        steps, notes = steps + played.steps, notes + len(played.history)
        if broken := judge(program, played.history):
            failed += 1
            print(f"seed {seed} breaks {broken[0].rule!r} at {broken[0].at:.3f}: {broken[0].text}", flush=True)
            if not options.as_it_is:
                _keep(_small(program, broken[0].rule))
            if options.until_found:
                break
    rate = steps / (time.process_time() - began) * 60
    print(f"{end - first} programs, {failed} fail; {steps:,} steps, {rate:,.0f} a minute, and {notes:,} notes")
    return failed > 0


def _keep(program: Program) -> None:
    line = msgspec.json.encode(program)
    print(line.decode(), flush=True)
    with KEPT.open("ab") as kept:
        kept.write(line + b"\n")


def _small(program: Program, rule: str) -> Program:
    small = shrunk(program, lambda smaller: any(one.rule == rule for one in broken_by(smaller)))
    return replace(small, why=next(one.text for one in broken_by(small) if one.rule == rule))


if __name__ == "__main__":
    sys.exit(main())
