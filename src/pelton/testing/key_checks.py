"""The promise of keys' turns in an exclusive queue, as a check of a history. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator

from pelton.testing.history import Contradiction
from pelton.testing.job_waits import first_starts, undisturbed_waits_of_keys
from pelton.testing.priority_checks import priority_of
from pelton.testing.queue_record import QueueHistory, broken


def fair_turns_of_keys(history: QueueHistory) -> Iterator[Contradiction]:
    """While a key waits, no other one has more turns than it may: however many jobs that one has.

    Only first attempts of jobs count whose priority is not higher.
    """
    most = history.tolerance.key_turns
    if most is None or not history.exclusive:
        return
    starts = [start for start in first_starts(history) if start.key]
    times = [start.at for start in starts]
    for enqueued, since, until in undisturbed_waits_of_keys(history):
        served = Counter(
            start.key
            for start in starts[bisect_right(times, since) : bisect_left(times, until)]
            if start.key != enqueued.key and priority_of(history, start) <= enqueued.priority
        )
        for key, number in served.items():
            if number > most:
                yield broken("turns", enqueued, f"while it waited, {number} jobs of key {key!r} started")
