"""The promise of priorities, as a check of a history. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pelton.testing.history import Contradiction
from pelton.testing.limit_checks import limit_periods
from pelton.testing.queue_record import HistoryEvent, QueueHistory, broken


class _Wait(NamedTuple):
    """A job that could start at any time, until it did."""

    priority: int
    since: int
    until: int


def bounded_bypass(history: QueueHistory) -> Iterator[Contradiction]:
    """No worker starts more jobs of higher priorities in a row than it may while others of a lower one wait.

    Only jobs count that nothing else can have held up: no delay, no key of an exclusive queue, no pause, no limit.
    """
    most = history.tolerance.bypass
    if most is None:
        return
    waits = _waits(history)
    for priority in sorted({wait.priority for wait in waits}):
        yield from _passed(history, priority, [wait for wait in waits if wait.priority == priority], most)


def _passed(history: QueueHistory, priority: int, waits: list[_Wait], most: int) -> Iterator[Contradiction]:
    """Count, for each worker, the jobs that it starts ahead of those of one priority, all of which wait meanwhile."""
    changes: dict[int, int] = defaultdict(int)
    for wait in waits:
        changes[wait.since] += 1
        changes[wait.until] -= 1
    times = sorted(changes)
    waiting = 0
    ahead = Counter[str]()
    for start in history.of_kind("start"):
        while times and times[0] <= start.at:
            waiting += changes[times.pop(0)]
            if waiting <= history.tolerance.held:
                # Perhaps some worker holds all that are left.
                ahead.clear()
        rank = _priority(history, start)
        if rank == priority:
            ahead[start.worker] = 0
        elif rank > priority and waiting > history.tolerance.held:
            ahead[start.worker] += 1
            if ahead[start.worker] > most:
                text = f"{ahead[start.worker]} in a row by {start.worker}, while {waiting} of priority {priority} wait"
                yield broken("bypass", start, f"it has priority {rank}: {text}")


def _priority(history: QueueHistory, start: HistoryEvent) -> int:
    enqueued = history.enqueued.get(start.job)
    return enqueued.priority if enqueued is not None else 0


def _waits(history: QueueHistory) -> list[_Wait]:
    firsts: dict[str, int] = {}
    for start in history.of_kind("start"):
        firsts.setdefault(start.job, start.at)
    disturbed = _disturbed(history)
    found: list[_Wait] = []
    for job, event in history.enqueued.items():
        until = firsts.get(job, 0)
        is_ready = event.state != "scheduled" and not (history.exclusive and event.key)
        if is_ready and event.at < until and not any(a < until and event.at < b for a, b in disturbed):
            found.append(_Wait(event.priority, event.at, until))
    return found


def _disturbed(history: QueueHistory) -> list[tuple[float, float]]:
    """Return when something other than priorities decided about starts."""
    end = history.events[-1].at + 1 if history.events else 0
    found = [(period.since - history.hears_within_ns, period.until) for period in limit_periods(history)]
    paused: dict[tuple[str, str], int] = {}
    for event in history.events:
        if event.kind in ("paused", "drained"):
            paused.setdefault((event.key, event.name), event.at)
        elif event.kind == "resumed" and (event.key, event.name) in paused:
            found.append((paused.pop((event.key, event.name)), event.at))
    return [*found, *((since, end) for since in paused.values())]
