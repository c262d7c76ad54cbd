"""Targets for Pelton, and the verdicts on them.

Four kinds: a ratio to peers measured beside it, a ratio to a fixed figure that cannot be measured
here, an upper limit, and a lower one. `bound=None` only reports the ratio, without a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.references import Reference
from benchmarks.stats import middle, paired_ratios, spread

Rounds = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Contender -> metric -> its figure in each round (None: that measurement failed)."""


@dataclass(frozen=True)
class Verdict:
    """One line of the report. `met` and `rounds` are None without a target, or without a measurement."""

    what: str
    asked: str
    measured: str
    met: bool | None
    rounds: tuple[int, int] | None = None
    """How many of the rounds meet it by themselves, and of how many: what only some of them meet is in doubt."""


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


def _verdict(
    what: str,
    asked: str,
    rounds: Sequence[float | None],
    told: Callable[[float], str],
    meets: Callable[[float], bool] | None,
) -> Verdict:
    """Judge the median of the rounds; each of them is judged too."""
    found, bounds = middle(rounds), spread(rounds)
    if found is None or bounds is None:
        return Verdict(what, asked, "not measured", None)
    low, high = map(told, bounds)
    measured = told(found) if low == high else f"{told(found)} ({low} to {high})"
    if meets is None:
        return Verdict(what, asked, measured, None)
    judged = [meets(figure) for figure in rounds if figure is not None]
    return Verdict(what, asked, measured, meets(found), (sum(judged), len(judged)))


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def _reaches(bound: float | None) -> Callable[[float], bool] | None:
    return None if bound is None else lambda figure: figure >= bound


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
        ratios = paired_ratios(figures(rounds, self.of, self.metric), theirs)
        what = f"{self.of} : {self.label or '; '.join(self.to)}{_metric(self.metric)}"
        return _verdict(what, _at_least(self.bound), ratios, _times, _reaches(self.bound))


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
        own = figures(rounds, self.of, self.metric)
        ratios = [figure / self.reference.figure for figure in own if figure is not None]
        what = f"{self.of} : {self.reference.name} (fixed figure){_metric(self.metric)}"
        return _verdict(what, _at_least(self.bound), ratios, _times, _reaches(self.bound))


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
        return _verdict(
            f"{self.of}, {self.metric}",
            f"<= {self.limit:g} {self.unit}",
            figures(rounds, self.of, self.metric),
            lambda figure: f"{figure:.3g} {self.unit}",
            lambda figure: figure <= self.limit,
        )


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
        return _verdict(
            f"{self.of}, {self.metric}",
            f">= {self.floor:,.0f}{self.unit}",
            figures(rounds, self.of, self.metric),
            lambda figure: f"{figure:,.0f}{self.unit}",
            _reaches(self.floor),
        )
