"""The promise of tenants' turns, as a check of a history. Pure.

A tenant that has jobs waiting sees, of each other tenant of the same priority, at most so many starts by one worker
before one of its own, as the other's weight goes into its own, rounded up, and one more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pelton.testing.history import Contradiction
from pelton.testing.job_waits import JobWait, starts_while, undisturbed_waits
from pelton.testing.queue_record import HistoryEvent, QueueHistory, broken


class _Place(NamedTuple):
    """Where jobs take turns with others: those of one tenant and one priority."""

    tenant: str
    priority: int


def fair_turns(history: QueueHistory) -> Iterator[Contradiction]:
    """No worker starts more jobs of a tenant than its weight says while another tenant waits for its turn.

    Only jobs count that nothing else can have held up: no delay, no key of an exclusive queue, no pause, no limit.
    """
    if history.tolerance.turns is None:
        return
    # Workers have heard of them by then.
    waits = [wait._replace(since=wait.since + history.hears_within_ns) for wait in undisturbed_waits(history)]
    weights = _Weights(history)
    places: dict[_Place, list[JobWait]] = {}
    for wait in waits:
        if wait.since < wait.until:
            places.setdefault(_Place(wait.enqueued.tenant, wait.enqueued.priority), []).append(wait)
    for place, those in sorted(places.items()):
        yield from _passed(history, place, those, weights)


def _passed(history: QueueHistory, place: _Place, waits: list[JobWait], weights: _Weights) -> Iterator[Contradiction]:
    """Count, for each worker, the jobs of each other tenant that it starts while those of one tenant wait."""
    most, ahead = history.tolerance.turns, Counter[tuple[str, str]]()
    assert most is not None
    for start, waiting, lowest in starts_while(history.of_kind("start"), waits):
        enqueued, known = history.enqueued.get(start.job), weights.at(start.at)
        if lowest <= history.tolerance.held or known is None:
            # Perhaps some worker holds all that are left.
            ahead.clear()
        if waiting <= history.tolerance.held or known is None:
            continue
        if enqueued is not None and enqueued.priority == place.priority and _takes_turns(history, enqueued):
            if enqueued.tenant == place.tenant:
                ahead = Counter({one: count for one, count in ahead.items() if one[0] != start.worker})
                continue
            ahead[start.worker, enqueued.tenant] += 1
            count = ahead[start.worker, enqueued.tenant]
            if count > -(-known.get(enqueued.tenant, 1) // known.get(place.tenant, 1)) + 1 + most:
                text = f"the {count}. of {enqueued.tenant!r} in a row by {start.worker}"
                yield broken("turns", start, f"{text}, while {waiting} of {place.tenant!r} wait")


def _takes_turns(history: QueueHistory, enqueued: HistoryEvent) -> bool:
    return not (history.exclusive and enqueued.key)


class _Weights:
    """The weights of the tenants at each time: None while workers may not have heard of them."""

    def __init__(self, history: QueueHistory) -> None:
        known: dict[str, int] = {}
        self._times: list[int] = [0]
        self._known: list[Mapping[str, int] | None] = [{}]
        for event in history.events:
            if event.kind == "weighing":
                self._note(event.at, None)
            elif event.kind == "weighed":
                known = {**known, event.tenant: event.weight}
                self._note(event.at + history.hears_within_ns, known)

    def _note(self, at: int, known: Mapping[str, int] | None) -> None:
        while self._times[-1] > at:
            # Another change began before everyone had heard of the one before.
            self._times.pop()
            self._known.pop()
        self._times.append(at)
        self._known.append(known)

    def at(self, time: int) -> Mapping[str, int] | None:
        """Return the weights at a time."""
        return self._known[bisect_right(self._times, time) - 1]
