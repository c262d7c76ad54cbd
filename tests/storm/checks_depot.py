"""What must be true of the jobs of a storm's depot: what has begun, what was held, what forks did, who waited too long.

The records of each job are compared with how it ended. ``begins`` is written just before a worker marks a job as begun,
``start`` as the first thing in its function, so that of the attempts that the queue counts none may be without the
first, and the second of none may be missing in what the queue counts. A job that its worker interrupts is given back,
and need not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

import pelton
from tests.storm.cast_depot import ATTEMPTS, DEPOT, FORKS, SLOTS, DepotEvent
from tests.storm.notes import Note

# A jump by less is none.
_EARLY_NS: Final = 150_000_000
_ENDINGS: Final = {"completed", "failed"}


class Ordered(NamedTuple):
    """A job that was enqueued, between ``asked`` and ``answered``."""

    queue: str
    id: str
    job: str
    number: int
    delay: float
    asked: int
    answered: int


@dataclass
class JobTrace:
    """What is known of one job."""

    begins: list[DepotEvent] = field(default_factory=list)
    starts: list[DepotEvent] = field(default_factory=list)
    ends: list[DepotEvent] = field(default_factory=list)

    def end_of(self, start: DepotEvent) -> DepotEvent | None:
        """Return the end of a start; None if its process died."""
        return next(iter(self._ends_of(start)), None)

    def _ends_of(self, start: DepotEvent) -> list[DepotEvent]:
        """Return what ended a start. A job that was given back starts again as the same attempt, maybe there."""
        again = [one.at for one in self.starts if _run(one) == _run(start) and one.at > start.at]
        until = min(again, default=inf)
        return [end for end in self.ends if _run(end) == _run(start) and start.at <= end.at < until]

    def has_ended(self, killed: Mapping[int, int]) -> int:
        """Return how many starts count for certain: they ended by themselves, or with their worker."""
        ends = [(start, {end.kind for end in self._ends_of(start)}) for start in self.starts]
        by_itself = sum(kinds == {"end"} for _, kinds in ends)
        return by_itself + sum(not kinds and start.pid in killed and start.job != "copier" for start, kinds in ends)


def _run(event: DepotEvent) -> tuple[int, int]:
    return event.pid, event.attempt


class DepotHistory:
    """The records of a storm that are about its depot, and how its jobs have ended."""

    def __init__(
        self, notes: Sequence[Note], events: Sequence[DepotEvent], ended: Mapping[str, Sequence[pelton.Outcome]]
    ) -> None:
        self.notes = [note for note in notes if note.what in (DEPOT, FORKS)]
        self.events = sorted(events, key=lambda event: event.at)
        self.ended = ended
        self.killed = {note.number: note.at for note in notes if note.kind == "killed"}
        self.slept = {note.number for note in notes if note.kind == "slept"}
        self.jumps = [note.at for note in notes if note.kind == "jumped"]
        self.ordered = {(one.queue, one.id): one for one in map(_ordered, self._of("ordered"))}
        self.traces: dict[tuple[str, str], JobTrace] = defaultdict(JobTrace)
        for event in self.events:
            trace = self.traces[event.queue, event.id]
            {"begins": trace.begins, "start": trace.starts}.get(event.kind, trace.ends).append(event)

    def _of(self, kind: str) -> list[Note]:
        return [note for note in self.notes if note.kind == kind]

    def contradictions(self) -> Iterator[str]:
        """Yield everything that contradicts a promise."""
        for queue in (DEPOT, FORKS):
            yield from self._all_ended(queue)
            for outcome in self.ended[queue]:
                trace = self.traces[queue, outcome.id]
                yield from (f"{queue}: job {outcome.id}, {outcome.job}: {text}" for text in self._end(outcome, trace))
        yield from self._limit()
        yield from self._seen()
        yield from self._delays()

    def _all_ended(self, queue: str) -> Iterator[str]:
        """Every job that was accepted has ended, and nothing else has."""
        ids = {outcome.id for outcome in self.ended[queue]}
        accepted = {one.id for one in self.ordered.values() if one.queue == queue}
        yield from (f"{queue}: job {one} was accepted and has not ended" for one in sorted(accepted - ids))
        unanswered = sum(note.what == queue for note in self._of("ordering")) - len(accepted)
        if len(ids - accepted) > unanswered:
            yield f"{queue}: {len(ids - accepted)} jobs that nobody knows of, {unanswered} enqueues without an answer"

    def _end(self, outcome: pelton.Outcome, trace: JobTrace) -> Iterator[str]:
        """Attempts are what has begun, they are bounded, each left its error, and a result is that of the job."""
        attempts, allowed = outcome.attempt, ATTEMPTS[outcome.job]
        begun, certain = len(trace.begins), trace.has_ended(self.killed)
        if outcome.state not in _ENDINGS:
            yield f"it has {outcome.state}, which nobody asked for"
        if not max(certain, 1) <= attempts <= min(begun, allowed):
            yield f"{outcome.state} after {attempts} attempts of {allowed}; {begun} were begun, {certain} ended"
        told = [error.attempt for error in outcome.errors]
        if told != list(range(1, attempts + (outcome.state == "failed"))):
            yield f"{outcome.state} after {attempts} attempts, with errors of {told}"
        ordered = self.ordered.get((trace.starts[0].queue, outcome.id)) if trace.starts else None
        if outcome.state == "completed" and ordered and outcome.value() != ordered.number**2:
            yield f"it has completed with {outcome.value()}, its number is {ordered.number}"

    def _limit(self) -> Iterator[str]:
        """No more run at a time than there are slots: one of a dead worker until then, one that slept until then."""
        turns: list[tuple[int, int]] = []
        for trace in self.traces.values():
            for start in trace.starts:
                if start.job == "narrow" and start.pid not in self.slept:
                    end = trace.end_of(start)
                    turns += [(start.at, 1), (end.at if end else self.killed.get(start.pid, start.at + 1), -1)]
        depth = 0
        for at, change in sorted(turns):
            depth += change
            if depth > SLOTS:
                yield f"{DEPOT}: {depth} of {SLOTS} ran at {at}"

    def _seen(self) -> Iterator[str]:
        """What is shown as running has begun, and nothing that has begun is shown as if it had not."""
        for note in self._of("seen"):
            for one in note.name.split():
                job, _, state = one.partition("=")
                trace = self.traces[note.what, job]
                if state == "running" and not any(begun.at <= note.number for begun in trace.begins):
                    yield f"{note.what}: job {job} was shown as running, and had not begun"
                if state in ("pending", "held", "scheduled") and any(
                    start.at < note.at and (end := trace.end_of(start)) and end.at > note.number
                    for start in trace.starts
                    if start.pid not in self.slept
                ):
                    yield f"{note.what}: job {job} was shown as {state} while it ran"

    def _delays(self) -> Iterator[str]:
        """Nothing starts before its delay has passed, however the clock jumps."""
        for key, one in self.ordered.items():
            starts = self.traces[key].starts
            if any(one.asked <= jump <= one.answered for jump in self.jumps) or not (starts and one.delay):
                # If the clock jumps between its being read and the commit, nobody can know.
                continue
            early = one.asked + int(one.delay * 1e9) - starts[0].at
            if early > _EARLY_NS:
                yield f"{one.queue}: job {one.id} started {early / 1e9:.3f} s before its delay of {one.delay} s"


def _ordered(note: Note) -> Ordered:
    id, _, rest = note.name.partition("=")
    job, number, delay = rest.split(":")
    return Ordered(note.what, id, job, int(number), float(delay), note.number, note.at)
