"""Targets for Pelton, and the verdicts on them.

Four kinds: a ratio to peers measured beside it, a ratio to a fixed figure that cannot be measured
here, an upper limit, and a lower one. `bound=None` only reports the ratio, without a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.references import Reference
from benchmarks.stats import middle, paired_ratio

Rounds = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Contender -> metric -> its figure in each round (None: that measurement failed)."""


@dataclass(frozen=True)
class Verdict:
    """One line of the report. `met` is None without a target, or without a measurement."""

    what: str
    asked: str
    measured: str
    met: bool | None


class Ask(Protocol):
    """A target that can be checked against the rounds of its case."""

    @property
    def metric(self) -> str: ...

    def judge(self, rounds: Rounds) -> Verdict: ...

    def names(self) -> tuple[str, ...]:
        """Return the contenders that it compares."""
        ...


def figures(rounds: Rounds, name: str, metric: str) -> Sequence[float | None]:
    """Return a contender's figures of one metric, empty if it never ran."""
    return rounds.get(name, {}).get(metric, ())


def _at_least(bound: float | None) -> str:
    return "(told)" if bound is None else f">= {bound:g}x"


def _metric(key: str) -> str:
    """Return how a verdict names its metric: the rate, as the default, is not named."""
    return "" if key == "rate" else f" ({key})"


def _verdict(what: str, bound: float | None, ratio: float | None) -> Verdict:
    measured = "not measured" if ratio is None else f"{ratio:.2f}x"
    met = None if bound is None or ratio is None else ratio >= bound
    return Verdict(what, _at_least(bound), measured, met)


@dataclass(frozen=True)
class RatioAsk:
    """`of` reaches at least `bound` times the best of `to` (reported as `label`), round by round."""

    of: str
    to: tuple[str, ...]
    bound: float | None
    metric: str = "rate"
    label: str = ""

    def names(self) -> tuple[str, ...]:
        return (self.of, *self.to)

    def judge(self, rounds: Rounds) -> Verdict:
        theirs = [figures(rounds, name, self.metric) for name in self.to]
        ratio = paired_ratio(figures(rounds, self.of, self.metric), theirs)
        rivals = self.label or "; ".join(self.to)
        return _verdict(f"{self.of} : {rivals}{_metric(self.metric)}", self.bound, ratio)


@dataclass(frozen=True)
class ReferenceAsk:
    """`of` reaches at least `bound` times a figure measured elsewhere, which is listed as such."""

    of: str
    reference: Reference
    bound: float | None
    metric: str = "rate"

    def names(self) -> tuple[str, ...]:
        return (self.of,)

    def judge(self, rounds: Rounds) -> Verdict:
        own = middle(figures(rounds, self.of, self.metric))
        ratio = None if own is None else own / self.reference.figure
        return _verdict(f"{self.of} : {self.reference.name} (fixed figure){_metric(self.metric)}", self.bound, ratio)


@dataclass(frozen=True)
class LimitAsk:
    """The median of `of` stays at or below `limit`."""

    of: str
    limit: float
    metric: str
    unit: str

    def names(self) -> tuple[str, ...]:
        return (self.of,)

    def judge(self, rounds: Rounds) -> Verdict:
        own = middle(figures(rounds, self.of, self.metric))
        measured = "not measured" if own is None else f"{own:.3g} {self.unit}"
        met = None if own is None else own <= self.limit
        return Verdict(f"{self.of}, {self.metric}", f"<= {self.limit:g} {self.unit}", measured, met)


@dataclass(frozen=True)
class FloorAsk:
    """The median of `of` stays at or above `floor`."""

    of: str
    floor: float
    metric: str
    unit: str

    def names(self) -> tuple[str, ...]:
        return (self.of,)

    def judge(self, rounds: Rounds) -> Verdict:
        own = middle(figures(rounds, self.of, self.metric))
        measured = "not measured" if own is None else f"{own:,.0f}{self.unit}"
        met = None if own is None else own >= self.floor
        return Verdict(f"{self.of}, {self.metric}", f">= {self.floor:,.0f}{self.unit}", measured, met)
