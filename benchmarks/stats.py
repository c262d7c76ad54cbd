"""Medians, percentiles and ratios of alternating rounds: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0..1) of `values` lie, interpolated; ValueError if there are none."""
    if not values:
        raise ValueError("percentile of no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def paired_ratios(ours: Sequence[float | None], theirs: Sequence[Sequence[float | None]]) -> list[float]:
    """Return ours / best of theirs, for each round; rounds in which either is missing are left out.

    Pairing within a round cancels changes of the machine's speed, which two separate medians do not.
    """
    ratios = []
    for place, own in enumerate(ours):
        rivals = [figures[place] for figures in theirs if place < len(figures)]
        measured = [figure for figure in rivals if figure]
        if own is not None and measured:
            ratios.append(own / max(measured))
    return ratios


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of what was measured, None if nothing was."""
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the lowest and highest of what was measured, None if nothing was."""
    measured = [value for value in values if value is not None]
    return (min(measured), max(measured)) if measured else None
