"""`python -m benchmarks`: run the cases, write JSON and Markdown, print targets and measurements.

A full run writes `benchmarks/results/core.*`. A partial one (`--only`, `--quick`) writes to `build/`,
so that the committed table only has figures of one run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.case import Case, Run
from benchmarks.cases import CASES
from benchmarks.facts import machine_facts
from benchmarks.record import write
from benchmarks.runner import Outcome, run_case
from benchmarks.table import summary, titles

ROOT = Path(__file__).resolve().parent.parent


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Pelton beside its peers.")
    parser.add_argument("--only", action="append", metavar="CASE", choices=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each case (5; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="short measurements, a store of 200,000")
    parser.add_argument("--out", type=Path, default=None, help="path of the report without its suffix")
    parser.add_argument("--workdir", type=Path, default=ROOT / "build", help="where the stores are put")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser.parse_args(argv)


def run_of(quick: bool, shared: Path) -> Run:
    """Return the durations and amounts of a quick run or a full one."""
    if quick:
        return Run(shared, shared, seconds=0.5, drain=5_120, samples=40, big=200_000)
    return Run(shared, shared, seconds=1.5, drain=20_480, samples=200, big=5_000_000)


def chosen(only: list[str] | None) -> list[Case]:
    return [case for case in CASES if only is None or case.name in only]


def run_all(cases: list[Case], rounds: int, quick: bool, workdir: Path) -> list[Outcome]:
    outcomes = []
    for case in cases:
        _say(f"{case.name}: {case.title}")
        shared = Path(tempfile.mkdtemp(prefix=f"bench-{case.name}-", dir=workdir))
        outcomes.append(run_case(case, rounds, run_of(quick, shared), _say))
    return outcomes


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.list:
        print(titles(CASES))
        return 0
    asked.workdir.mkdir(parents=True, exist_ok=True)
    rounds = asked.rounds or (2 if asked.quick else 5)
    facts = machine_facts(asked.workdir)
    outcomes = run_all(chosen(asked.only), rounds, asked.quick, asked.workdir)
    whole = not asked.quick and asked.only is None
    stem = asked.out or (ROOT / "benchmarks/results/core" if whole else ROOT / "build/benchmarks/partial")
    written = write(stem, outcomes, facts, setting(rounds, asked.quick))
    print(summary(outcomes))
    _say(f"written: {', '.join(str(path) for path in written)}")
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def setting(rounds: int, quick: bool) -> str:
    """Return one line on how the figures were measured."""
    kind = "short measurements (`--quick`)" if quick else "whole measurements"
    return (
        f"`python -m benchmarks`: {rounds} rounds, {kind}, contenders in turn, 128-byte payloads, "
        "each measurement in a fresh process and directory on the same disk."
    )


if __name__ == "__main__":
    sys.exit(main())
