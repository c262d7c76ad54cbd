"""The checker of queues: accepts valid histories, and detects forged ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pelton.queue import JobLimit, Rate
from tests.kit.judge.history import Contradiction
from tests.kit.judge.queue_history import (
    HistoryEvent,
    HistoryEventKind,
    PlannedNode,
    QueueHistory,
    Tolerance,
    broken,
    check_queue,
)


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


@pytest.mark.parametrize(
    ("kind", "late", "found"), [("lost", 5, set()), ("lost", 6, {"exclusive"}), ("end", 5, {"exclusive"})]
)
def test_a_lease_that_ran_out_may_be_noted_late(kind: HistoryEventKind, late: int, found: set[str]) -> None:
    """Where the machine starves the thread that keeps it; an attempt that has ended is judged by its own time."""
    first = [*attempt("1", 10, None), event(kind, 20 + late, "1", worker="w10", token=10, attempt=1)]
    history = [event("enqueued", 1, "1"), *first, *attempt("1", 20, 40, 2), ended("1")]
    tolerance = Tolerance(loses_within=5e-9)
    broken_ones = check_queue(history, exclusive=True, max_attempts=3, tolerance=tolerance)
    assert {one.rule for one in broken_ones} == found


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


# --- limits

TWO_AT_ONCE = JobLimit(concurrency=2)
FAST_WASH = JobLimit(job="wash", rate=Rate(1, per=1.0, burst=2))
S = 10**9


def free(job: str, start: int, end: int | None, name: str = "wash", key: str = "") -> list[HistoryEvent]:
    """Return a job that was enqueued at the beginning, ran, and completed."""
    ran = [msgspec.structs.replace(one, name=name) for one in attempt(job, start, end, key=key)]
    return [event("enqueued", 1, job, key=key, name=name), *ran, ended(job, at=10**12)]


def limited(limit: JobLimit, at: int, until: int = 0) -> list[HistoryEvent]:
    over = event("unlimited", until, limit=JobLimit(job=limit.job, per_key=limit.per_key))
    return [event("limited", at, limit=limit), *([over] if until else [])]


WITH_LIMITS = [
    *free("1", 10, 100),
    *free("2", 11, 100),
    *free("3", 12, 30),
    *limited(TWO_AT_ONCE, 40, until=80),
    *limited(FAST_WASH, 2 * S),
    *free("4", 41, None),
    *free("5", 50, 60),
    *free("6", 51, 59),
    *free("7", 61, 70),
    *(one for place, at in enumerate((3, 3, 4, 5)) for one in free(f"{10 + place}", at * S + place, at * S + 9)),
    *free("20", 3 * S + 5, 3 * S + 6, name="paint"),
]


def test_what_keeps_to_limits_breaks_no_promise() -> None:
    assert check_queue(WITH_LIMITS, exclusive=False, max_attempts=3) == []


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        (free("8", 52, 58), "limit"),
        (free("8", 55, None), "limit"),
        (limited(JobLimit(per_key=True, concurrency=1), 200) + free("8", 201, 210, key="k"), None),
        (
            limited(JobLimit(per_key=True, concurrency=1), 200)
            + free("8", 201, 210, key="k")
            + free("9", 205, 207, key="k"),
            "limit",
        ),
        (
            limited(JobLimit(per_key=True, concurrency=1), 200)
            + free("8", 201, 210, key="k")
            + free("9", 205, 207, key="l"),
            None,
        ),
        (
            limited(JobLimit(job="paint", concurrency=1), 200)
            + free("8", 201, 210, name="paint")
            + free("9", 202, 203, name="paint"),
            "limit",
        ),
        (
            limited(JobLimit(job="paint", per_key=True, concurrency=1), 200)
            + free("8", 201, 210, name="paint", key="k")
            + free("9", 202, 203, key="k"),
            None,
        ),
        (
            limited(JobLimit(job="paint", per_key=True, concurrency=1), 200)
            + free("8", 201, 210, name="paint", key="k")
            + free("9", 202, 203, name="paint", key="k"),
            "limit",
        ),
        (free("8", 5 * S + 100, 5 * S + 200), "rate"),
        (free("8", 5 * S + 100, 5 * S + 200, name="paint"), None),
        ([event("stepped", 5 * S + 50, seconds=2.0), *free("8", 5 * S + 100, 5 * S + 200)], None),
    ],
)
def test_limits_that_are_not_kept_are_found(more: list[HistoryEvent], rule: str | None) -> None:
    assert rules([*WITH_LIMITS, *more], exclusive=False) == ({rule} if rule else set())


def test_what_workers_have_not_heard_of_yet_is_no_limit() -> None:
    history = [*limited(TWO_AT_ONCE, 10), *(one for job in "123" for one in free(job, 12 + int(job), 20))]
    assert rules(history, exclusive=False) == {"limit"}
    assert not check_queue(history, exclusive=False, max_attempts=3, tolerance=Tolerance(hears_within=1.0))


# --- priorities


def ranked(*starts: int, waiting: int = 1) -> list[HistoryEvent]:
    """Return a history whose jobs start one after the other, by their priorities; ``waiting`` of 0 start at the end."""
    found: list[HistoryEvent] = []
    for place, priority in enumerate([*starts, *[0] * waiting]):
        [enqueued, start, end, outcome] = free(f"{place}", 10 + 2 * place, 11 + 2 * place)
        one = {"worker": "w", "token": place + 1}
        start, end = (msgspec.structs.replace(event, **one) for event in (start, end))
        found += [msgspec.structs.replace(enqueued, priority=priority), start, end, outcome]
    return found


def bypassed(history: list[HistoryEvent], held: int = 0) -> set[str]:
    tolerance = Tolerance(bypass=3, held=held)
    return {one.rule for one in check_queue(history, exclusive=False, max_attempts=3, tolerance=tolerance)}


def test_a_lower_priority_waits_for_some_jobs_and_not_for_more() -> None:
    assert bypassed(ranked(2, 1, 3)) == set()
    assert bypassed(ranked(2, 1, 3, 3)) == {"bypass"}
    assert bypassed(ranked(2, 1, 0, 3, 3)) == set()
    assert bypassed(ranked(2, 2, 0, 2, 0, 2, 2, 1)) == {"bypass"}, "priority 1 has waited for four"
    assert rules(ranked(2, 1, 3, 3), exclusive=False) == set(), "it was not asked for"


def test_jobs_that_something_else_may_hold_up_count_for_nothing() -> None:
    history = ranked(3, 3, 3, 3)
    assert bypassed([*history, event("paused", 2, key="x"), event("resumed", 3, key="x")]) == set()
    assert bypassed([*history, *limited(JobLimit(concurrency=9), 2)]) == set()
    assert bypassed(history, held=1) == set()
    assert bypassed(ranked(3, 3, 3, 3, waiting=2), held=1) == {"bypass"}


# --- turns of tenants


def of_tenants(starts: str, waiting: str = "b", **facts: Any) -> list[HistoryEvent]:
    """Return a history whose jobs start one after the other, by their tenants; those of ``waiting`` at the end."""
    found: list[HistoryEvent] = []
    for place, tenant in enumerate(starts + waiting):
        [enqueued, start, end, outcome] = free(f"{place}", 10 + 2 * place, 11 + 2 * place)
        one = {"worker": "w", "token": place + 1}
        start, end = (msgspec.structs.replace(event, **one) for event in (start, end))
        found += [msgspec.structs.replace(enqueued, tenant=tenant.strip(), **facts), start, end, outcome]
    return found


def unfair(history: list[HistoryEvent], **tolerance: Any) -> set[str]:
    allowed = Tolerance(**{"turns": 0, **tolerance})
    return {one.rule for one in check_queue(history, exclusive=False, max_attempts=3, tolerance=allowed)}


def weighed(tenant: str, weight: int, at: int) -> list[HistoryEvent]:
    return [event(kind, at, key="", tenant=tenant, weight=weight) for kind in ("weighing", "weighed")]


def test_tenants_start_in_turns() -> None:
    assert unfair(of_tenants("abababaaaa", waiting="")) == set(), "nobody else waits"
    assert unfair(of_tenants("aaba")) == set(), "two, until it is in time"
    assert unfair(of_tenants("aaa")) == {"turns"}
    assert unfair(of_tenants("aaa"), turns=1) == set()
    assert unfair(of_tenants("acac")) == set(), "each of the others counts by itself"
    assert unfair(of_tenants("  a ")) == {"turns"}, "those without a tenant are one more"
    assert unfair(of_tenants("aaa", waiting=" ")) == {"turns"}
    assert unfair(of_tenants("aaa"), turns=None) == set(), "it was not asked for"
    assert unfair(of_tenants("aaa", priority=2)) == {"turns"}


def test_tenants_have_turns_by_their_weights() -> None:
    assert unfair([*of_tenants("aaaaa"), *weighed("a", 4, 1)]) == set()
    assert unfair([*of_tenants("aaaaaa"), *weighed("a", 4, 1)]) == {"turns"}
    assert unfair([*of_tenants("aaa"), *weighed("a", 4, 1), *weighed("a", 1, 2)]) == {"turns"}
    assert unfair([*of_tenants("aaaaaa"), *weighed("a", 8, 1), *weighed("b", 2, 2)]) == {"turns"}
    changed = [*of_tenants("aaa"), event("weighing", 2, key="", tenant="a", weight=9)]
    assert unfair(changed) == set(), "nobody knows which weight holds"


def test_tenants_that_something_else_may_hold_up_count_for_nothing() -> None:
    history = of_tenants("aaa")
    assert unfair([*history, event("paused", 2, key="x"), event("resumed", 3, key="x")]) == set()
    assert unfair(history, held=1) == set()
    assert unfair(of_tenants("aaa", waiting="bb"), held=1) == {"turns"}
    assert unfair(history, hears_within=1.0) == set()
    [*others, last] = [one for one in history if one.kind == "enqueued"]
    ranks = [msgspec.structs.replace(last, priority=1) if one == last else one for one in history]
    assert others
    assert unfair(ranks) == set(), "another priority has turns of its own"


# --- flows

PLAN = (PlannedNode(), PlannedNode(), PlannedNode(after=(0, 1)), PlannedNode(after=(1,), runs_anyway=True))


def of_node(node: int, job: str, start: int, end: int | None, given: str = "[]") -> list[HistoryEvent]:
    facts = {"flow": "f", "node": node, "value": given}
    [began, *over] = attempt(job, start, end, key="")
    return [
        msgspec.structs.replace(began, **facts),
        *(msgspec.structs.replace(one, **facts, state="returned") for one in over),
    ]


def said(node: int, job: str, state: str = "completed", by: int = -1) -> HistoryEvent:
    return event("node", 10**6, job, key="", flow="f", node=node, state=state, added_by=by)


def result(job: str, value: str = "", state: str = "completed") -> HistoryEvent:
    return event("outcome", 10**6, job, key="", flow="f", state=state, value=value)


def flow_ended(state: str = "completed") -> HistoryEvent:
    return event("flow ended", 10**6, key="", flow="f", state=state)


BEGUN = [event("flow", 1, key="", flow="f", plan=PLAN)]
FIRST = [*of_node(0, "f0", 10, 20), *of_node(1, "f1", 10, 30), result("f0", "7"), result("f1", "8")]
LAST = [*of_node(2, "f2", 40, 50, "[7,8]"), *of_node(3, "f3", 40, 50, "[8]"), result("f2", "9"), result("f3", "10")]
SAID = [said(node, f"f{node}") for node in range(4)]
FLOW = [*BEGUN, *FIRST, *LAST, *SAID, flow_ended()]
REDRIVEN = [
    *(*BEGUN, *of_node(0, "f0", 10, 20), result("f0", "7"), *of_node(1, "f1", 10, 30), result("f1", state="failed")),
    *(*of_node(3, "f3", 40, 50, "[null]"), result("f3", "10"), event("letter", 60, "f1"), event("redriven", 60, "f1")),
    *(event("enqueued", 61, "r1", key=""), *of_node(1, "r1", 70, 80), result("r1", "8")),
    *(*of_node(2, "f2", 90, 95, "[7,8]"), result("f2", "9")),
    *(said(0, "f0"), said(1, "r1"), said(2, "f2"), said(3, "f3"), flow_ended()),
]
CANCELLED = [
    *(*BEGUN, *FIRST, event("flow cancelled", 15, key="", flow="f")),
    *(result("f2", state="cancelled"), result("f3", state="cancelled")),
    *(said(0, "f0"), said(1, "f1"), said(2, "f2", "cancelled"), said(3, "f3", "cancelled"), flow_ended("cancelled")),
]


GROWN = [
    event("flow", 1, key="", flow="f", plan=(PlannedNode(adds=2), PlannedNode(after=(0,)))),
    *(*of_node(0, "f0", 10, 20), *of_node(2, "f2", 30, 40), *of_node(3, "f3", 50, 60, "[8]")),
    *(*of_node(1, "f1", 70, 80, "[7]"), *(result(f"f{node}", value) for node, value in enumerate("7980"))),
    *(said(0, "f0"), said(1, "f1"), said(2, "f2", by=0), said(3, "f3", by=0), flow_ended()),
]


@pytest.mark.parametrize("history", [FLOW, REDRIVEN, CANCELLED, GROWN])
def test_flows_that_go_as_planned_break_no_promise(history: list[HistoryEvent]) -> None:
    assert check_queue(history, exclusive=True, max_attempts=3) == []


def replaced(history: list[HistoryEvent], old: HistoryEvent, *new: HistoryEvent) -> list[HistoryEvent]:
    assert old in history
    return [*(one for one in history if one != old), *new]


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([*FLOW, *of_node(2, "f9", 60, 70, "[7,8]"), result("f9", "1")], "ran as jobs f2, f9"),
        ([*FLOW, *of_node(3, "f3", 25, 26, "[8]")], "node 3 started before node 1 had ended"),
        (replaced(FLOW, result("f1", "8"), result("f1", state="failed"), event("letter", 60, "f1")), "never completed"),
        (replaced(REDRIVEN, event("redriven", 60, "f1")), "node 1 ran as jobs f1, r1"),
        ([*BEGUN, *FIRST, *of_node(2, "f2", 40, 50, "[8,7]"), *SAID], "given 8 as the result of node 0"),
        ([*BEGUN, *FIRST, *of_node(2, "f2", 40, 50, "[7]"), *SAID], "node 2 was given ['7']"),
        ([*BEGUN, *FIRST, *of_node(2, "f2", 40, 50, "[7,null]"), *SAID], "given null"),
        ([*CANCELLED, *of_node(3, "f3", 40, 50, "[8]")], "was waiting for node 1 when its flow was cancelled"),
        (replaced(FLOW, flow_ended()), "has not ended"),
        (replaced(FLOW, flow_ended(), flow_ended("running")), "has not ended"),
        (replaced(FLOW, flow_ended(), flow_ended("failed")), "flow f is failed"),
        (replaced(FLOW, said(2, "f2")), "flow f is completed, and its"),
        (replaced(FLOW, said(2, "f2"), said(2, "f2", "failed")), "node 2 is failed, and its job completed"),
        (replaced(FLOW, said(2, "f2"), said(2, "f5")), "node 2 is completed, and its job lost"),
        (replaced(GROWN, said(3, "f3", by=0)), "flow f is completed, and its"),
        ([*GROWN, *of_node(2, "f2", 15, 25)], "node 2 started before node 0 had ended"),
        ([*GROWN, *of_node(3, "f3", 35, 37, "[8]")], "node 3 started before node 2 had ended"),
        ([*GROWN, *of_node(1, "f1", 55, 57, "[7]")], "node 1 started before node 3 had ended"),
        ([*GROWN, *of_node(3, "f3", 55, 57, "[7]")], "given 7 as the result of node 2"),
    ],
)
def test_flows_that_go_otherwise_are_found(history: list[HistoryEvent], text: str) -> None:
    found = check_queue(history, exclusive=False, max_attempts=3)
    assert any(one.rule == "flow" and text in one.text for one in found), found


# --- turns of keys


def keyed(*starts: str, waiting: str = "", priorities: dict[str, int] | None = None) -> list[HistoryEvent]:
    """Return a history of an exclusive queue: keys whose jobs start one after the other, and at last those waiting."""
    found: list[HistoryEvent] = []
    for place, key in enumerate([*starts, *waiting]):
        [enqueued, start, end, outcome] = free(f"{place}", 10 + 2 * place, 11 + 2 * place, key=key)
        one = {"worker": "w", "token": place + 1}
        start, end = (msgspec.structs.replace(event, **one) for event in (start, end))
        enqueued = msgspec.structs.replace(enqueued, priority=(priorities or {}).get(key, 0))
        found += [enqueued, start, end, outcome]
    return found


def unfair_to_keys(history: list[HistoryEvent], **fields: int) -> set[str]:
    tolerance = Tolerance(**fields)
    return {one.rule for one in check_queue(history, exclusive=True, max_attempts=3, tolerance=tolerance)}


def test_a_key_with_many_jobs_has_no_more_turns_than_it_may() -> None:
    assert unfair_to_keys(keyed("a", "a", "b"), key_turns=2) == set()
    assert unfair_to_keys(keyed("a", "b", "a", "b", "a", "a"), key_turns=1) == set()
    assert unfair_to_keys(keyed("a", "a", "a", "b"), key_turns=2) == {"turns"}
    assert unfair_to_keys(keyed("a", "a", "a", "b")) == set(), "it was not asked for"
    assert unfair_to_keys(keyed("a", "a", "a", "b", priorities={"a": 2}), key_turns=2) == set(), (
        "it has a higher priority"
    )
    paused = [event("paused", 2, key="b"), event("resumed", 15, key="b")]
    assert unfair_to_keys([*keyed("a", "a", "a", "b"), *paused], key_turns=2) == set()


def test_a_key_of_a_lower_priority_waits_for_some_jobs_and_not_for_more() -> None:
    priorities = dict.fromkeys("wxyz", 3)
    assert unfair_to_keys(keyed(*"wxy", waiting="b", priorities=priorities), bypass=3) == set()
    assert unfair_to_keys(keyed(*"wxyz", waiting="b", priorities=priorities), bypass=3) == {"bypass"}
    assert unfair_to_keys(keyed(*"wxbyz", waiting="b", priorities=priorities), bypass=3) == set()
