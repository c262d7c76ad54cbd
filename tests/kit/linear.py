"""Checks whether a recorded history of a bucket is linearizable, after Wing and Gong, with Lowe's caching. Pure.

Every client records each operation with the moments at which it was called and answered, on one clock of the machine.
A history is linearizable if every operation can be assigned one moment between its two, such that, executed one by one
in the order of these moments, each would have got its recorded answer. The checker searches such an order for each key
separately (which suffices: linearizability is local), and caches which sets of done operations led to which state, so
that no path is searched twice.

A key is a register with revisions: its state is its last revision and its value, or no value. An operation whose
client was killed, or whose answer was lost, may take effect at any time after its call, or never. Its revision, and
that of a delete, whose answer contains none, is known only if a client has read what was written (so every write of
a history has a unique value), or was refused because of it.

In addition to the order of each key, :func:`check_history` compares revisions with real time over all keys: a write
that was answered before another was called has the smaller revision. And no two writes have the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import msgspec

Kind = Literal["put", "create", "update", "delete", "get"]
Answer = Literal["done", "refused", "missing", "lost"]
NEVER: Final = 1 << 62


class Op(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An operation of one client on a key, when, and its answer.

    ``value`` is the value written or read; each write has its own. ``expected`` is the revision that an update, or a
    delete (0: none), expects; ``revision`` that of a write's answer, or that a get found. The ``answer`` is ``refused``
    if the condition did not hold (``revision`` is then the last one, if known), ``missing`` for a get that
    found nothing, ``lost`` without an answer.
    """

    client: str
    key: str
    kind: Kind
    called: int
    returned: int = NEVER
    value: str = ""
    expected: int = 0
    revision: int = 0
    answer: Answer = "lost"


class NotLinearizable(NamedTuple):
    """Why a history is not linearizable: what is wrong, and the operations concerned."""

    key: str
    why: str
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        lines = (f"  {op}" for op in self.ops)
        return "\n".join([f"key {self.key!r}: {self.why}", *lines])


class State(NamedTuple):
    """A key: the last revision, or a bound just below it if unknown; its value, None if it has none."""

    revision: float
    value: str | None


_NOTHING: Final = State(0, None)


def check_history(history: Iterable[Op]) -> list[NotLinearizable]:
    """Return the violations of linearizability in a history."""
    ops = list(history)
    by_key: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        by_key[op.key].append(op)
    broken = [found for key, of_key in by_key.items() if (found := _check_key(key, of_key)) is not None]
    return broken + _check_revisions(ops)


def _check_revisions(ops: Sequence[Op]) -> list[NotLinearizable]:
    """Compare the revisions of answered writes with each other and with real time."""
    writes = sorted((op for op in ops if op.answer == "done" and op.kind != "get" and op.revision), key=_by_revision)
    for one, other in pairwise(writes):
        if one.revision == other.revision:
            return [NotLinearizable(one.key, "two writes have the same revision", (one, other))]
    latest: Op | None = None
    for op in reversed(writes):
        if latest is not None and latest.returned < op.called:
            return [NotLinearizable(op.key, "a later write has a smaller revision", (latest, op))]
        if latest is None or op.returned < latest.returned:
            latest = op
    return []


def _by_revision(op: Op) -> int:
    return op.revision


def _check_key(key: str, ops: Sequence[Op]) -> NotLinearizable | None:
    """Search for an order of one key's operations that explains all answers."""
    ordered = sorted(ops, key=lambda op: op.called)
    revisions = {op.value: op.revision for op in ordered if op.kind == "get" and op.answer == "done"}
    answered = sum(1 << index for index, op in enumerate(ordered) if op.answer != "lost")
    seen: set[tuple[int, State]] = {(0, _NOTHING)}
    paths = [(0, _NOTHING)]
    best = 0
    while paths:
        done, state = paths.pop()
        if (done & answered).bit_count() > (best & answered).bit_count():
            best = done
        if done & answered == answered:
            return None
        for index, op in _next_ops(ordered, done):
            after = _step(state, op, revisions)
            way = (done | 1 << index, after) if after is not None else None
            if way is not None and way not in seen:
                seen.add(way)
                paths.append(way)
    left = tuple(op for index, op in enumerate(ordered) if not best >> index & 1 and op.answer != "lost")
    return NotLinearizable(
        key, f"after {best.bit_count()} of {len(ordered)} operations none of these can come next", left
    )


def _next_ops(ordered: Sequence[Op], done: int) -> list[tuple[int, Op]]:
    """Return the operations that may come next: called before any remaining one was answered."""
    found: list[tuple[int, Op]] = []
    horizon = NEVER
    for index, op in enumerate(ordered):
        if op.called > horizon:
            break
        if not done >> index & 1:
            found.append((index, op))
            horizon = min(horizon, op.returned)
    # The earliest answer most likely comes next: the last item is popped first.
    return sorted(((index, op) for index, op in found if op.called <= horizon), key=lambda one: -one[1].returned)


def _step(state: State, op: Op, revisions: dict[str, int]) -> State | None:
    """Return the state after an operation, None if it would have got another answer."""
    if op.kind == "get":
        if op.answer == "lost":
            return state
        return state if _explains(state, op) else None
    holds = _condition(state, op)
    if op.answer == "refused":
        return None if holds else _told(state, op.revision)
    if op.answer == "lost" and not holds:
        return state
    return _written(state, op, revisions) if holds else None


def _explains(state: State, op: Op) -> bool:
    if op.answer == "missing":
        return state.value is None
    return state.value == op.value and state.revision == op.revision


def _told(state: State, revision: int) -> State | None:
    """Return the state with the last revision known from a refusal."""
    if not revision or revision == state.revision:
        return state
    return State(revision, state.value) if state.revision % 1 and revision > state.revision else None


def _condition(state: State, op: Op) -> bool:
    """Whether the condition of a write holds."""
    if op.kind == "create":
        return state.value is None
    if op.kind == "update" or op.expected:
        return state.revision == op.expected
    return True


def _written(state: State, op: Op, revisions: dict[str, int]) -> State | None:
    value = None if op.kind == "delete" else op.value
    revision: float = op.revision or (revisions.get(op.value, 0) if value is not None else 0)
    if not revision:
        # The revision is unknown, so no operation can expect it; the next one is larger.
        revision = int(state.revision) + 0.5
    return State(revision, value) if revision > state.revision or (not op.revision and revision % 1) else None
