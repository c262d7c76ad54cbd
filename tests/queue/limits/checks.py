"""What a limit promises, checked against the attempts that ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pelton.queue.model.limits import JobLimit
from tests.queue.limits.limited_shop import Span

SLACK_S = 0.15


def broken(limits: Iterable[JobLimit], spans: Iterable[Span]) -> list[str]:
    """Return how limits were exceeded."""
    found: list[str] = []
    for limit in limits:
        groups = defaultdict[str, list[Span]](list)
        for span in spans:
            if place := limit.place(span.job, span.key):
                groups[place].append(span)
        for place, group in groups.items():
            found += _too_many(place, limit, group)
            found += _too_fast(place, limit, sorted(span.began for span in group))
    return found


def _too_many(place: str, limit: JobLimit, spans: list[Span]) -> list[str]:
    # What ends at a moment makes room for what begins then.
    live, found = 0, list[str]()
    changes = sorted(
        change for span in spans if span.ended > span.began for change in ((span.began, 1), (span.ended, -1))
    )
    for at, change in changes:
        live += change
        if limit.concurrency is not None and live > limit.concurrency:
            found.append(f"{place}: {live} at {at:g} s, {limit}")
    return found


def _too_fast(place: str, limit: JobLimit, starts: list[float]) -> list[str]:
    if limit.rate is None:
        return []
    # Any stretch that begins with a start and ends with another one. An answer may take some ticks of the clock.
    found = list[str]()
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = (starts[last] - begin + SLACK_S) * 1e9 / limit.rate.interval_ns + limit.rate.burst
            if last - first + 1 > allowed + 1e-6:
                found.append(f"{place}: {last - first + 1} starts in {starts[last] - begin:g} s, {limit}")
    return found
