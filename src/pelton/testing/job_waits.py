"""When jobs and keys waited that nothing held up, as a history shows it: for the checks of whose turn it was. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pelton.testing.limit_checks import limit_periods
from pelton.testing.queue_record import HistoryEvent, QueueHistory


class JobWait(NamedTuple):
    """A job that could start at any time, until it did."""

    enqueued: HistoryEvent
    since: int
    until: int


class StartMeanwhile(NamedTuple):
    """A start, while so many wait; ``lowest``: as few as did since the start before."""

    start: HistoryEvent
    waiting: int
    lowest: int


def undisturbed_waits(history: QueueHistory) -> list[JobWait]:
    """Return the waits of jobs that nothing but others can have held up.

    No delay, no key of an exclusive queue, no pause, no limit.
    """
    waits: list[JobWait] = []
    for start in first_starts(history):
        enqueued = history.enqueued.get(start.job)
        if enqueued is not None and enqueued.state != "scheduled" and not (history.exclusive and enqueued.key):
            waits.append(JobWait(enqueued, enqueued.at, start.at))
    return _undisturbed(history, waits)


def undisturbed_waits_of_keys(history: QueueHistory) -> list[JobWait]:
    """Return the waits of keys of an exclusive queue: of their next jobs, from when no other job of the key runs.

    No delay, no retry, no pause, no limit.
    """
    firsts = {start.job: start for start in first_starts(history)}
    waits: list[JobWait] = []
    for spans in history.spans_by_key().values():
        before: int | None = 0
        for span in spans:
            start, enqueued = span.start, history.enqueued.get(span.start.job)
            # If the worker of the attempt before was killed, when it was over is not known.
            if (
                enqueued is not None
                and enqueued.state != "scheduled"
                and firsts[start.job] is start
                and before is not None
            ):
                waits.append(JobWait(enqueued, max(enqueued.at, before), start.at))
            before = span.over
    return _undisturbed(history, waits)


def first_starts(history: QueueHistory) -> list[HistoryEvent]:
    """Return the first start of each job, in order of time: a retry is due at its own time."""
    found: dict[str, HistoryEvent] = {}
    for start in history.of_kind("start"):
        found.setdefault(start.job, start)
    return list(found.values())


def starts_while(starts: Iterable[HistoryEvent], waits: Iterable[JobWait]) -> Iterator[StartMeanwhile]:
    """Yield ``starts``, which are in order of time, each with how many of ``waits`` were going on."""
    changes: dict[int, int] = defaultdict(int)
    for wait in waits:
        changes[wait.since] += 1
        changes[wait.until] -= 1
    times, place, waiting = sorted(changes), 0, 0
    for start in starts:
        lowest = waiting
        while place < len(times) and times[place] <= start.at:
            waiting += changes[times[place]]
            lowest = min(lowest, waiting)
            place += 1
        yield StartMeanwhile(start, waiting, lowest)


def _undisturbed(history: QueueHistory, waits: Iterable[JobWait]) -> list[JobWait]:
    disturbed = _disturbed(history)
    return [
        wait
        for wait in waits
        if wait.since < wait.until and not any(since < wait.until and wait.since < end for since, end in disturbed)
    ]


def _disturbed(history: QueueHistory) -> list[tuple[float, float]]:
    """Return when something other than turns decided about starts."""
    end = history.events[-1].at + 1 if history.events else 0
    found = [(period.since - history.hears_within_ns, period.until) for period in limit_periods(history)]
    paused: dict[tuple[str, str], int] = {}
    for event in history.events:
        if event.kind in ("paused", "drained"):
            paused.setdefault((event.key, event.name), event.at)
        elif event.kind == "resumed" and (event.key, event.name) in paused:
            found.append((paused.pop((event.key, event.name)), event.at))
    return [*found, *((since, end) for since in paused.values())]
