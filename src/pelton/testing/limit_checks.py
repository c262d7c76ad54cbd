"""The promises of limits, as checks of a history. Pure.

A limit holds from when workers have heard of it until a call begins that changes it; what had started before does not
count. Where several limits were set for the same jobs, each is looked at by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from pelton.queue.model.limits import JobLimit, Rate
from pelton.testing.history import Contradiction
from pelton.testing.queue_record import AttemptSpan, QueueHistory, broken, overlaps


class LimitPeriod(NamedTuple):
    """A limit, and from when until when it was in force."""

    limit: JobLimit
    since: float
    until: float


def concurrency_in_limits(history: QueueHistory) -> Iterator[Contradiction]:
    """No more attempts run at a time than each limit of concurrency allows."""
    for period in limit_periods(history):
        if period.limit.concurrency is not None:
            for spans in _under(history, period):
                yield from overlaps(spans, period.limit.concurrency, "limit")


def starts_in_rates(history: QueueHistory) -> Iterator[Contradiction]:
    """In any stretch of time no more attempts start than each rate allows, with its burst."""
    for period in limit_periods(history):
        if period.limit.rate is not None:
            for spans in _under(history, period):
                yield from _over_rate(history, period.limit.rate, spans)


def limit_periods(history: QueueHistory) -> list[LimitPeriod]:
    """Return all limits, each with the time in which workers had to keep it."""
    found: list[LimitPeriod] = []
    known: dict[str, LimitPeriod] = {}
    for event in history.events:
        if event.limit is None:
            continue
        before = known.pop(event.limit.scope, None)
        if before is not None:
            found.append(before._replace(until=event.at))
        if event.kind == "limited":
            known[event.limit.scope] = LimitPeriod(event.limit, event.at + history.hears_within_ns, inf)
    return [*found, *known.values()]


def _under(history: QueueHistory, period: LimitPeriod) -> Iterator[Sequence[AttemptSpan]]:
    """Yield the attempts that are counted together for a limit, in order of their starts."""
    by_place: dict[str, list[AttemptSpan]] = defaultdict(list)
    for span in history.spans:
        place = period.limit.place(span.start.name, span.start.key)
        if place and period.since < span.start.at < period.until:
            by_place[place].append(span)
    yield from by_place.values()


def _over_rate(history: QueueHistory, rate: Rate, spans: Sequence[AttemptSpan]) -> Iterator[Contradiction]:
    """Replay starts: each takes an interval of the rate, and none may be further ahead than a burst."""
    slack = (rate.burst - 1) * rate.interval_ns + history.tolerance.starts_within * 1e9
    steps = [(event.at, abs(event.seconds) * 1e9) for event in history.of_kind("stepped")]
    # A clock that is set back makes workers wait for longer, or forget what they had started: both count as time.
    ahead = stepped = 0.0
    for span in spans:
        while steps and steps[0][0] <= span.start.at:
            stepped += steps.pop(0)[1]
        now = span.start.at + stepped
        if ahead - slack > now:
            early = f"it started {(ahead - slack - now) / 1e6:.1f} ms too early"
            yield broken("rate", span.start, f"{early} for {rate.starts} in {rate.per} s, {rate.burst} at once")
        ahead = max(ahead, now) + rate.interval_ns
