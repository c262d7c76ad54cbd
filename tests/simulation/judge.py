"""Which promises a history breaks. Pure: it reads what the played functions wrote, never what the queue keeps.

- ``holder``: the attempts of a job, and in an exclusive queue those of a key, do not overlap, and their tokens grow. An
  attempt whose process was killed is over then; one whose process was stopped for long may learn late that it was
  replaced, but within a lease, and has no effect.
- ``outcome``: a job that was accepted ends, once; it completes only if its function has returned, fails only after all
  its attempts or because it says so, is cancelled only if somebody asked for it; it does not start afterwards.
- ``limit``: no more attempts run at a time than a limit allows.
- ``unique``: no two jobs of one unique name are unfinished at once.
- ``order``: jobs of a key of an exclusive queue start in the order in which they were enqueued.
- ``step``: what a step has returned, it returns in all attempts, and it is not done again.
- ``nap``: a job that sleeps does not go on too early.
- ``flow``: a job of a flow starts when those before it have returned.
- ``schedule``: it fires once each time, and its times are not lost.
- ``token``: whoever holds a lock or leads has a larger token than all before, and is alone.
- ``stuck``, ``error``: everything ends, and nothing fails that nobody waits for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from tests.simulation.program import LEASE_S, MAX_ATTEMPTS, Act, Program
from tests.simulation.stage import Note

# A stop for longer than this may end a lease: it may be as old as half of it when the stop begins.
_LONG_STOP_S: Final = 0.25 * LEASE_S
_HEARS_S: Final = 0.5
# Simulated time passes while the callbacks of a moment run.
_MOMENT_S: Final = 0.01


class Broken(NamedTuple):
    """A promise that was not kept."""

    rule: str
    at: float
    text: str


class Attempt(NamedTuple):
    """An attempt of a job: its start, and until when it was in force; ``how`` it ended, empty if it was killed."""

    start: Note
    until: float
    how: str

    @property
    def returned(self) -> bool:
        """Whether its function has returned a result."""
        return self.how == "returned"


class History:
    """What happened, in order."""

    def __init__(self, program: Program, notes: Sequence[Note]) -> None:
        self.program = program
        self.notes = notes
        self._of: defaultdict[str, list[Note]] = defaultdict(list)
        for note in notes:
            self._of[note.kind].append(note)
        self.over: float = notes[-1].at if notes else 0.0
        self.accepted: dict[int, Note] = {note.number: note for note in self.of("accepted")}
        self.calm: float = next((note.at for note in self.of("calm")), inf)
        self.acts: dict[int, Act] = {act.number: act for act in program.acts if act.kind == "enqueue"}
        self._killed: dict[str, float] = {}
        self.stops: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._note_faults()
        self.ends: dict[tuple[str, int, str], Note] = {}
        self.attempts: list[Attempt] = self._attempts()
        self.by_id: dict[str, list[Attempt]] = _grouped(self.attempts, lambda attempt: attempt.start.id)

    def of(self, kind: str) -> list[Note]:
        """Return the notes of a kind."""
        return self._of[kind]

    def _note_faults(self) -> None:
        since: dict[str, float] = {}
        for note in self.of("fault"):
            if note.name in ("kill", "exit"):
                self._killed.setdefault(note.who, note.at)
            elif note.name == "stop":
                since.setdefault(note.who, note.at)
            elif note.name == "go on" and note.who in since:
                self.stops[note.who].append((since.pop(note.who), note.at))
        for who, at in since.items():
            self.stops[who].append((at, inf))

    def _attempts(self) -> list[Attempt]:
        for note in self.notes:
            if note.kind in ("end", "lost"):
                self.ends.setdefault((note.id, note.token, note.who), note)
        return [self._attempt(start, self.ends.get((start.id, start.token, start.who))) for start in self.of("start")]

    def _attempt(self, start: Note, end: Note | None) -> Attempt:
        until = min(self._killed.get(start.who, self.over), self.over) if end is None else end.at
        how = "" if end is None or end.kind == "lost" else end.value
        for stopped, went_on in self.stops[start.who]:
            if went_on - stopped > _LONG_STOP_S and start.at < went_on + _MOMENT_S and stopped < until:
                # Others may have begun to run it meanwhile.
                until = max(start.at, min(until, stopped))
        return Attempt(start, until, how)

    def has_fault(self, *names: str) -> bool:
        """Whether one of some faults befell anything."""
        return any(note.name in names for note in self.of("fault"))

    def was_stopped(self, who: str, at: float) -> bool:
        """Whether a process has just gone on after a long stop: what it begins now may have been given to another."""
        return any(a <= at <= b + LEASE_S and b - a > _LONG_STOP_S for a, b in self.stops[who])


Check = Callable[[History], Iterator[Broken]]


def judge(program: Program, notes: Sequence[Note]) -> list[Broken]:
    """Return what a history breaks; nothing for a good one."""
    history = History(program, notes)
    return [broken for check in CHECKS for broken in check(history)]


def _one_holder(history: History) -> Iterator[Broken]:
    groups = list(history.by_id.values())
    if history.program.exclusive:
        groups += _grouped([one for one in history.attempts if one.start.key], lambda one: one.start.key).values()
    for attempts in groups:
        yield from _overlaps("holder", attempts, 1)
        for earlier, later in pairwise(attempts):
            is_late = history.was_stopped(later.start.who, later.start.at)
            if later.start.token <= earlier.start.token and not is_late:
                yield _broken("holder", later.start, f"its token is not above {earlier.start.token}")


def _told(history: History) -> Iterator[Broken]:
    """Yield attempts that go on for long after they were replaced, and their process could have told them."""
    for attempts in history.by_id.values():
        for earlier, later in pairwise(attempts):
            end = history.ends.get((earlier.start.id, earlier.start.token, earlier.start.who))
            if end is None or later.start.at > end.at or later.start.token == earlier.start.token:
                continue
            went_on = [b for _, b in history.stops[earlier.start.who] if b < end.at]
            if end.at > max([later.start.at, *went_on]) + LEASE_S:
                yield _broken("holder", end, f"it was not told that attempt {later.start.attempt} had begun")


def _overlaps(rule: str, attempts: Sequence[Attempt], limit: int) -> Iterator[Broken]:
    for place, attempt in enumerate(attempts):
        others = [one.start for one in attempts[:place] if one.until > attempt.start.at]
        if len(others) >= limit:
            running = ", ".join(f"{one.number} of {one.who}" for one in others)
            yield _broken(rule, attempt.start, f"it started while others ran: {running}")


def _outcomes(history: History) -> Iterator[Broken]:
    outcomes = {note.number: note for note in history.of("outcome")}
    cancelled = {note.number: note for note in history.of("cancelled")}
    letters = {note.id for note in history.of("letter")}
    troubles = sum(note.name in ("kill", "exit", "stop") for note in history.of("fault"))
    for number, accepted in history.accepted.items():
        outcome = outcomes.get(number)
        if outcome is None:
            continue
        mine = history.by_id.get(accepted.id, [])
        names = [move[0] for move in history.acts[number].moves]
        most = max((one.start.attempt for one in mine), default=0)
        if most > MAX_ATTEMPTS:
            yield _broken("outcome", mine[-1].start, f"attempt {most} of {MAX_ATTEMPTS}")
        if outcome.name == "completed":
            if not any(one.returned for one in mine) or outcome.value != str(number):
                yield _broken("outcome", outcome, f"it has completed with {outcome.value}, and has not returned that")
        elif outcome.name == "failed":
            if most + troubles < MAX_ATTEMPTS:
                yield _broken("outcome", outcome, f"it has failed after {most} attempts")
        elif outcome.name != "cancelled" or not (number in cancelled or {"cancel", "discard"} & set(names)):
            yield _broken("outcome", outcome, f"it is {outcome.name}, and nobody asked for that")
        if outcome.name == "failed" and accepted.id not in letters:
            yield _broken("outcome", outcome, "it has failed and left no dead letter")
        if outcome.name in ("completed", "failed"):
            yield from _taken_over(history, outcome, mine)
        if number in cancelled and outcome.name not in ("cancelled", "completed", "failed"):
            yield _broken("outcome", outcome, f"it was cancelled, and is {outcome.name}")
        yield from _starts_after(history, mine, cancelled.get(number))


def _taken_over(history: History, outcome: Note, mine: list[Attempt]) -> Iterator[Broken]:
    """Yield what has taken effect of an attempt that was replaced before it ended."""
    for earlier, later in pairwise(mine):
        ended = history.ends.get((earlier.start.id, earlier.start.token, earlier.start.who))
        is_late = ended is not None and later.start.at + _MOMENT_S < ended.at
        if earlier.start.attempt == outcome.attempt < later.start.attempt and is_late:
            yield _broken("outcome", outcome, f"attempt {later.start.attempt} had begun when this one ended")


def _starts_after(history: History, mine: list[Attempt], cancelled: Note | None) -> Iterator[Broken]:
    """Yield starts after a job has ended: recorded, as far as its functions know."""
    for one in mine:
        late = history.was_stopped(one.start.who, one.start.at)
        if cancelled is not None and one.start.at > cancelled.at + _HEARS_S and not late:
            yield _broken("outcome", one.start, f"it started after it was cancelled at {cancelled.at}")
    undisturbed = not history.has_fault("kill", "exit", "stop", "full", "slow")
    returned = [one for one in mine if one.returned]
    for one in returned if undisturbed and cancelled is not None else ():
        if one.until > cancelled.at + _HEARS_S:
            yield _broken("outcome", one.start, f"it ran until {one.until}, though it was cancelled at {cancelled.at}")
    if undisturbed and returned and mine[-1].start.at > returned[0].until:
        yield _broken("outcome", mine[-1].start, f"it started again after it had returned at {returned[0].until}")


def _limits(history: History) -> Iterator[Broken]:
    for limited in history.of("limited"):
        limit = json.loads(limited.value)
        under = [
            one
            for one in history.attempts
            if one.start.at > limited.at + _HEARS_S and limit.get("job", one.start.name) == one.start.name
        ]
        groups = _grouped(under, lambda one: one.start.key) if limit.get("per_key") else {"all": under}
        groups.pop("", None)
        for group in groups.values():
            yield from _overlaps("limit", group, limit["concurrency"])


def _uniques(history: History) -> Iterator[Broken]:
    groups = _grouped(history.accepted.values(), lambda note: note.value)
    groups.pop("", None)
    for jobs in groups.values():
        for place, later in enumerate(jobs):
            for earlier in jobs[:place]:
                mine = [
                    one
                    for one in history.by_id.get(earlier.id, ())
                    if not history.was_stopped(one.start.who, one.start.at)
                ]
                if mine and mine[-1].start.at > later.at + _MOMENT_S:
                    text = f"it started although job {later.number} of the same {later.value!r} was accepted"
                    yield _broken("unique", mine[-1].start, f"{text} at {later.at}")


def _order(history: History) -> Iterator[Broken]:
    if not history.program.exclusive:
        return
    asked = {note.number: note.at for note in history.of("asked")}
    plain = {number for number, act in history.acts.items() if not {"delay", "priority"} & act.options.keys()}
    jobs = [note for note in history.accepted.values() if note.number in plain]
    for group in _grouped([job for job in jobs if job.key], lambda note: note.key).values():
        for earlier in group:
            last = [
                one for one in history.by_id.get(earlier.id, ()) if not history.was_stopped(one.start.who, one.start.at)
            ]
            for later in group:
                first = history.by_id.get(later.id, ())
                if earlier.at < asked[later.number] and last and first and first[0].start.at < last[-1].start.at:
                    yield _broken("order", first[0].start, f"it started before job {earlier.number} had ended")


def _steps(history: History) -> Iterator[Broken]:
    done: dict[tuple[str, str], Note] = {}
    for note in history.notes:
        if note.kind == "step":
            first = done.setdefault((note.id, note.name), note)
            if first.value != note.value:
                yield _broken("step", note, f"step {note.name} is {note.value} and was {first.value}")
        elif note.kind == "called" and (note.id, note.name) in done and not history.was_stopped(note.who, note.at):
            yield _broken("step", note, f"step {note.name} is done again")


def _naps(history: History) -> Iterator[Broken]:
    if history.has_fault("clock"):
        return
    moves = {number: act.moves for number, act in history.acts.items()}
    moves |= {part.number: part.moves for act in history.program.acts for part in act.parts}
    first: dict[tuple[str, int], Note] = {}
    passed: defaultdict[tuple[str, int], int] = defaultdict(int)
    for note in history.notes:
        # Which of its naps a function comes to, counted in each of its calls.
        if note.kind == "start":
            passed[note.id, note.token] = 0
        elif note.kind == "napping":
            place = passed[note.id, note.token]
            passed[note.id, note.token] += 1
            first.setdefault((note.id, place), note)
        elif note.kind == "end" and note.value == "returned":
            naps = [move[1] for move in moves.get(note.number, ()) if move[0] == "nap"]
            for place, seconds in enumerate(naps):
                began = first.get((note.id, place))
                if began is not None and note.at < began.at + seconds - _MOMENT_S:
                    yield _broken("nap", note, f"it went on {note.at - began.at:.3f} s after it slept for {seconds} s")


def _flows(history: History) -> Iterator[Broken]:
    started, returned = dict[int, Note](), dict[int, float]()
    for attempt in history.attempts:
        started.setdefault(attempt.start.number, attempt.start)
    for note in history.notes:
        if note.kind in ("end", "lost") and note.value == "returned":
            returned.setdefault(note.number, note.at)
    ends = {note.number: note for note in history.of("flow outcome")}
    accepted = {note.number for note in history.of("flow")}
    for act in history.program.acts:
        if act.kind == "flow" and act.number in accepted:
            yield from _flow(act, started, returned, ends.get(act.number))


def _flow(act: Act, started: dict[int, Note], returned: dict[int, float], end: Note | None) -> Iterator[Broken]:
    numbers = [part.number for part in act.parts]
    for part in act.parts:
        start = started.get(part.number)
        for before in part.after:
            if start is not None and returned.get(numbers[before], inf) > start.at:
                yield _broken("flow", start, f"it started before job {numbers[before]} had returned")
    if end is not None and (end.name == "completed") and any(number not in returned for number in numbers):
        yield _broken("flow", end, f"flow {act.number} is completed, and not all its jobs have returned")


def _schedules(history: History) -> Iterator[Broken]:
    for scheduled in history.of("scheduled"):
        every = float(scheduled.value)
        mine = [
            attempts[0].start for attempts in history.by_id.values() if attempts[0].start.number == scheduled.number
        ]
        if history.has_fault("clock"):
            continue
        lasted = history.over - scheduled.at
        if len(mine) > lasted / every + 1:
            yield _broken("schedule", scheduled, f"it fired {len(mine)} times in {lasted:.1f} s")
        # Without limits, while nothing happens to processes and no long job has a slot, each time has its job.
        has_long = any(one.until > history.calm and one.until - one.start.at > every for one in history.attempts)
        calm = [note for note in mine if note.at > history.calm + every]
        expected = int((history.over - history.calm) / every) - 2
        if not history.of("limited") and not has_long and len(calm) < expected:
            yield _broken("schedule", scheduled, f"it fired {len(calm)} times of {expected} when all was calm")


def _tokens(history: History) -> Iterator[Broken]:
    highest: dict[str, Note] = {}
    for note in history.of("hold"):
        before = highest.get(note.name)
        if note.value:
            yield _broken("token", note, f"{note.value} hold {note.name!r} as well")
        if before is not None and (
            note.token < before.token or (note.token == before.token and note.who != before.who)
        ):
            yield _broken(
                "token", note, f"token {note.token} of {note.name!r} comes after {before.token} of {before.who}"
            )
        if before is None or note.token > before.token:
            highest[note.name] = note
    for name, is_used in (("car", history.program.locks), ("boss", history.program.election)):
        if is_used and not any(note.name == name and note.at > history.calm for note in history.of("hold")):
            yield Broken("token", history.over, f"nobody holds {name!r} when all is calm")


def _stuck(history: History) -> Iterator[Broken]:
    for note in history.of("stuck"):
        yield _broken("stuck", note, f"it has not ended: {note.value}")
    for note in history.of("error"):
        is_expected = note.who != "the loop" and history.has_fault("full", "exit", "kill", "clock", "slow")
        if not is_expected:
            yield _broken("error", note, f"{note.name} {note.value}")
    for note in history.of("fault"):
        if note.name == "exit" and not history.has_fault("full"):
            yield _broken("error", note, f"{note.who} ended with {note.value}")


CHECKS: Final[tuple[Check, ...]] = (
    _one_holder, _told, _outcomes, _limits, _uniques, _order, _steps, _naps, _flows, _schedules, _tokens, _stuck,
)  # fmt: skip


def _grouped(items: Iterable[Any], key: Callable[[Any], str]) -> dict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def _broken(rule: str, note: Note, text: str) -> Broken:
    return Broken(
        rule, note.at, f"job {note.number} ({note.id}), attempt {note.attempt}, token {note.token}, {note.who}: {text}"
    )
