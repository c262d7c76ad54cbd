"""The checker of deliveries: accepts valid histories, and detects forged ones."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.kit.deliveries import Ending, Promise, Step, StepKind, check_deliveries, check_tokens

C = Promise(stream="S", consumer="c", max_deliver=2, per_subject=1)
ALL = Promise(stream="S", consumer="c", ack_policy="all")


def published(seq: int, at: int, subject: str = "a") -> list[Step]:
    facts: dict[str, Any] = {"who": "p", "stream": "S", "subject": subject, "name": f"m{seq}"}
    return [Step(kind="publishing", at=at, **facts), Step(kind="published", at=at + 1, seq=seq, **facts)]


def step(kind: StepKind, seq: int, dseq: int, at: int, n: int = 1, how: str = "ack") -> Step:
    how = "" if kind == "delivered" else how
    facts: dict[str, Any] = {"who": "w", "stream": "S", "consumer": "c", "seq": seq, "dseq": dseq, "n": n}
    return Step(kind=kind, at=at, subject="b" if seq == 3 else "a", how=how, began=at - 1, **facts)


def acked(seq: int, dseq: int, at: int, n: int = 1) -> list[Step]:
    return [step("settling", seq, dseq, at, n), step("settled", seq, dseq, at + 1, n)]


STORED = {1: "m1", 2: "m2", 3: "m3", 4: "m4"}
GOOD = [
    *(*published(1, 1), *published(2, 3), *published(3, 5, "b"), *published(4, 7)),
    *(step("delivered", 1, 1, 10), step("delivered", 3, 2, 11)),
    step("delivered", 1, 3, 20, 2),
    *(step("settling", 1, 1, 21), step("refused", 1, 1, 22)),  # replaced
    *acked(1, 3, 23, 2),
    step("delivered", 2, 4, 30),
    step("settling", 2, 4, 31),  # killed: it may hold
    *(step("delivered", 3, 5, 40, 2), step("settling", 3, 5, 60), step("refused", 3, 5, 61)),  # given up meanwhile
    *(step("delivered", 4, 6, 50), *acked(4, 6, 51)),
]
ENDING = Ending(stored={"S": STORED}, told=[("S", "c", 3)])


def broken(steps: list[Step], ending: Ending = ENDING, promise: Promise = C) -> set[str]:
    return {found.rule for found in check_deliveries(steps, [promise], ending)}


def test_a_good_history_contradicts_nothing_in_whatever_order_it_is_told() -> None:
    steps = list(GOOD)
    random.Random(1).shuffle(steps)
    assert check_deliveries(steps, [C], ENDING) == []


FORGED: dict[str, tuple[str, list[Step], Ending]] = {
    "lost from the stream": ("stored", GOOD, Ending(stored={"S": {1: "m1", 2: "m2", 4: "m4"}}, told=ENDING.told)),
    "stored as another": ("stored", GOOD, Ending(stored={"S": {**STORED, 2: "m9"}}, told=ENDING.told)),
    "stored twice": ("stored", GOOD, Ending(stored={"S": {**STORED, 5: "m4"}}, told=ENDING.told)),
    "published by nobody": ("stored", GOOD, Ending(stored={"S": {**STORED, 5: "m5"}}, told=ENDING.told)),
    "delivered though settled": ("settled", [*GOOD, step("delivered", 4, 7, 70, 2)], ENDING),
    "settled twice": ("settled", [*GOOD, *acked(4, 6, 80)], ENDING),
    "never settled": ("lost", [s for s in GOOD if (s.seq, s.kind[:5]) != (4, "settl")], ENDING),
    "neither settled nor given up": ("lost", GOOD, Ending(stored={"S": STORED})),
    "given up twice": ("lost", GOOD, Ending(stored={"S": STORED}, told=[*ENDING.told, *ENDING.told])),
    "given up though settled": ("lost", GOOD, Ending(stored={"S": STORED}, told=[*ENDING.told, ("S", "c", 4)])),
    "delivered too often": ("count", [*GOOD, step("delivered", 2, 7, 70, 3)], ENDING),
    "counted down": ("count", [*GOOD, step("delivered", 2, 7, 70, 1)], ENDING),
    "a number for two": ("count", [*GOOD, step("delivered", 2, 6, 70, 2)], ENDING),
    "refused for nothing": ("late", [*GOOD, *(step("settling", 4, 6, 45), step("refused", 4, 6, 46))], ENDING),
    "out of order": ("order", [*GOOD, step("delivered", 2, 7, 70, 2)], ENDING),
    "two of a subject": ("order", [s for s in GOOD if (s.seq, s.kind) != (2, "settling")], ENDING),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_history_is_found_out(name: str) -> None:
    rule, steps, ending = FORGED[name]
    assert rule in broken(steps, ending)


def test_what_is_settled_may_leave_a_stream_that_drops_it() -> None:
    ending = Ending(stored={"S": {3: "m3"}}, told=ENDING.told, settled_away={"S"})
    assert broken(GOOD, ending) == set()
    assert "stored" in broken(GOOD, Ending(stored={"S": {}}, settled_away={"S"}))


def test_what_limits_removed_is_missed_by_nobody() -> None:
    steps = [s for s in GOOD if s.seq not in (1, 2) or s.kind == "published"]
    ending = Ending(stored={"S": {3: "m3", 4: "m4"}}, floor={"S": 3}, told=ENDING.told)
    assert broken(steps, ending) == set()


def test_an_ack_of_all_settles_what_was_delivered_before_it() -> None:
    steps = [
        *(*published(1, 1), *published(2, 3)),
        *(step("delivered", 1, 1, 10), step("delivered", 2, 2, 11), *acked(2, 2, 12)),
        *(step("settling", 1, 1, 20), step("refused", 1, 1, 21)),
    ]
    ending = Ending(stored={"S": {1: "m1", 2: "m2"}})
    assert broken(steps, ending, ALL) == set()
    assert broken([*steps, step("delivered", 1, 3, 30, 2)], ending, ALL) == {"settled"}


def _token(seq: int, token: int, began: int, at: int) -> Step:
    facts: dict[str, Any] = {"who": "w", "stream": "S", "consumer": "c", "seq": seq, "dseq": seq}
    return Step(kind="delivered", at=at, n=1, began=began, token=token, **facts)


@pytest.mark.parametrize(
    ("steps", "is_good"),
    [
        ([_token(1, 1, 0, 10), _token(2, 2, 11, 20), _token(1, 7, 21, 30)], True),
        ([_token(1, 2, 0, 10), _token(2, 1, 5, 20)], True),  # side by side: nobody can say which was first
        ([_token(1, 2, 0, 10), _token(2, 1, 11, 20)], False),
        ([_token(1, 2, 0, 10), _token(2, 2, 5, 20)], False),
    ],
)
def test_tokens_grow_also_over_consumers_that_are_made_again(steps: list[Step], is_good: bool) -> None:
    assert (list(check_tokens("S", "c", reversed(steps))) == []) is is_good
