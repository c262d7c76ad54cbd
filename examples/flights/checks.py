"""The demo's promises, each checked against the record of a run.

The record is evidence from two sides. The history says which worker was running which flight, and when; the
states are the results of the work, and their digests say which flights they have seen, in which order. A check
trusts neither the engine nor the workers: it compares with the input, and with the serial truth computed
here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from examples.flights.record import FlightAttempt, Run, WorkerRecord
from examples.flights.work import expected


class PromiseCheck(NamedTuple):
    """Whether one promise was kept; `detail` is the evidence, or the first breach and their number."""

    promise: str
    passed: bool
    detail: str


def check(run: Run) -> list[PromiseCheck]:
    """Return one verdict per promise. Takes about three seconds for the whole year."""
    return [verdict(run) for verdict in _CHECKS]


def passed(verdicts: Iterable[PromiseCheck]) -> bool:
    """Return True if every promise was kept."""
    return all(verdict.passed for verdict in verdicts)


def by_aircraft(attempts: Iterable[FlightAttempt]) -> dict[str, list[FlightAttempt]]:
    """Return the attempts of each aircraft, in the order in which they began."""
    groups: dict[str, list[FlightAttempt]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda a: a.start_ns):
        groups[attempt.aircraft].append(attempt)
    return groups


def exactly_once(run: Run) -> PromiseCheck:
    """Each flight with an aircraft has one attempt that counts, and nothing is left."""
    done = Counter(attempt.flight for attempt in run.attempts if attempt.done)
    due = {flight.index for flight in run.flights if flight.tailnum is not None}
    breaches = [f"flight {i} was lost" for i in sorted(due - done.keys())]
    breaches += [f"flight {i} was done though it is not good input" for i in sorted(done.keys() - due)]
    breaches += [f"flight {i} was done {n} times" for i, n in sorted(done.items()) if n > 1]
    breaches += [f"jobs left in the queue: {run.left:,}"] if run.left else []
    again = len(run.attempts) - sum(done.values())
    return _verdict("every flight done exactly once", breaches, f"{len(due):,} flights, {again:,} begun again")


def same_as_serial(run: Run) -> PromiseCheck:
    """Each aircraft's state, digest included, equals that of doing one flight after the other."""
    truth = expected(run.flights)
    breaches = [
        f"{tail}: has {run.states.get(tail)}, should have {truth.get(tail)}"
        for tail in sorted(truth.keys() | run.states.keys())
        if run.states.get(tail) != truth.get(tail)
    ]
    return _verdict("same result as one after the other", breaches, f"{len(truth):,} aircraft, digests equal")


def in_order(run: Run) -> PromiseCheck:
    """An aircraft's flights were begun in time order; only one without a result was begun again."""
    breaches = [
        f"{tail}: flight {after.flight} was begun after flight {before.flight}"
        for tail, attempts in by_aircraft(run.attempts).items()
        for before, after in pairwise(attempts)
        if after.flight < before.flight or (after.flight == before.flight and before.done)
    ]
    return _verdict("in order for each aircraft", breaches, "by the history of attempts")


def never_two(run: Run) -> PromiseCheck:
    """No aircraft was processed twice at once: an attempt ended, or its worker did, before the next began."""
    breaches = [
        breach for tail, attempts in by_aircraft(run.attempts).items() for breach in _overlaps(run, tail, attempts)
    ]
    return _verdict("never two at once for one aircraft", breaches, f"{len(run.attempts):,} attempts compared")


def dead_letters(run: Run) -> PromiseCheck:
    """The flights without an aircraft, and no others, are dead letters, once each, with a reason."""
    bad = {flight.index for flight in run.flights if flight.tailnum is None}
    dead = Counter(letter.flight for letter in run.dead)
    breaches = [f"flight {i} has no aircraft and no dead letter" for i in sorted(bad - dead.keys())]
    breaches += [f"flight {i} is good input, but a dead letter" for i in sorted(dead.keys() - bad)]
    breaches += [f"flight {i} has {n} dead letters" for i, n in sorted(dead.items()) if n > 1]
    breaches += [f"the dead letter of flight {d.flight} gives no reason" for d in run.dead if not d.reason.strip()]
    return _verdict("bad input set aside, with a reason", breaches, f"{len(run.dead):,} dead letters")


def taken_over(run: Run) -> PromiseCheck:
    """A killed worker begins nothing more, and others finish its flights."""
    if not run.killed:
        return PromiseCheck("a killed worker's jobs taken over", True, "no worker was killed")
    breaches = [breach for worker in run.killed for breach in _stranded(run, worker)]
    hands = sum(attempt.end_ns is None for attempt in run.attempts)
    names = ", ".join(f"worker {w.number} (pid {w.pid})" for w in run.killed)
    return _verdict("a killed worker's jobs taken over", breaches, f"SIGKILL hit {names}, {hands} flights in hand")


_CHECKS: Sequence[Callable[[Run], PromiseCheck]] = (
    exactly_once,
    same_as_serial,
    in_order,
    never_two,
    dead_letters,
    taken_over,
)


def _verdict(promise: str, breaches: Sequence[str], evidence: str) -> PromiseCheck:
    if not breaches:
        return PromiseCheck(promise, True, evidence)
    more = f" (and {len(breaches) - 1:,} more)" if len(breaches) > 1 else ""
    return PromiseCheck(promise, False, breaches[0] + more)


def _overlaps(run: Run, tail: str, attempts: Sequence[FlightAttempt]) -> list[str]:
    breaches: list[str] = []
    until, holder = 0, None
    for attempt in attempts:
        if holder is not None and attempt.start_ns < until:
            breaches.append(f"{tail}: flight {attempt.flight} began while flight {holder.flight} was in hand")
        end = run.end_of(attempt)
        if end is None:
            breaches.append(f"{tail}: flight {attempt.flight} never ended, and no worker was killed")
        if holder is None or (end or 0) >= until:
            until, holder = end or attempt.start_ns, attempt
    return breaches


def _stranded(run: Run, worker: WorkerRecord) -> list[str]:
    number, killed, gone = worker.number, worker.killed_ns or 0, worker.gone_ns or worker.killed_ns or 0
    late = [a for a in run.attempts if a.worker == number and a.start_ns > gone]
    breaches = [f"worker {number} began flight {a.flight} after its death" for a in late]
    done = {a.flight for a in run.attempts if a.done}
    breaches += [
        f"flight {a.flight} was in worker {number}'s hands and was never finished"
        for a in run.attempts
        if a.worker == number and not a.done and a.flight not in done
    ]
    if not any(a.start_ns > killed and a.worker != number for a in run.attempts):
        breaches.append(f"no worker continued after worker {number} died")
    return breaches
