"""The promise of priorities, as a check of a history. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pelton.testing.history import Contradiction
from pelton.testing.job_waits import JobWait, starts_while, undisturbed_waits
from pelton.testing.queue_record import HistoryEvent, QueueHistory, broken


def bounded_bypass(history: QueueHistory) -> Iterator[Contradiction]:
    """No worker starts more jobs of higher priorities in a row than it may while others of a lower one wait.

    Only jobs count that nothing else can have held up: no delay, no key of an exclusive queue, no pause, no limit.
    """
    most = history.tolerance.bypass
    if most is None:
        return
    waits = undisturbed_waits(history)
    for priority in sorted({wait.enqueued.priority for wait in waits}):
        yield from _passed(history, priority, [wait for wait in waits if wait.enqueued.priority == priority], most)


def _passed(history: QueueHistory, priority: int, waits: list[JobWait], most: int) -> Iterator[Contradiction]:
    """Count, for each worker, the jobs that it starts ahead of those of one priority, all of which wait meanwhile."""
    ahead = Counter[str]()
    for start, waiting, lowest in starts_while(history, waits):
        if lowest <= history.tolerance.held:
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
