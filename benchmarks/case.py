"""The vocabulary of the bench: what is measured, by whom, under which guarantee.

Contenders name their code as text ("peers.huey_jobs:noop_jobs"). Only the process that measures
imports it, so that one contender's libraries never weigh on another's memory or start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.asks import Ask

Sample = dict[str, float]
"""What one measurement gives: a figure for each metric."""

FSYNCED = "fsynced before the reply"
OS_CACHE = "in the OS cache at the reply, fsync every 2 min (power loss loses replies)"
UNSYNCED = "never fsynced (a crash of the machine may lose it)"


@dataclass(frozen=True)
class Run:
    """Where and how long to measure. `workdir` is fresh for each measurement, `shared` lasts a case."""

    workdir: Path
    shared: Path
    seconds: float
    drain: int
    samples: int
    big: int


@dataclass(frozen=True)
class Contender:
    """One who takes part in a case: `target` is "module:function" below `benchmarks`."""

    name: str
    target: str
    guarantee: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """A figure every contender of a case gives."""

    key: str
    unit: str
    digits: int = 0


@dataclass(frozen=True)
class Case:
    """One question, its contenders, and what is asked of Pelton.

    `prepare` ("module:function") runs once before the rounds and leaves its work in `Run.shared`.
    """

    name: str
    title: str
    how: str
    metrics: tuple[Metric, ...]
    contenders: tuple[Contender, ...]
    asks: tuple[Ask, ...] = ()
    prepare: str | None = None
