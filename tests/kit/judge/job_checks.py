"""The promises that a queue makes of each job, key, pause and limit, as checks of a history. Pure.

The promises of limits, as checks of a history. Pure.

A limit holds from when workers have heard of it until a call begins that changes it; what had started before does not
count. Where several limits were set for the same jobs, each is looked at by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from pelton.queue.model.limits import JobLimit, Rate
from tests.kit.judge.history import Contradiction
from tests.kit.judge.record import AttemptSpan, HistoryEvent, QueueHistory, broken, overlaps


def nothing_vanishes(history: QueueHistory) -> Iterator[Contradiction]:
    """Every job that was accepted has ended or waits, not both, and one that has failed left a dead letter."""
    waiting = {event.job for event in history.of_kind("unfinished")}
    letters = {event.job for event in (*history.of_kind("letter"), *history.of_kind("redriven"))}
    for job, event in history.enqueued.items():
        ends = history.outcomes.get(job, [])
        if not ends and job not in waiting:
            yield broken("lost", event, "it was enqueued, has no outcome, and is not waiting")
        if ends and job in waiting:
            yield broken("once", event, f"it has ended as {ends[0].state} and is still waiting")
        if ends and ends[0].state == "failed" and job not in letters:
            yield broken("lost", event, "it has failed and left no dead letter")
    if not history.of_kind("unsure"):
        for event in (*history.of_kind("start"), *history.of_kind("outcome"), *history.of_kind("unfinished")):
            if event.job not in history.enqueued and not event.flow:
                yield broken("once", event, f"{event.kind} of a job that was never enqueued")


def one_outcome(history: QueueHistory) -> Iterator[Contradiction]:
    """A job has one outcome, which nobody saw otherwise; it does not start after it, nor completes or fails without."""
    started = {event.job for event in history.of_kind("start")}
    for ends in history.outcomes.values():
        if len(ends) > 1:
            yield broken("once", ends[0], f"it has {len(ends)} outcomes: {', '.join(end.state for end in ends)}")
        if ends[0].state in ("completed", "failed") and ends[0].job not in started:
            yield broken("once", ends[0], f"it has {ends[0].state} and never started")
    seen: dict[str, HistoryEvent] = {}
    for event in history.events:
        if event.kind == "ended":
            seen.setdefault(event.job, event)
            final = history.outcomes.get(event.job)
            if final and final[0].state != event.state:
                yield broken("once", event, f"it had ended as {event.state} and then as {final[0].state}")
        elif event.kind == "start" and event.job in seen and event.at > seen[event.job].at + history.hears_within_ns:
            yield broken("once", event, f"it started after it had ended as {seen[event.job].state}")


def bounded_attempts(history: QueueHistory) -> Iterator[Contradiction]:
    """Attempts are counted upwards, to the limit."""
    last: dict[str, int] = {}
    for start in history.of_kind("start"):
        if not 1 <= start.attempt <= history.max_attempts:
            yield broken("attempts", start, f"attempt {start.attempt} of {history.max_attempts}")
        if start.attempt < last.get(start.job, 0):
            yield broken("attempts", start, f"attempt {start.attempt} after attempt {last[start.job]}")
        last[start.job] = start.attempt


def one_value_a_step(history: QueueHistory) -> Iterator[Contradiction]:
    """All attempts of a job see one value of a step."""
    values: dict[tuple[str, str], str] = {}
    for event in history.of_kind("step"):
        known = values.setdefault((event.job, event.step), event.value)
        if known != event.value:
            yield broken("step", event, f"step {event.step!r} is {event.value} and was {known}")


def one_holder_a_job(history: QueueHistory) -> Iterator[Contradiction]:
    """The attempts of a job never overlap."""
    for spans in history.spans_by_job().values():
        yield from overlaps(spans)


def one_holder_a_key(history: QueueHistory) -> Iterator[Contradiction]:
    """In an exclusive queue, the attempts of a key never overlap."""
    if history.exclusive:
        for spans in history.spans_by_key().values():
            yield from overlaps(spans)


def keys_in_order(history: QueueHistory) -> Iterator[Contradiction]:
    """In an exclusive queue, jobs of a key that could start at once start in the order in which they were enqueued."""
    if not history.exclusive:
        return
    spans = history.spans_by_job()
    by_key: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in history.of_kind("enqueued"):
        if event.key and event.state != "scheduled":
            by_key[event.key].append(event)
    for jobs in by_key.values():
        latest: AttemptSpan | None = None
        for event in jobs:
            mine = spans.get(event.job, [])
            if mine and latest is not None and mine[0].start.at < latest.start.at:
                yield broken("order", event, f"it started before job {latest.start.job}, enqueued earlier, had ended")
            if mine and (latest is None or mine[-1].start.at > latest.start.at):
                latest = mine[-1]


def one_unfinished_a_unique(history: QueueHistory) -> Iterator[Contradiction]:
    """While a unique job is unfinished, no other one of the same is accepted."""
    waiting = {event.job for event in history.of_kind("unfinished")}
    spans = history.spans_by_job()
    by_unique: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in history.of_kind("enqueued"):
        if event.unique:
            by_unique[event.unique].append(event)
    for jobs in by_unique.values():
        for earlier, later in pairwise(jobs):
            text = f"job {later.job}, of the same {later.unique!r}, was accepted"
            if earlier.job in waiting:
                yield broken("unique", earlier, f"it has not ended, and {text}")
            if any(span.start.at > later.at for span in spans.get(earlier.job, ())):
                yield broken("unique", earlier, f"it started after {text}")


def no_start_while_paused(history: QueueHistory) -> Iterator[Contradiction]:
    """Nothing starts that is paused, as soon as the workers have heard of it."""
    paused: dict[tuple[str, str], int] = {}
    for event in history.events:
        if event.kind == "paused":
            paused.setdefault((event.key, event.name), event.at)
        elif event.kind == "resumed":
            paused.pop((event.key, event.name), None)
        elif event.kind == "start":
            for scope in {("", ""), (event.key, ""), ("", event.name)}:
                since = paused.get(scope)
                if since is not None and event.at > since + history.hears_within_ns:
                    late = (event.at - since) / 1e6
                    yield broken("paused", event, f"it started {late:.1f} ms after {scope} was paused")


def drained_is_quiet(history: QueueHistory) -> Iterator[Contradiction]:
    """When a queue is drained nothing runs, and nothing starts until it is resumed, however soon."""
    since: int | None = None
    for event in history.events:
        if event.kind == "drained":
            since = event.at
            for span in history.spans:
                if span.over is not None and span.start.at < since < span.over:
                    yield broken("drained", span.start, "it ran when the queue was drained")
        elif event.kind == "resumed" and not event.key and not event.name:
            since = None
        elif event.kind == "start" and since is not None:
            yield broken("drained", event, f"it started {(event.at - since) / 1e6:.1f} ms after the queue was drained")


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
