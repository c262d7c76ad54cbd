"""The checker of queues: accepts valid histories, and detects forged ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pelton.testing.history import Contradiction
from pelton.testing.queue_history import HistoryEvent, HistoryEventKind, QueueHistory, broken, check_queue


def event(
    kind: HistoryEventKind, at: int, job: str = "", key: str = "k", name: str = "wash", **facts: Any
) -> HistoryEvent:
    return HistoryEvent(kind=kind, queue="shop", at=at, job=job, key=key, name=name, **facts)


def attempt(job: str, start: int, end: int | None, number: int = 1, key: str = "k") -> list[HistoryEvent]:
    facts = {"key": key, "worker": f"w{start}", "token": start, "attempt": number}
    ended = [] if end is None else [event("end", end, job, **facts)]
    return [event("start", start, job, **facts), *ended]


def ended(job: str, state: str = "completed", at: int = 1000) -> HistoryEvent:
    return event("outcome", at, job, state=state)


GOOD = [
    *(event("enqueued", 1, "1", unique="u"), event("enqueued", 2, "2"), event("enqueued", 3, "3", key="")),
    *attempt("1", 10, None),
    *attempt("1", 20, 30, 2),
    event("enqueued", 31, "4", key="other", unique="u"),
    *attempt("2", 40, 50),
    event("step", 41, "2", step="draw", value="7"),
    event("step", 42, "2", step="draw", value="7"),
    event("paused", 60, key="k", name=""),
    *attempt("3", 65, 70, key=""),
    event("resumed", 80, key="k", name=""),
    event("ended", 90, "3", state="failed"),
    *(ended("1"), ended("2"), ended("3", "failed"), event("letter", 1000, "3"), event("unfinished", 1000, "4")),
]


def rules(events: list[HistoryEvent], *, exclusive: bool = True) -> set[str]:
    return {found.rule for found in check_queue(events, exclusive=exclusive, max_attempts=3)}


def without(kind: str, job: str) -> list[HistoryEvent]:
    return [event for event in GOOD if (event.kind, event.job) != (kind, job)]


def test_a_good_history_has_no_contradiction_in_whatever_order_it_is_told() -> None:
    events = list(GOOD)
    random.Random(1).shuffle(events)
    assert check_queue(events, exclusive=True, max_attempts=3) == []
    assert check_queue([], exclusive=True, max_attempts=3) == []


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        (without("outcome", "1"), "lost"),
        (without("letter", "3"), "lost"),
        ([*GOOD, event("unfinished", 1000, "2")], "once"),
        ([*GOOD, *attempt("9", 100, 110)], "once"),
        ([*GOOD, ended("2", "cancelled")], "once"),
        ([*GOOD, event("ended", 90, "2", state="cancelled")], "once"),
        ([*GOOD, *attempt("3", 95, 99, key="")], "once"),
        ([*without("unfinished", "4"), ended("4")], "once"),
        ([*GOOD, *attempt("4", 95, 99, 4, key="other")], "attempts"),
        ([*GOOD, *attempt("1", 31, 39, 1)], "attempts"),
        ([*GOOD, event("step", 43, "2", step="draw", value="8")], "step"),
        ([*GOOD, *attempt("2", 45, 49)], "exclusive"),
        ([*GOOD, *attempt("3", 66, 69, key="")], "exclusive"),
        ([*GOOD, *attempt("2", 25, 26)], "exclusive"),
        ([*GOOD, *attempt("2", 15, 16)], "order"),
        ([*GOOD, event("unfinished", 1000, "1")], "unique"),
        ([*GOOD, *attempt("1", 55, 56, 3)], "unique"),
        ([*GOOD, *attempt("2", 70, 71)], "paused"),
        ([*GOOD, event("paused", 64, key="", name="wash")], "paused"),
        ([*GOOD, event("paused", 64, key="", name="")], "paused"),
        ([*GOOD, event("drained", 45, key="", name="")], "drained"),
        ([*GOOD, event("drained", 62, key="", name="")], "drained"),
    ],
)
def test_what_breaks_a_promise_is_found(events: list[HistoryEvent], rule: str) -> None:
    assert rule in rules(events)


def test_keys_of_a_queue_that_is_not_exclusive_hold_nothing_up() -> None:
    assert "exclusive" in rules([*GOOD, *attempt("2", 25, 26)])
    assert rules([*GOOD, *attempt("2", 25, 26)], exclusive=False) == set()


def test_queues_do_not_mix() -> None:
    other = [msgspec.structs.replace(one, queue="yard") for one in GOOD]
    assert check_queue([*GOOD, *other], exclusive=True, max_attempts=3) == []


def test_jobs_whose_enqueue_failed_may_be_there_or_not() -> None:
    history = [*GOOD, *attempt("9", 100, 110, key="x"), ended("9")]
    assert rules([*history, event("unsure", 99)]) == set()


def test_further_checks_are_made() -> None:
    def at_most_three(history: QueueHistory) -> Iterator[Contradiction]:
        yield from (broken("lost", one, "one too many") for one in list(history.enqueued.values())[3:])

    found = check_queue(GOOD, exclusive=True, max_attempts=3, more=[at_most_three])
    assert [one.job for one in found] == ["4"]
