"""`python -m benchmarks.growth`: what each verb costs as a store grows, and with which exponent.

A full run (`--full`) writes `benchmarks/results/growth.md`; the default, with smaller stores, and one of some kinds
(`--only`) write below `build/`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from math import log
from pathlib import Path

from benchmarks.case import UNSYNCED, Case, Contender, Run
from benchmarks.facts import machine_facts
from benchmarks.runner import Outcome, run_case
from benchmarks.stats import middle
from benchmarks.table import facts_section, number, table

ROOT = Path(__file__).resolve().parent.parent
_MANY = ("messages", "subjects", "keys", "jobs")
_FEW = ("queues", "consumers")
_LIMIT = 3_600.0


def sizes(kind: str, full: bool) -> tuple[int, ...]:
    """Return how many of a kind the stores hold."""
    if kind in _MANY:
        return (10_000, 1_000_000) if full else (10_000, 100_000)
    return (10, 100, 10_000) if full else (10, 100, 1_000)


def case_of(kind: str, counts: tuple[int, ...]) -> Case:
    """Return the case of a kind: its contenders are the sizes, and its metrics all that is measured."""
    contenders = [
        Contender(f"{count:,}", "ours.grown:measure", UNSYNCED, {"kind": kind, "count": count}) for count in counts
    ]
    return Case(kind, f"By {kind}", "", (), tuple(contenders), limit=_LIMIT)


def exponent(first: float | None, last: float | None, times: float) -> str:
    """Return the exponent with which a cost grows if there is so many times as much."""
    return "-" if not first or not last or first <= 0 or last <= 0 else f"{log(last / first) / log(times):.2f}"


def section(outcome: Outcome) -> str:
    """Return the table of one kind: what each verb costs at each size."""
    contenders = outcome.case.contenders
    counts = [contender.options["count"] for contender in contenders]
    verbs = list(outcome.rounds[contenders[0].name])
    rows = []
    for verb in verbs:
        costs = [middle(outcome.rounds.get(each.name, {}).get(verb, [])) for each in contenders]
        unit = "MB" if verb.startswith("memory") else "ms"
        told = [number(each, 2 if each is not None and each < 10 else 1) for each in costs]
        rows.append([f"{verb} ({unit})", *told, exponent(costs[0], costs[-1], counts[-1] / counts[0])])
    parts = [f"## {outcome.case.title}", table(["verb", *(f"{count:,}" for count in counts), "exponent"], rows)]
    parts += [f"Not measured: {who}: {why}" for who, why in sorted(outcome.failures.items())]
    return "\n\n".join(parts)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="What grows with the store.")
    parser.add_argument("--only", action="append", metavar="KIND", choices=[*_MANY, *_FEW])
    parser.add_argument("--full", action="store_true", help="a million messages, 10,000 queues: an hour")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="path of the report")
    asked = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    facts = machine_facts(build)
    sections = []
    for kind in asked.only or [*_MANY, *_FEW]:
        shared = Path(tempfile.mkdtemp(prefix=f"growth-{kind}-", dir=build))
        run = Run(shared, shared, seconds=0, drain=0, samples=0, big=0)
        outcome = run_case(case_of(kind, sizes(kind, asked.full)), asked.rounds, run, _say)
        sections.append(section(outcome))
    words = f"`python -m benchmarks.growth{' --full' if asked.full else ''}`: CPU time of the process, medians."
    text = "\n\n".join(["# What grows with the store", words, *sections, "## Machine", facts_section(facts)])
    whole = asked.full and asked.only is None
    path = asked.out or (ROOT / "benchmarks/results/growth.md" if whole else build / "benchmarks/growth.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    print("\n\n".join(sections))
    _say(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
