"""What is asked of Pelton, and the verdict on it.

Four kinds: a ratio to peers measured beside it, a ratio to a fixed figure that cannot be measured
here, a plain limit, and a plain floor. `bound=None` only tells how near we are; nothing is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.references import Reference
from benchmarks.stats import middle, paired_ratio

Rounds = Mapping[str, Mapping[str, Sequence[float | None]]]
"""contender -> metric -> its figure in each round (None: that measurement failed)."""


@dataclass(frozen=True)
class Verdict:
    """One line of the report. `met` is None where nothing was asked or nothing could be measured."""

    what: str
    asked: str
    measured: str
    met: bool | None


class Ask(Protocol):
    """Anything that can judge the rounds of its case."""

    @property
    def metric(self) -> str: ...

    def judge(self, rounds: Rounds) -> Verdict: ...

    def names(self) -> tuple[str, ...]:
        """The contenders it speaks of."""
        ...


def figures(rounds: Rounds, name: str, metric: str) -> Sequence[float | None]:
    """A contender's figures of one metric, empty if it never ran."""
    return rounds.get(name, {}).get(metric, ())


def _at_least(bound: float | None) -> str:
    return "(told)" if bound is None else f">= {bound:g}x"


def _metric(key: str) -> str:
    """How a verdict names its metric; the rate goes without saying."""
    return "" if key == "rate" else f" ({key})"


def _verdict(what: str, bound: float | None, ratio: float | None) -> Verdict:
    measured = "not measured" if ratio is None else f"{ratio:.2f}x"
    met = None if bound is None or ratio is None else ratio >= bound
    return Verdict(what, _at_least(bound), measured, met)


@dataclass(frozen=True)
class RatioAsk:
    """`of` does at least `bound` times the best of `to` (told as `label`), round by round."""

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
    """`of` does at least `bound` times a figure measured elsewhere, which is listed as such."""

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
