"""Checks whether recorded histories keep the promises of a queue, whatever was done to it. Pure.

Programs enqueue, cancel, pause, redrive and move jobs, workers run them and are killed; all record what happened with
one clock of the machine (CLOCK_MONOTONIC, nanoseconds). At the end, when nothing runs, the program adds what the queue
says: the outcomes, the dead letters, and the jobs that have not ended. :func:`check_queue` reports what breaks the
promises, each stated by one function of :data:`CHECKS`; add yours there, or give it to ``check_queue``.

Where two programs cannot know which of their actions came first, the history is given the benefit of the doubt: an
action counts from when its call had returned, or until it began, whichever is safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import msgspec

from pelton.testing.history import Contradiction, Rule

HistoryEventKind = Literal[
    "enqueued",
    "unsure",
    "start",
    "step",
    "end",
    "lost",
    "paused",
    "drained",
    "resumed",
    "ended",
    "redriven",
    "outcome",
    "letter",
    "unfinished",
]


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a job of ``queue``. ``at`` is nanoseconds of one machine-wide clock.

    - ``enqueued``: it was accepted, when the call had returned; ``state`` is ``scheduled`` if it was to start later,
      ``unique`` names what no other unfinished job may share. ``unsure``: a call failed, and a job may be there or not.
    - ``start``, ``end``, ``lost``: its function began, returned or raised, learned that its lease was lost.
      ``worker``, ``token`` and ``attempt`` name the attempt. ``step``: it uses ``value`` for the step ``step``.
    - ``paused``: when the call had returned, ``resumed``: when it began; of a ``key``, the jobs of a ``name``, or all.
      ``drained``: a call that waits until nothing runs had returned; it has paused all.
    - ``ended``: somebody saw that it had ended as ``state``. ``redriven``: its dead letter was taken.
    - ``outcome``, ``letter``, ``unfinished``: what the queue says at the end.
    """

    kind: HistoryEventKind
    queue: str
    at: int
    job: str = ""
    key: str = ""
    name: str = ""
    unique: str = ""
    worker: str = ""
    token: int = 0
    attempt: int = 0
    step: str = ""
    value: str = ""
    state: str = ""


class AttemptSpan(NamedTuple):
    """An attempt of a job: when it started, and when it is known to have been over; None: its worker was killed."""

    start: HistoryEvent
    over: int | None


class QueueHistory:
    """What happened to one queue, in order of time."""

    def __init__(
        self, events: Iterable[HistoryEvent], *, exclusive: bool, max_attempts: int, hears_within: float
    ) -> None:
        """Sort events. ``hears_within``: the seconds after which a worker has heard of an order."""
        self.events = sorted(events, key=_at)
        self.exclusive = exclusive
        self.max_attempts = max_attempts
        self.hears_within_ns = int(hears_within * 1e9)
        self._of_kind: dict[str, list[HistoryEvent]] = defaultdict(list)
        for event in self.events:
            self._of_kind[event.kind].append(event)
        self.enqueued = {event.job: event for event in self.of_kind("enqueued")}
        self.outcomes = grouped(self.of_kind("outcome"))
        self.spans = self._spans()

    def of_kind(self, kind: HistoryEventKind) -> Sequence[HistoryEvent]:
        """Return the events of a kind, in order of time."""
        return self._of_kind[kind]

    def spans_by_key(self) -> dict[str, list[AttemptSpan]]:
        """Return the attempts of each key, in order of their starts."""
        found: dict[str, list[AttemptSpan]] = defaultdict(list)
        for span in self.spans:
            if span.start.key:
                found[span.start.key].append(span)
        return found

    def spans_by_job(self) -> dict[str, list[AttemptSpan]]:
        """Return the attempts of each job, in order of their starts."""
        found: dict[str, list[AttemptSpan]] = defaultdict(list)
        for span in self.spans:
            found[span.start.job].append(span)
        return found

    def _spans(self) -> list[AttemptSpan]:
        over: dict[tuple[str, int, str], int] = {}
        for event in self.events:
            if event.kind in ("end", "lost"):
                # The first of them: one that has learned that its lease is lost has no effect from then on.
                over.setdefault((event.job, event.token, event.worker), event.at)
        starts = self.of_kind("start")
        return [AttemptSpan(start, over.get((start.job, start.token, start.worker))) for start in starts]


Check = Callable[[QueueHistory], Iterator[Contradiction]]


def check_queue(
    events: Iterable[HistoryEvent],
    *,
    exclusive: bool,
    max_attempts: int,
    hears_within: float = 0.0,
    more: Sequence[Check] = (),
) -> list[Contradiction]:
    """Return the broken promises; an empty list for a good history. Events may come in any order.

    ``exclusive``: whether the queues are. ``hears_within``: the seconds after which a worker has heard of a pause, or,
    on servers, that a job which it has taken and not started was cancelled.
    ``more`` checks are made after those of :data:`CHECKS`.
    """
    by_queue: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        by_queue[event.queue].append(event)
    found: list[Contradiction] = []
    for mine in by_queue.values():
        history = QueueHistory(mine, exclusive=exclusive, max_attempts=max_attempts, hears_within=hears_within)
        for check in (*CHECKS, *more):
            found += check(history)
    return found


def nothing_vanishes(history: QueueHistory) -> Iterator[Contradiction]:
    """Every job that was accepted has ended or waits, not both, and one that has failed left a dead letter."""
    waiting = {event.job for event in history.of_kind("unfinished")}
    letters = {event.job for event in (*history.of_kind("letter"), *history.of_kind("redriven"))}
    for job, event in history.enqueued.items():
        ends = history.outcomes.get(job, [])
        if not ends and job not in waiting:
            yield broken("lost", event, "it was enqueued, has no outcome, and is not waiting")
        if ends and job in waiting:
            yield broken("once", event, f"it has ended as {ends[0].state} and is still waiting")
        if ends and ends[0].state == "failed" and job not in letters:
            yield broken("lost", event, "it has failed and left no dead letter")
    if not history.of_kind("unsure"):
        for event in (*history.of_kind("start"), *history.of_kind("outcome"), *history.of_kind("unfinished")):
            if event.job not in history.enqueued:
                yield broken("once", event, f"{event.kind} of a job that was never enqueued")


def one_outcome(history: QueueHistory) -> Iterator[Contradiction]:
    """A job has one outcome, which nobody saw otherwise; it does not start after it, nor completes without a start."""
    started = {event.job for event in history.of_kind("start")}
    for ends in history.outcomes.values():
        if len(ends) > 1:
            yield broken("once", ends[0], f"it has {len(ends)} outcomes: {', '.join(end.state for end in ends)}")
        if ends[0].state == "completed" and ends[0].job not in started:
            yield broken("once", ends[0], "it has completed and never started")
    seen: dict[str, HistoryEvent] = {}
    for event in history.events:
        if event.kind == "ended":
            seen.setdefault(event.job, event)
            final = history.outcomes.get(event.job)
            if final and final[0].state != event.state:
                yield broken("once", event, f"it had ended as {event.state} and then as {final[0].state}")
        elif event.kind == "start" and event.job in seen and event.at > seen[event.job].at + history.hears_within_ns:
            yield broken("once", event, f"it started after it had ended as {seen[event.job].state}")


def bounded_attempts(history: QueueHistory) -> Iterator[Contradiction]:
    """Attempts are counted upwards, to the limit."""
    last: dict[str, int] = {}
    for start in history.of_kind("start"):
        if not 1 <= start.attempt <= history.max_attempts:
            yield broken("attempts", start, f"attempt {start.attempt} of {history.max_attempts}")
        if start.attempt < last.get(start.job, 0):
            yield broken("attempts", start, f"attempt {start.attempt} after attempt {last[start.job]}")
        last[start.job] = start.attempt


def one_value_a_step(history: QueueHistory) -> Iterator[Contradiction]:
    """All attempts of a job see one value of a step."""
    values: dict[tuple[str, str], str] = {}
    for event in history.of_kind("step"):
        known = values.setdefault((event.job, event.step), event.value)
        if known != event.value:
            yield broken("step", event, f"step {event.step!r} is {event.value} and was {known}")


def one_holder_a_job(history: QueueHistory) -> Iterator[Contradiction]:
    """The attempts of a job never overlap."""
    for spans in history.spans_by_job().values():
        yield from overlaps(spans)


def one_holder_a_key(history: QueueHistory) -> Iterator[Contradiction]:
    """In an exclusive queue, the attempts of a key never overlap."""
    if history.exclusive:
        for spans in history.spans_by_key().values():
            yield from overlaps(spans)


def keys_in_order(history: QueueHistory) -> Iterator[Contradiction]:
    """In an exclusive queue, jobs of a key that could start at once start in the order in which they were enqueued."""
    if not history.exclusive:
        return
    spans = history.spans_by_job()
    by_key: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in history.of_kind("enqueued"):
        if event.key and event.state != "scheduled":
            by_key[event.key].append(event)
    for jobs in by_key.values():
        latest: AttemptSpan | None = None
        for event in jobs:
            mine = spans.get(event.job, [])
            if mine and latest is not None and mine[0].start.at < latest.start.at:
                yield broken("order", event, f"it started before job {latest.start.job}, enqueued earlier, had ended")
            if mine and (latest is None or mine[-1].start.at > latest.start.at):
                latest = mine[-1]


def one_unfinished_a_unique(history: QueueHistory) -> Iterator[Contradiction]:
    """While a unique job is unfinished, no other one of the same is accepted."""
    waiting = {event.job for event in history.of_kind("unfinished")}
    spans = history.spans_by_job()
    by_unique: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in history.of_kind("enqueued"):
        if event.unique:
            by_unique[event.unique].append(event)
    for jobs in by_unique.values():
        for earlier, later in pairwise(jobs):
            text = f"job {later.job}, of the same {later.unique!r}, was accepted"
            if earlier.job in waiting:
                yield broken("unique", earlier, f"it has not ended, and {text}")
            if any(span.start.at > later.at for span in spans.get(earlier.job, ())):
                yield broken("unique", earlier, f"it started after {text}")


def no_start_while_paused(history: QueueHistory) -> Iterator[Contradiction]:
    """Nothing starts that is paused, as soon as the workers have heard of it."""
    paused: dict[tuple[str, str], int] = {}
    for event in history.events:
        if event.kind == "paused":
            paused.setdefault((event.key, event.name), event.at)
        elif event.kind == "resumed":
            paused.pop((event.key, event.name), None)
        elif event.kind == "start":
            for scope in {("", ""), (event.key, ""), ("", event.name)}:
                since = paused.get(scope)
                if since is not None and event.at > since + history.hears_within_ns:
                    late = (event.at - since) / 1e6
                    yield broken("paused", event, f"it started {late:.1f} ms after {scope} was paused")


def drained_is_quiet(history: QueueHistory) -> Iterator[Contradiction]:
    """When a queue is drained nothing runs, and nothing starts until it is resumed, however soon."""
    since: int | None = None
    for event in history.events:
        if event.kind == "drained":
            since = event.at
            for span in history.spans:
                if span.over is not None and span.start.at < since < span.over:
                    yield broken("drained", span.start, "it ran when the queue was drained")
        elif event.kind == "resumed" and not event.key and not event.name:
            since = None
        elif event.kind == "start" and since is not None:
            yield broken("drained", event, f"it started {(event.at - since) / 1e6:.1f} ms after the queue was drained")


CHECKS: Final[tuple[Check, ...]] = (
    nothing_vanishes,
    one_outcome,
    bounded_attempts,
    one_value_a_step,
    one_holder_a_job,
    one_holder_a_key,
    keys_in_order,
    one_unfinished_a_unique,
    no_start_while_paused,
    drained_is_quiet,
)
"""The promises of a queue."""


def overlaps(spans: Sequence[AttemptSpan], limit: int = 1) -> Iterator[Contradiction]:
    """Yield where more than ``limit`` attempts run at once; ``spans`` in order of their starts.

    One of a killed worker is over at once: it does nothing more, and when it was killed is not known.
    """
    for place, span in enumerate(spans):
        running = [one for one in spans[:place] if one.over is not None and one.over > span.start.at]
        if len(running) >= limit:
            others = ", ".join(f"{one.start.job} by {one.start.worker}" for one in running)
            yield broken("exclusive", span.start, f"it started while others ran: {others}")


def grouped(events: Iterable[HistoryEvent]) -> dict[str, list[HistoryEvent]]:
    """Return events by their jobs."""
    found: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        found[event.job].append(event)
    return found


def _at(event: HistoryEvent) -> int:
    return event.at


def broken(rule: Rule, event: HistoryEvent, text: str) -> Contradiction:
    """Return that an event breaks a promise."""
    return Contradiction(rule=rule, key=event.key, job=event.job, text=text)
