"""When jobs waited that nothing held up, as a history shows it: for the checks of whose turn it was. Pure."""

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
    firsts: dict[str, int] = {}
    for start in history.of_kind("start"):
        firsts.setdefault(start.job, start.at)
    disturbed = _disturbed(history)
    found: list[JobWait] = []
    for job, event in history.enqueued.items():
        until = firsts.get(job, 0)
        is_ready = event.state != "scheduled" and not (history.exclusive and event.key)
        if is_ready and event.at < until and not any(a < until and event.at < b for a, b in disturbed):
            found.append(JobWait(event, event.at, until))
    return found


def starts_while(history: QueueHistory, waits: Iterable[JobWait]) -> Iterator[StartMeanwhile]:
    """Yield all starts, each with how many of ``waits`` were going on."""
    changes: dict[int, int] = defaultdict(int)
    for wait in waits:
        changes[wait.since] += 1
        changes[wait.until] -= 1
    times, place, waiting = sorted(changes), 0, 0
    for start in history.of_kind("start"):
        lowest = waiting
        while place < len(times) and times[place] <= start.at:
            waiting += changes[times[place]]
            lowest = min(lowest, waiting)
            place += 1
        yield StartMeanwhile(start, waiting, lowest)


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
