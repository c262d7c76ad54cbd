"""The promises of priorities, as checks of a history. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pelton.testing.history import Contradiction
from pelton.testing.job_waits import (
    JobWait,
    first_starts,
    starts_while,
    undisturbed_waits,
    undisturbed_waits_of_keys,
)
from pelton.testing.queue_record import HistoryEvent, QueueHistory, broken


def bounded_bypass(history: QueueHistory) -> Iterator[Contradiction]:
    """No worker starts more jobs of higher priorities in a row than it may while others of a lower one wait.

    Only jobs count that nothing else can have held up: no delay, no key of an exclusive queue, no pause, no limit.
    """
    if history.tolerance.bypass is None:
        return
    # Keys of an exclusive queue with a priority come from a line of their own.
    starts = [
        start
        for start in history.of_kind("start")
        if not (history.exclusive and start.key and priority_of(history, start))
    ]
    yield from _too_many_ahead(history, undisturbed_waits(history), starts, history.tolerance.bypass)


def bypass_between_keys(history: QueueHistory) -> Iterator[Contradiction]:
    """No worker starts more jobs of keys with higher priorities in a row than it may while keys of a lower one wait.

    Only first attempts count, in exclusive queues.
    """
    if history.tolerance.bypass is None or not history.exclusive:
        return
    starts = [start for start in first_starts(history) if start.key]
    yield from _too_many_ahead(history, undisturbed_waits_of_keys(history), starts, history.tolerance.bypass)


def _too_many_ahead(
    history: QueueHistory, waits: Sequence[JobWait], starts: Sequence[HistoryEvent], most: int
) -> Iterator[Contradiction]:
    for priority in sorted({wait.enqueued.priority for wait in waits}):
        those = [wait for wait in waits if wait.enqueued.priority == priority]
        yield from _passed(history, priority, those, starts, most)


def _passed(
    history: QueueHistory, priority: int, waits: list[JobWait], starts: Sequence[HistoryEvent], most: int
) -> Iterator[Contradiction]:
    """Count, for each worker, the jobs that it starts ahead of those of one priority, all of which wait meanwhile."""
    ahead = Counter[str]()
    for start, waiting, lowest in starts_while(starts, waits):
        if lowest <= history.tolerance.held:
            # Perhaps some worker holds all that are left.
            ahead.clear()
        rank = priority_of(history, start)
        if rank == priority:
            ahead[start.worker] = 0
        elif rank > priority and waiting > history.tolerance.held:
            ahead[start.worker] += 1
            if ahead[start.worker] > most:
                text = f"{ahead[start.worker]} in a row by {start.worker}, while {waiting} of priority {priority} wait"
                yield broken("bypass", start, f"it has priority {rank}: {text}")


def priority_of(history: QueueHistory, start: HistoryEvent) -> int:
    """Return the priority of the job that starts."""
    enqueued = history.enqueued.get(start.job)
    return enqueued.priority if enqueued is not None else 0
