"""What must be true after a storm: the journals of all processes, checked against the resulting store."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.crash.queue.worker import MAX_ATTEMPTS
from tests.kit.deliveries import Ending, Step, check_deliveries, check_tokens
from tests.kit.judge.history import JobEvent, check_history
from tests.storm import plan
from tests.storm.cast_keys import SLOTS
from tests.storm.notes import Note

_SETTLES: Final = {"ack", "term"}
_AT_ONCE: Final = {"lock": 1, "election": 1, "semaphore": SLOTS}


@dataclass
class Found:
    """The contents of the store at the end."""

    stored: Mapping[str, Mapping[int, str]]
    ledger: Mapping[str, int]
    effects: Sequence[JobEvent] = ()


@dataclass
class History:
    """The journals of the processes."""

    steps: Sequence[Step]
    notes: Sequence[Note]
    jobs: Sequence[JobEvent] = ()
    paused: set[str] = field(default_factory=set)
    """The workers of the queue that stood still for longer than a lease."""


def contradictions(history: History, found: Found) -> Iterator[str]:
    """Yield everything that contradicts the guarantees."""
    yield from (f"{note.who}: {note.name}" for note in history.notes if note.kind == "broken")
    yield from _deliveries(history.steps, found)
    yield from _swept(history, found.stored["swept"])
    for stream, name in plan.REMADE:
        yield from _remade(stream, name, history, found.stored[stream])
    yield from _transactions(history.notes, found)
    for what, slots in _AT_ONCE.items():
        yield from _holders(what, slots, history.notes)
    yield from _jobs(history, found.effects)


def _deliveries(steps: Sequence[Step], found: Found) -> Iterator[str]:
    promises = plan.promises()
    streams = {promise.stream for promise in promises}
    ending = Ending(
        stored={name: kept for name, kept in found.stored.items() if name in streams}, settled_away=plan.SETTLED_AWAY
    )
    for one in check_deliveries((step for step in steps if step.stream in streams), promises, ending):
        yield f"{one.rule}: {one.where}: {one.text}"


def _swept(history: History, kept: Mapping[int, str]) -> Iterator[str]:
    """A stream that is purged: missing messages are below a purge that was started, and purged ones are missing."""
    published = [step for step in history.steps if step.stream == "swept" and step.kind == "published"]
    begun = {step.name for step in history.steps if step.stream == "swept" and step.kind == "publishing"}
    yield from (
        f"swept: message {seq}, {name}, was published by nobody" for seq, name in kept.items() if name not in begun
    )
    sweeps = [note for note in history.notes if note.what == "swept"]
    for step in published:
        there = kept.get(step.seq)
        if there is not None and there != step.name:
            yield f"swept: {step.name} was stored as {step.seq}, there lies {there}"
        if there is None and not any(_sweeps(note, step) for note in sweeps if note.kind in ("purging", "removing")):
            yield f"swept: {step.name}, message {step.seq}, is gone though nobody removed it"
        if there is not None and any(_sweeps(note, step) for note in sweeps if note.kind in ("purged", "removed")):
            yield f"swept: {step.name}, message {step.seq}, is there though its removal was acknowledged"


def _sweeps(note: Note, step: Step) -> bool:
    if note.kind in ("removing", "removed"):
        return note.number == step.seq
    return step.seq < note.number and note.name in ("", step.subject)


def _remade(stream: str, name: str, history: History, kept: Mapping[int, str]) -> Iterator[str]:
    """A work queue whose consumer is deleted and recreated: each message is settled once, by its holder."""
    mine = sorted((step for step in history.steps if step.stream == stream), key=lambda step: step.at)
    yield from (f"{one.rule}: {one.where}: {one.text}" for one in check_tokens(stream, name, mine))
    begun = {step.seq for step in mine if step.kind == "settling" and step.how in _SETTLES}
    settled: dict[int, int] = {}
    for step in mine:
        if step.kind == "published" and kept.get(step.seq) != step.name and step.seq not in begun:
            yield f"{stream}: {step.name} is not at {step.seq}, where {kept.get(step.seq)} lies, and nobody acked it"
        if step.kind == "settled" and step.how in _SETTLES:
            if step.seq in settled:
                yield f"{stream}: message {step.seq} was settled twice"
            settled.setdefault(step.seq, step.at)
        if step.kind == "delivered" and step.began > settled.get(step.seq, step.began):
            yield f"{stream}: message {step.seq} was delivered with token {step.token} though it was settled"
    yield from _stale(stream, mine, _periods(stream, history.notes))


def _stale(stream: str, steps: Iterable[Step], deleted: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Acks that were confirmed although the consumer that delivered was deleted before they were sent."""
    delivered: dict[tuple[str, int], int] = {}
    asked: dict[tuple[str, int], int] = {}
    for step in steps:
        key = (step.who, step.token)
        if step.kind == "delivered":
            delivered[key] = step.at
        elif step.kind == "settling":
            asked[key] = step.at
        elif step.kind == "settled" and key in delivered and key in asked:
            place = bisect_left(deleted, (delivered[key], 0))
            if any(end < asked[key] for _, end in deleted[place:]):
                yield f"{stream}: an ack of message {step.seq}, token {step.token}, held though its consumer was gone"


def _periods(stream: str, notes: Iterable[Note]) -> list[tuple[int, int]]:
    """Return from when to when each deletion of a stream's consumer took place, if it was acknowledged."""
    found, begun = [], dict[str, int]()
    for note in notes:
        if note.what == stream and note.kind == "deleting":
            begun[note.who] = note.at
        elif note.what == stream and note.kind == "deleted":
            found.append((begun[note.who], note.at))
    return sorted(found)


def _transactions(notes: Sequence[Note], found: Found) -> Iterator[str]:
    """Row, messages and ack of a transaction exist together, or none of them does."""
    parts: dict[str, int] = defaultdict(int)
    for name in found.stored["log"].values():
        if "-t" in name:
            parts[name.rpartition("x")[0]] += 1
    of_each = max(parts.values(), default=0)
    for name in parts.keys() | found.ledger.keys():
        if parts.get(name, 0) != of_each or name not in found.ledger:
            yield f"transaction {name}: {parts.get(name, 0)} of {of_each} messages, and its row: {name in found.ledger}"
    waiting = found.stored["bills"]
    yield from (
        f"transaction {name}: its order {seq} is not settled" for name, seq in found.ledger.items() if seq in waiting
    )
    for note in notes:
        if (note.kind, note.name in found.ledger) in (("kept", False), ("undone", True)):
            yield f"transaction {note.name} was {note.kind}, its row is there: {note.name in found.ledger}"


def _holders(what: str, slots: int, notes: Iterable[Note]) -> Iterator[str]:
    """No token has two holders, there are never more holders than slots, and the tokens of one slot grow."""
    spans: dict[int, list[int]] = defaultdict(list)
    owners: dict[int, set[str]] = defaultdict(set)
    for note in notes:
        if note.kind == "holds" and note.what == what:
            spans[note.number].append(note.at)
            owners[note.number].add(note.who)
    yield from (f"{what}: token {token} was given to {sorted(who)}" for token, who in owners.items() if len(who) > 1)
    turns = [(at, change) for times in spans.values() for at, change in ((min(times), 1), (max(times) + 1, -1))]
    depth = 0
    for at, change in sorted(turns):
        depth += change
        if depth > slots:
            yield f"{what}: {depth} held it at {at}, there are {slots}"
    if slots == 1:
        ordered = sorted((min(times), token) for token, times in spans.items())
        for (_, before), (at, after) in pairwise(ordered):
            if after <= before:
                yield f"{what}: token {after} came at {at}, after token {before}"


def _jobs(history: History, effects: Sequence[JobEvent]) -> Iterator[str]:
    """Every job that was accepted has run, alone in its key, in order, and took effect once."""
    accepted: dict[str, str] = {}
    asked = answered = 0
    for note in history.notes:
        if note.kind == "enqueueing":
            asked += note.number
        elif note.kind == "enqueued":
            answered += note.number
            accepted.update(one.split("=") for one in note.name.split())
    surprises = {event.job: event.key for event in history.jobs if event.job not in accepted}
    if len(surprises) > asked - answered:
        yield f"{len(surprises)} jobs ran that nobody knows of, {asked - answered} enqueues were left unanswered"
    # A job's id is its place in the queue, which is the order in which the jobs of a key run.
    jobs = sorted((int(job), key) for job, key in {**accepted, **surprises}.items())
    enqueued = [JobEvent(kind="enqueued", key=key, job=str(number), at=number) for number, key in jobs]
    events = [*enqueued, *history.jobs, *effects]
    for one in check_history(events, max_attempts=MAX_ATTEMPTS, paused=history.paused):
        yield f"queue: {one.rule}: job {one.job} of {one.key}: {one.text}"
