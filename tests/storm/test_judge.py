"""The judge of a storm's depot finds what is wrong: each case is a history with one contradiction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pelton import Outcome
from tests.storm.cast_depot import DEPOT, FORKS, DepotEvent
from tests.storm.checks_depot import DepotHistory
from tests.storm.notes import Note

S = 10**9


def event(kind: Any, at: float, pid: int = 1, id: str = "1", attempt: int = 1) -> DepotEvent:
    return DepotEvent(kind=kind, queue=DEPOT, id=id, at=int(at * S), pid=pid, job="narrow", attempt=attempt)


def ran(id: str, since: float, until: float) -> list[DepotEvent]:
    return [event("begins", since, id=id), event("start", since, id=id), event("end", until, id=id)]


def note(kind: Any, at: float, name: str = "", number: float = 0) -> Note:
    return Note(kind=kind, at=int(at * S), who="x", what=DEPOT, name=name, number=int(number))


def ordered(id: str, at: float = 0, delay: float = 0) -> list[Note]:
    return [note("ordering", at), note("ordered", at, f"{id}=narrow:3:{delay}", at * S)]


def ended(id: str, state: Any = "completed", attempt: int = 1, result: int = 9) -> Outcome:
    return Outcome(
        id=id,
        job="narrow",
        state=state,
        attempt=attempt,
        worker="",
        enqueued_at=0,
        started_at=0,
        finished_at=0,
        result=msgspec.Raw(str(result).encode()),
    )


CASES: dict[str, tuple[list[Note], list[DepotEvent], list[Outcome]]] = {
    "": (ordered("1"), ran("1", 1, 2), [ended("1")]),
    "has not ended": (ordered("1"), ran("1", 1, 2), []),
    "nobody knows of": ([], ran("1", 1, 2), [ended("1")]),
    "which nobody asked for": (ordered("1"), ran("1", 1, 2), [ended("1", "expired")]),
    "1 attempts of 1; 0 were begun": (ordered("1"), [], [ended("1", "completed")]),
    "0 attempts of 1; 1 were begun": (ordered("1"), ran("1", 1, 2), [ended("1", attempt=0)]),
    "2 ended": (ordered("1"), ran("1", 1, 2) * 2, [ended("1")]),
    "with errors of []": (ordered("1"), ran("1", 1, 2), [ended("1", "failed")]),
    "it has completed with -1": (ordered("1"), ran("1", 1, 2), [ended("1", result=-1)]),
    "3 of 2 ran": (
        [*ordered("1"), *ordered("2"), *ordered("3")],
        [*ran("1", 1, 4), *ran("2", 2, 4), *ran("3", 3, 4)],
        [ended(id) for id in "123"],
    ),
    "shown as running": ([*ordered("1"), note("seen", 0.1, "1=running", 0.2 * S)], ran("1", 1, 2), [ended("1")]),
    "shown as held": ([*ordered("1"), note("seen", 1.1, "1=held", 1.2 * S)], ran("1", 1, 2), [ended("1")]),
    "before its delay": (ordered("1", delay=1.5), ran("1", 1, 2), [ended("1")]),
}


@pytest.mark.parametrize("wrong", CASES)
def test_what_is_wrong_is_found(wrong: str) -> None:
    notes, events, outcomes = CASES[wrong]
    found = list(DepotHistory(notes, events, {DEPOT: outcomes, FORKS: []}).contradictions())
    assert len(found) == bool(wrong), found
    assert all(wrong in one for one in found)


@pytest.mark.parametrize("before", [[], ["interrupted"], ["end", "interrupted"], ["interrupted", "end"]])
def test_what_was_given_back_may_start_again_as_the_same_attempt_in_the_same_process(before: list[str]) -> None:
    given_back = [event("begins", 1), event("start", 1), *(event(kind, 2 + n / 9) for n, kind in enumerate(before))]
    for again, problems in ((ran("1", 3, 4), 0), ([*ran("1", 3, 4), *ran("1", 5, 6)], 1)):
        history = DepotHistory(ordered("1"), [*given_back, *again], {DEPOT: [ended("1")], FORKS: []})
        assert len(list(history.contradictions())) == problems
