"""The promises of turns: of priorities, of tenants and of keys, as checks of a history. Pure.

A tenant that has jobs waiting sees, of each other tenant of the same priority, at most so many starts by one worker
before one of its own, as the other's weight goes into its own, rounded up, and one more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.kit.judge.history import Contradiction
from tests.kit.judge.job_checks import limit_periods
from tests.kit.judge.record import HistoryEvent, QueueHistory, broken


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


# --- the promises of priorities, as checks of a history. Pure


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
        yield from _passed_by_ranks(history, priority, those, starts, most)


def _passed_by_ranks(
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


# --- the promise of keys' turns in an exclusive queue, as a check of a history. Pure


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
