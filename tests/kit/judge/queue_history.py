"""Checks whether recorded histories keep the promises of a queue, whatever was done to it. Pure.

Programs enqueue, cancel, pause, redrive and move jobs, workers run them and are killed; all record what happened with
one clock of the machine (CLOCK_MONOTONIC, nanoseconds). At the end, when nothing runs, the program adds what the queue
says: the outcomes, the dead letters, and the jobs that have not ended. :func:`check_queue` reports what breaks the
promises, each stated by one function of :data:`CHECKS`; add yours there, or give it to ``check_queue``.

Where two programs cannot know which of their actions came first, the history is given the benefit of the doubt: an
action counts from when its call had returned, or until it began, whichever is safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tests.kit.judge.flow_checks import cancelled_flows_end, flows_end, flows_in_order, results_are_passed_on
from tests.kit.judge.history import Contradiction
from tests.kit.judge.job_checks import (
    bounded_attempts,
    concurrency_in_limits,
    drained_is_quiet,
    keys_in_order,
    no_start_while_paused,
    nothing_vanishes,
    one_holder_a_job,
    one_holder_a_key,
    one_outcome,
    one_unfinished_a_unique,
    one_value_a_step,
    starts_in_rates,
)
from tests.kit.judge.record import (
    AttemptSpan,
    HistoryEvent,
    HistoryEventKind,
    PlannedNode,
    QueueHistory,
    Tolerance,
    broken,
    grouped,
    overlaps,
)
from tests.kit.judge.turn_checks import bounded_bypass, bypass_between_keys, fair_turns, fair_turns_of_keys

__all__ = [
    "CHECKS",
    "AttemptSpan",
    "Check",
    "HistoryEvent",
    "HistoryEventKind",
    "PlannedNode",
    "QueueHistory",
    "Tolerance",
    "broken",
    "check_queue",
    "grouped",
    "overlaps",
]

Check = Callable[[QueueHistory], Iterator[Contradiction]]
"""Reports what breaks one promise."""
EXACT: Final = Tolerance()

CHECKS: Final[tuple[Check, ...]] = (
    nothing_vanishes,
    one_outcome,
    bounded_attempts,
    one_value_a_step,
    one_holder_a_job,
    one_holder_a_key,
    keys_in_order,
    one_unfinished_a_unique,
    no_start_while_paused,
    drained_is_quiet,
    concurrency_in_limits,
    starts_in_rates,
    bounded_bypass,
    bypass_between_keys,
    fair_turns,
    fair_turns_of_keys,
    flows_in_order,
    results_are_passed_on,
    cancelled_flows_end,
    flows_end,
)
"""The promises of a queue."""


def check_queue(
    events: Iterable[HistoryEvent],
    *,
    exclusive: bool,
    max_attempts: int,
    tolerance: Tolerance = EXACT,
    more: Sequence[Check] = (),
) -> list[Contradiction]:
    """Return the broken promises; an empty list for a good history. Events may come in any order.

    ``exclusive``: whether the queues are. ``tolerance``: what they are not held to; on servers a worker may start a job
    that was cancelled after it had taken it, until it hears of that.
    ``more`` checks are made after those of :data:`CHECKS`.
    """
    by_queue: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        by_queue[event.queue].append(event)
    found: list[Contradiction] = []
    for mine in by_queue.values():
        history = QueueHistory(mine, exclusive=exclusive, max_attempts=max_attempts, tolerance=tolerance)
        for check in (*CHECKS, *more):
            found += check(history)
    return found
