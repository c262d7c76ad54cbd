"""The vocabulary of the benchmarks: what is measured, for which contender, under which guarantee.

Contenders name their code as text ("peers.huey_jobs:noop_jobs"). Only the measuring process imports
it, so that one contender's libraries never affect another's memory or start-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.asks import Ask

Sample = dict[str, float]
"""The result of one measurement: a figure for each metric."""

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
    """A library or setting measured in a case: `target` is "module:function" below `benchmarks`."""

    name: str
    target: str
    guarantee: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """A figure measured for every contender of a case."""

    key: str
    unit: str
    digits: int = 0


@dataclass(frozen=True)
class Case:
    """One question, its contenders, and the targets for Pelton.

    `prepare` ("module:function") runs once before the rounds and leaves its results in `Run.shared`. A case without
    metrics keeps all that a contender measures. `limit`: after how many seconds a measurement is given up.
    """

    name: str
    title: str
    how: str
    metrics: tuple[Metric, ...]
    contenders: tuple[Contender, ...]
    asks: tuple[Ask, ...] = ()
    prepare: str | None = None
    limit: float = 180.0
