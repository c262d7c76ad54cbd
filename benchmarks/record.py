"""The JSON of a report, and writing both files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.asks import figures
from benchmarks.case import Contender
from benchmarks.facts import Facts
from benchmarks.runner import Outcome
from benchmarks.stats import middle
from benchmarks.table import report


def as_data(outcomes: Sequence[Outcome], facts: Facts, setting: str) -> dict[str, Any]:
    """Return the report as plain data, with the figures of every round."""
    return {"setting": setting, "machine": facts, "cases": [_case(outcome) for outcome in outcomes]}


def _case(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "name": case.name,
        "title": case.title,
        "how": case.how,
        "contenders": [_contender(outcome, contender) for contender in case.contenders],
        "asks": [asdict(ask.judge(outcome.rounds)) for ask in case.asks],
        "failures": outcome.failures,
        "loads": outcome.loads,
    }


def _contender(outcome: Outcome, contender: Contender) -> dict[str, Any]:
    metrics = {}
    for metric in outcome.case.metrics:
        own = figures(outcome.rounds, contender.name, metric.key)
        metrics[metric.key] = {"unit": metric.unit, "median": middle(own), "rounds": list(own)}
    return {"name": contender.name, "guarantee": contender.guarantee, "metrics": metrics}


def write(stem: Path, outcomes: Sequence[Outcome], facts: Facts, setting: str) -> tuple[Path, Path]:
    """Write `stem`.json and `stem`.md; return both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    data, text = stem.with_suffix(".json"), stem.with_suffix(".md")
    data.write_text(json.dumps(as_data(outcomes, facts, setting), indent=1) + "\n")
    text.write_text(report(outcomes, facts, setting))
    return data, text
