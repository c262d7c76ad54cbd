"""Checks whether recorded histories keep the promises of an exclusive queue. Pure.

Workers record events with one clock of the machine (CLOCK_MONOTONIC, nanoseconds), the enqueuers record
what was enqueued, and :func:`check_history` reports what breaks the promises:

- ``exclusive``: attempts of one key never overlap, unless the earlier one learned that its lease was lost
  before the later one started. A stopped worker (SIGSTOP) cannot learn it in time, and may even start
  an attempt that was replaced in the meantime; name it in ``paused``. The effects of a replaced attempt are never
  committed, paused or not.
- ``order``: jobs of a key start and take effect in the order in which they were enqueued, each after the one
  before it took effect.
- ``lost`` and ``once``: every enqueued job takes effect, exactly once, by an attempt that had started.
- ``attempts``: they are bounded, and counted upwards.
- ``token``: every start of a key has a larger fencing token than all before it.

An attempt is named by its token. One without an end (its worker was killed) is over when the next one of its
key starts: a killed worker does nothing more, and if it does, its later events show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

EventKind = Literal["enqueued", "start", "end", "lost", "finished"]
Rule = Literal[
    "exclusive", "order", "lost", "once", "attempts", "token",
    "step", "unique", "paused", "drained", "limit", "rate", "bypass", "turns", "flow",
]  # fmt: skip


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job.

    ``enqueued``: it was accepted. ``start``, ``end``: its function began, returned or raised. ``lost``: the
    attempt learned that its lease was lost. ``finished``: the attempt took effect (it was committed); ``at``
    is then a moment before the commit. ``at`` is nanoseconds of one machine-wide clock. ``token``, ``worker``
    and ``attempt`` name the attempt; ``enqueued`` has none of them.
    """

    kind: EventKind
    key: str
    job: str
    at: int
    worker: str = ""
    token: int = 0
    attempt: int = 0


class Contradiction(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was not kept."""

    rule: Rule
    key: str
    job: str
    text: str


def check_history(
    events: Iterable[JobEvent], *, max_attempts: int, paused: Collection[str] = ()
) -> list[Contradiction]:
    """Return the broken promises; an empty list for a good history. Events may come in any order."""
    by_key: dict[str, list[JobEvent]] = defaultdict(list)
    for event in sorted(events, key=_when):
        by_key[event.key].append(event)
    found: list[Contradiction] = []
    for key, mine in by_key.items():
        check = _KeyCheck(key, mine, frozenset(paused))
        found += check.run(max_attempts)
    return found


def _when(event: JobEvent) -> int:
    return event.at


class _KeyCheck:
    """The history of one key, in order of time."""

    def __init__(self, key: str, events: Sequence[JobEvent], paused: frozenset[str]) -> None:
        self._key = key
        self._events = events
        self._paused = paused
        self._found: list[Contradiction] = []
        self._jobs = [event.job for event in events if event.kind == "enqueued"]
        self._starts: list[JobEvent] = []
        self._replaced: list[JobEvent] = []
        for event in events:
            if event.kind == "start":
                stale = self._starts and event.token < self._starts[-1].token and event.worker in paused
                (self._replaced if stale else self._starts).append(event)
        self._effects: dict[str, list[JobEvent]] = defaultdict(list)
        for event in events:
            if event.kind == "finished":
                self._effects[event.job].append(event)

    def run(self, max_attempts: int) -> list[Contradiction]:
        self._check_once()
        self._check_exclusive()
        self._check_order()
        self._check_attempts(max_attempts)
        return self._found

    def _say(self, rule: Rule, job: str, text: str) -> None:
        self._found.append(Contradiction(rule=rule, key=self._key, job=job, text=text))

    def _check_once(self) -> None:
        started = {(start.job, start.token) for start in self._starts}
        for job in self._jobs:
            if job not in self._effects:
                self._say("lost", job, "it was enqueued and never took effect")
        for job, effects in self._effects.items():
            if len(effects) > 1:
                self._say("once", job, f"it took effect {len(effects)} times")
            if job not in self._jobs:
                self._say("once", job, "it took effect and was never enqueued")
            for effect in effects:
                if (job, effect.token) not in started:
                    self._say("once", job, f"it took effect by an attempt that never started (token {effect.token})")

    def _check_exclusive(self) -> None:
        for earlier, later in zip(self._starts, self._starts[1:], strict=False):
            if later.token <= earlier.token:
                self._say("token", later.job, f"started with token {later.token} after one with {earlier.token}")
        for place, start in enumerate(self._starts[:-1]):
            self._check_replaced(start, self._starts[place + 1].at)
        for start in self._replaced:
            self._check_replaced(start, start.at)

    def _check_replaced(self, start: JobEvent, next_start: int) -> None:
        """Check what an attempt still did after the next one of its key had started."""
        mine = [event for event in self._events if event.token == start.token and event.job == start.job]
        told = any(event.kind == "lost" and event.at <= next_start for event in mine)
        for event in mine:
            if event.at <= next_start:
                continue
            if event.kind == "finished":
                self._say("exclusive", start.job, f"token {start.token} took effect after the next attempt started")
            elif not told and start.worker not in self._paused:
                late = (event.at - next_start) / 1e6
                self._say(
                    "exclusive", start.job, f"{event.kind} of token {start.token} {late:.3f} ms after the next start"
                )

    def _check_order(self) -> None:
        place = {job: number for number, job in enumerate(self._jobs)}
        for start in self._starts:
            number = place.get(start.job)
            if number is None:
                self._say("order", start.job, "it started and was never enqueued")
            elif number > 0:
                self._check_after(start, self._jobs[number - 1])
            for effect in self._effects.get(start.job, ()):
                if effect.at < start.at:
                    self._say("order", start.job, f"it started again (token {start.token}) after it took effect")

    def _check_after(self, start: JobEvent, before: str) -> None:
        if not any(effect.at <= start.at for effect in self._effects.get(before, ())):
            self._say("order", start.job, f"it started before job {before} took effect")

    def _check_attempts(self, max_attempts: int) -> None:
        last: dict[str, int] = {}
        for start in self._starts:
            if not 1 <= start.attempt <= max_attempts:
                self._say("attempts", start.job, f"attempt {start.attempt} of {max_attempts}")
            if start.attempt < last.get(start.job, 0):
                self._say("attempts", start.job, f"attempt {start.attempt} after attempt {last[start.job]}")
            last[start.job] = start.attempt
