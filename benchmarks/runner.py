"""Rounds: every contender of a case in turn, each in a fresh process and directory, then the next round.

A contender that fails is a line in the report and never ends the run: its figure is None for that
round and the reason is kept. A process that exceeds its time is killed with everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.case import Case, Contender, Run, Sample
from benchmarks.child import Request

Progress = Callable[[str], None]
_PREPARE_LIMIT = 1_800.0


@dataclass
class Outcome:
    """The rounds of one case: contender -> metric -> figures, and why any is missing."""

    case: Case
    rounds: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    """The machine's load average of a minute before each round; what the benchmark itself ran counts too."""

    def add(self, contender: str, sample: Mapping[str, float] | None) -> None:
        figures = self.rounds.setdefault(contender, {})
        for key in [metric.key for metric in self.case.metrics] or list(sample or figures):
            figures.setdefault(key, []).append(None if sample is None else sample.get(key))


class MeasurementError(Exception):
    """The measuring process failed; the text is its last line of output."""


def run_case(case: Case, rounds: int, run: Run, say: Progress) -> Outcome:
    """Run a case; `run.shared` is its own directory and is removed at the end."""
    outcome = Outcome(case)
    try:
        if case.prepare is not None:
            _prepare(case.prepare, run, say)
        for number in range(1, rounds + 1):
            outcome.loads.append(round(os.getloadavg()[0], 2))
            _round(outcome, number, run, say)
    except MeasurementError as failure:
        outcome.failures["(preparation)"] = str(failure)
    finally:
        shutil.rmtree(run.shared, ignore_errors=True)
    return outcome


def _prepare(target: str, run: Run, say: Progress) -> None:
    say(f"  preparing ({target})")
    _measure(Request(target, {}, run), _PREPARE_LIMIT)


def _round(outcome: Outcome, number: int, run: Run, say: Progress) -> None:
    for contender in outcome.case.contenders:
        sample = _turn(outcome, contender, run)
        outcome.add(contender.name, sample)
        told = outcome.failures[contender.name] if sample is None else _told(sample)
        say(f"  round {number}  {contender.name:<34} {told}")


def _turn(outcome: Outcome, contender: Contender, run: Run) -> Sample | None:
    try:
        return _measure(Request(contender.target, dict(contender.options), run), outcome.case.limit)
    except MeasurementError as failure:
        outcome.failures[contender.name] = str(failure)
        return None


def _told(sample: Sample) -> str:
    return "  ".join(f"{key} {figure:,.4g}" for key, figure in sample.items())


def _measure(request: Request, limit: float) -> Sample:
    """Run one measurement in its own process and directory; raises MeasurementError with the reason."""
    workdir = request.run.shared / "turn"
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    request = replace(request, run=replace(request.run, workdir=workdir))
    try:
        return _read(*_call(request, limit))
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


def _call(request: Request, limit: float) -> tuple[int, str, str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(request.encode(), timeout=limit)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"not done within {limit:g} s") from None
    finally:
        _end_session(child)
    return child.returncode, out, err


def _end_session(child: subprocess.Popen[str]) -> None:
    """Kill everything that the measurement left running (it has its own session)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(code: int, out: str, err: str) -> Sample:
    if code != 0:
        lines = err.strip().splitlines()
        raise MeasurementError(lines[-1] if lines else f"ended with code {code}")
    sample: Sample = json.loads(out.strip().splitlines()[-1])
    return sample
