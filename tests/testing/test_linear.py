"""The linearizability checker: accepts histories with a serial order, and detects those without."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.kit.linear import Op, check_history


def op(kind: Any, called: int, returned: int, **fields: Any) -> Op:
    return Op(client="c", key=fields.pop("key", "a"), kind=kind, called=called, returned=returned, **fields)


def put(called: int, returned: int, value: str, revision: int, **fields: Any) -> Op:
    return op("put", called, returned, value=value, revision=revision, answer="done", **fields)


def get(called: int, returned: int, value: str, revision: int, **fields: Any) -> Op:
    return op("get", called, returned, value=value, revision=revision, answer="done", **fields)


def missing(called: int, returned: int) -> Op:
    return op("get", called, returned, answer="missing")


def lost(kind: Any, called: int, **fields: Any) -> Op:
    return Op(client="x", key="a", kind=kind, called=called, **fields)


GOOD = {
    "one after the other": [put(0, 1, "1", 1), get(2, 3, "1", 1), put(4, 5, "2", 2), get(6, 7, "2", 2)],
    "a get beside a put sees the old": [put(0, 1, "1", 1), put(2, 9, "2", 2), get(3, 4, "1", 1), get(5, 6, "2", 2)],
    "two puts beside each other, the second called is first": [
        put(0, 9, "1", 2),
        put(1, 8, "2", 1),
        get(10, 11, "1", 2),
    ],
    "a create that was refused, one that was not": [
        op("create", 0, 1, value="1", revision=1, answer="done"),
        op("create", 2, 3, value="2", answer="refused"),
        op("delete", 4, 5, answer="done"),
        missing(6, 7),
        op("create", 8, 9, value="3", revision=3, answer="done"),
    ],
    "an update from the last revision, one from an older": [
        put(0, 1, "1", 1),
        op("update", 2, 3, value="2", expected=1, revision=2, answer="done"),
        op("update", 4, 5, value="3", expected=1, answer="refused"),
        get(6, 7, "2", 2),
    ],
    "what was lost has happened": [lost("put", 0, value="1"), missing(1, 2), get(3, 4, "1", 1), put(5, 6, "2", 2)],
    "what was lost has not happened": [put(0, 1, "1", 1), lost("delete", 2), get(3, 4, "1", 1)],
    "a lost delete explains": [put(0, 1, "1", 1), lost("delete", 2), missing(3, 4), put(5, 6, "2", 3)],
    "a lost update can be updated": [
        put(0, 1, "1", 1),
        lost("update", 2, value="2", expected=1),
        get(3, 4, "2", 2),
        op("update", 5, 6, value="3", expected=2, revision=3, answer="done"),
    ],
    "a refusal tells the revision of a delete": [
        put(0, 1, "1", 1),
        op("delete", 2, 3, answer="done"),
        op("update", 4, 5, value="2", expected=1, answer="refused", revision=3),
        op("update", 6, 7, value="3", expected=3, answer="done", revision=4),
    ],
    "two deletes that nobody numbered": [
        put(0, 1, "1", 1),
        op("delete", 2, 3, answer="done"),
        op("delete", 4, 5, answer="done"),
        missing(6, 7),
        op("create", 8, 9, value="2", revision=4, answer="done"),
    ],
}

BAD = {
    "a stale get": [put(0, 1, "1", 1), put(2, 3, "2", 2), get(4, 5, "1", 1)],
    "a get of what was never written": [put(0, 1, "1", 1), get(2, 3, "7", 1)],
    "a get of another revision": [put(0, 1, "1", 1), get(2, 3, "1", 2)],
    "a lost put that comes and goes": [lost("put", 0, value="1"), get(1, 2, "1", 1), missing(3, 4)],
    "a value seen before it was called": [get(0, 1, "1", 1), put(2, 3, "1", 1)],
    "two creates": [
        op("create", 0, 9, value="1", revision=1, answer="done"),
        op("create", 1, 8, value="2", revision=2, answer="done"),
    ],
    "a create refused where nothing was": [op("create", 0, 1, value="1", answer="refused")],
    "two updates from one revision": [
        put(0, 1, "1", 1),
        op("update", 2, 9, value="2", expected=1, revision=2, answer="done"),
        op("update", 3, 8, value="3", expected=1, revision=3, answer="done"),
    ],
    "an update refused from the last revision": [
        put(0, 1, "1", 1),
        op("update", 2, 3, value="2", expected=1, answer="refused"),
    ],
    "a refusal that tells another revision": [
        put(0, 1, "1", 1),
        op("update", 2, 3, value="2", expected=7, answer="refused", revision=2),
    ],
    "an acknowledged put that is gone": [put(0, 1, "1", 1), missing(2, 3)],
    "two gets in the wrong order": [
        put(0, 1, "1", 1),
        put(2, 20, "2", 2),
        get(3, 4, "2", 2),
        get(5, 6, "1", 1),
    ],
    "a conditional delete from an older revision": [
        put(0, 1, "1", 1),
        put(2, 3, "2", 2),
        op("delete", 4, 5, expected=1, answer="done"),
    ],
    "the same revision twice": [put(0, 9, "1", 1), put(1, 8, "2", 1, key="b")],
    "a smaller revision later": [put(0, 1, "1", 2), put(2, 3, "2", 1, key="b")],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_what_can_be_explained_is_taken(history: list[Op]) -> None:
    assert check_history(history) == []


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_what_cannot_be_explained_is_found(history: list[Op]) -> None:
    found = check_history(history)
    assert found
    assert "key" in str(found[0])


class Register:
    """A correct register, used by clients that overlap: each operation takes effect at a moment within its time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.revision, self.value = 0, ""
        self.known = [0, 0]

    def history(self, count: int) -> list[Op]:
        return [self._one(number * 10) for number in range(1, count)]

    def _one(self, moment: int) -> Op:
        draw = self.random
        kind: Any = draw.choice(["put", "create", "update", "delete", "get"])
        asked: dict[str, Any] = {"called": moment - draw.randrange(40), "returned": moment + draw.randrange(40)}
        if kind == "get":
            answer = {"answer": "done", "value": self.value, "revision": self.revision} if self.value else {}
            self.known += [self.revision] if self.value else []
            return op(kind, **asked, **(answer or {"answer": "missing"}))
        if kind == "update":
            asked["expected"] = draw.choice(self.known[-2:])
        if kind != "delete":
            asked["value"] = f"v{moment}"
        holds = {"create": not self.value, "update": asked.get("expected") == self.revision}.get(kind, True)
        if not holds:
            return op(kind, **asked, answer="refused")
        self.revision += draw.choice([1, 2])
        self.value = asked.get("value", "")
        if draw.random() < 0.1:
            return Op(client="x", key="a", kind=kind, **{**asked, "returned": 1 << 62})
        self.known += [] if kind == "delete" else [self.revision]
        return op(kind, **asked, answer="done", revision=0 if kind == "delete" else self.revision)


@pytest.mark.parametrize("seeds", [pytest.param(range(6), id="short"), pytest.param(range(6, 60), id="long")])
def test_histories_of_a_right_register_pass_and_of_a_wrong_one_do_not(seeds: range) -> None:
    for seed in seeds:
        _check_right_and_wrong(seed)


def _check_right_and_wrong(seed: int) -> None:
    history = Register(seed).history(60)
    assert check_history(history) == []
    reads = [index for index, one in enumerate(history) if one.kind == "get" and one.answer == "done"]
    for index in reads:
        # A read that claims a value from long before, or one that was never written.
        forged = msgspec.structs.replace(history[index], value="nobody's")
        assert check_history([*history[:index], forged, *history[index + 1 :]])
