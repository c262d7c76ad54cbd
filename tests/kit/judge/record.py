"""What random programs record of a queue: events, and the history that they make together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from pelton.queue.model.limits import JobLimit
from tests.kit.judge.history import Contradiction, Rule

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
    "limited",
    "unlimited",
    "weighing",
    "weighed",
    "stepped",
    "flow",
    "flow cancelled",
    "node",
    "flow ended",
    "ended",
    "redriven",
    "outcome",
    "letter",
    "unfinished",
]


class PlannedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a flow, as it was planned: the numbers of those ``after`` which it comes, whose results it is given.

    ``runs_anyway``: it starts when they have ended, even if one has not completed; it is given None for that one.
    ``adds``: so many nodes its job adds to the flow, each after the one before, whose result it is given.
    """

    after: tuple[int, ...] = ()
    runs_anyway: bool = False
    adds: int = 0


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a job of ``queue``. ``at`` is nanoseconds of one machine-wide clock.

    - ``enqueued``: it was accepted, when the call had returned; ``state`` is ``scheduled`` if it was to start later,
      ``unique`` names what no other unfinished job may share. ``unsure``: a call failed, and a job may be there or not.
    - ``start``, ``end``, ``lost``: its function began, returned (``state`` is ``returned``) or raised, learned that its
      lease was lost. ``worker``, ``token`` and ``attempt`` name it. ``step``: it uses ``value`` for a ``step``.
    - ``paused``: when the call had returned, ``resumed``: when it began; of a ``key``, the jobs of a ``name``, or all.
      ``drained``: a call that waits until nothing runs had returned; it has paused all.
    - ``limited``: a call had returned that sets ``limit``; ``unlimited``: one began that changes or removes the limit
      of the same jobs. ``stepped``: the workers' clock goes on by ``seconds`` more than that of the events, or back.
    - ``weighing``: a call began that gives a ``tenant`` its ``weight``; ``weighed``: it had returned.
    - ``flow``: a flow was enqueued, as ``plan`` says; the attempts of its jobs name their ``flow`` and ``node``, and
      what they were given, as ``value``, a JSON list. ``flow cancelled``: the call had returned.
      ``node``, ``flow ended``: how the flow says at the end that the node, with its ``job``, or all of it has ended;
      ``added_by`` is the number of the node that has added it.
    - ``ended``: somebody saw that it had ended as ``state``. ``redriven``: its dead letter was taken.
    - ``outcome`` (``value``: its result), ``letter``, ``unfinished``: what the queue says at the end.
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
    priority: int = 0
    tenant: str = ""
    weight: int = 1
    limit: JobLimit | None = None
    seconds: float = 0.0
    flow: str = ""
    node: int = -1
    added_by: int = -1
    plan: tuple[PlannedNode, ...] = ()


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """What a history is not held to, in seconds and in jobs.

    ``hears_within``: a worker has heard of an order. ``loses_within``: an attempt has heard that its lease has run
    out, where the machine may starve the thread that keeps it. ``starts_within``: from the decision that a job starts,
    which counts for a rate, to its event. ``bypass``: so many jobs of higher priorities a worker may start in a row
    while more than ``held`` of a lower one wait, which is what workers may hold without having started it; None: any
    number. ``turns``: so many more jobs of a tenant than its weight says, while more than ``held`` of another one wait.
    ``key_turns``: so many jobs of one key may start in an exclusive queue while another key waits. None: any number.
    """

    hears_within: float = 0.0
    loses_within: float = 0.0
    starts_within: float = 0.0
    bypass: int | None = None
    turns: int | None = None
    key_turns: int | None = None
    held: int = 0


class AttemptSpan(NamedTuple):
    """An attempt of a job: when it started, and when it is known to have been over; None: its worker was killed.

    ``returned``: its function has returned.
    """

    start: HistoryEvent
    over: int | None
    returned: bool = False


class QueueHistory:
    """What happened to one queue, in order of time."""

    def __init__(
        self, events: Iterable[HistoryEvent], *, exclusive: bool, max_attempts: int, tolerance: Tolerance
    ) -> None:
        """Sort events."""
        self.events: list[HistoryEvent] = sorted(events, key=_at)
        self.exclusive = exclusive
        self.max_attempts = max_attempts
        self.tolerance = tolerance
        self.hears_within_ns: int = int(tolerance.hears_within * 1e9)
        self._of_kind: dict[str, list[HistoryEvent]] = defaultdict(list)
        for event in self.events:
            self._of_kind[event.kind].append(event)
        self.enqueued: dict[str, HistoryEvent] = {event.job: event for event in self.of_kind("enqueued")}
        self.outcomes: dict[str, list[HistoryEvent]] = grouped(self.of_kind("outcome"))
        self.spans: list[AttemptSpan] = self._spans()

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
        over: dict[tuple[str, int, str], HistoryEvent] = {}
        for event in self.events:
            if event.kind in ("end", "lost"):
                # The first of them: one that has learned that its lease is lost has no effect from then on.
                over.setdefault((event.job, event.token, event.worker), event)
        return [self._span(start, over.get((start.job, start.token, start.worker))) for start in self.of_kind("start")]

    def _span(self, start: HistoryEvent, end: HistoryEvent | None) -> AttemptSpan:
        if end is None:
            return AttemptSpan(start, None)
        late = int(self.tolerance.loses_within * 1e9) if end.kind == "lost" else 0
        return AttemptSpan(start, max(start.at, end.at - late), end.state != "")


def overlaps(spans: Sequence[AttemptSpan], limit: int = 1, rule: Rule = "exclusive") -> Iterator[Contradiction]:
    """Yield where more than ``limit`` attempts run at once; ``spans`` in order of their starts.

    One of a killed worker is over at once: it does nothing more, and when it was killed is not known.
    """
    for place, span in enumerate(spans):
        running = [one for one in spans[:place] if one.over is not None and one.over > span.start.at]
        if len(running) >= limit:
            others = ", ".join(f"{one.start.job} by {one.start.worker}" for one in running)
            yield broken(rule, span.start, f"it started while others ran: {others}")


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
