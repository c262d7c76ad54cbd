"""Is it well? What is wrong with a store and its queues, decided from facts: for the dashboard's first screen, for
``pelton info`` and for metrics. The thresholds are those of the rules in ``examples/prometheus``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from pelton.api import ConfigError
from pelton.api.backend import StoreTroubles
from pelton.api.times import SECOND, parse_rfc3339
from pelton.api.wording import bytes_text, number_text, span_text
from pelton.connect import Jet
from pelton.observe.holdings import size_of
from pelton.observe.queues import workers_present
from pelton.observe.summaries import QueueSummary, StreamSummary
from pelton.queue import WorkerInfo
from pelton.queue.model.naming import QueueNames
from pelton.storage import LeafNote, StandbyLag, WriterHold, leafs_noted, standby_lags, writer_hold

AlarmKind = Literal[
    "disk", "corrupt", "writer", "clock", "log", "hub", "standby", "unreadable", "paused", "no worker", "no progress",
    "hangs", "overdue", "dead letters",
]  # fmt: skip
KINDS: Final[tuple[AlarmKind, ...]] = get_args(AlarmKind)
"""What can be wrong, the gravest first."""

NO_WORKER_S: Final = 30.0
"""For how long a job has been due, in a queue without a worker."""
NO_PROGRESS_S: Final = 600.0
"""For how long no job has ended, while some are due."""
OVERDUE_S: Final = 3600.0
"""For how long a job has been due, or runs."""
DEAD_S: Final = 3600.0
"""For how long a dead letter is new."""
WRITER_S: Final = 10.0
"""For how long a process holds the writer and writes nothing."""
CLOCK_S: Final = 60.0
"""How far the time of a message may lie ahead of the clock."""
QUIET_HUB_S: Final = 20.0
"""For how long the leaf node of a hub has told nothing."""
GONE_HUB_S: Final = 86_400.0
"""For how long no process has been the leaf node of a hub: from then on the store is taken to have none."""
STANDBY_S: Final = 60.0
"""For how long a standby has not held all of its store."""
LOG_BYTES: Final = 10**9
SPARE_BYTES: Final = 10**9
"""What a disk must have free, beside the log twice."""


class Alarm(NamedTuple):
    """One thing that is wrong, as a sentence; ``queue`` is where, empty for the store."""

    kind: AlarmKind
    text: str
    queue: str = ""


class HealthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """From what it is decided whether a store is well. Of a cluster, nothing is known of files: 0, or None."""

    now: int
    """Wall nanoseconds."""
    queues: Sequence[QueueSummary] = ()
    """All queues."""
    workers: Mapping[str, Sequence[WorkerInfo]] = {}
    """The workers of each queue that has any."""
    newest: Mapping[str, str] = {}
    """When each stream has stored its last message."""
    disk_free: int | None = None
    """Bytes free on the disk of the store."""
    log_bytes: int = 0
    """The length of the store's log."""
    damaged: int = 0
    """How many places any process has found damaged since the store was last verified without a problem."""
    writer: WriterHold | None = None
    """Who holds the writer just now."""
    hubs: Sequence[LeafNote] = ()
    """The hubs whose leaf node the store is."""
    standbys: Sequence[StandbyLag] = ()
    """The standbys of the store; beside a standby, itself."""
    replaced_by: str = ""
    """The standby that has taken the store's place."""


def alarms_of(facts: HealthFacts) -> list[Alarm]:
    """Return what is wrong by the ``facts``, the gravest first; nothing if all is well."""
    found = [*_of_store(facts), *(alarm for queue in facts.queues for alarm in _of_queue(queue, facts))]
    return sorted(found, key=lambda alarm: KINDS.index(alarm.kind))


def _of_store(facts: HealthFacts) -> Iterator[Alarm]:
    if facts.disk_free is not None and facts.disk_free < 2 * facts.log_bytes + SPARE_BYTES:
        yield Alarm("disk", f"The disk of the store has {bytes_text(facts.disk_free)} left.")
    if facts.damaged:
        yield Alarm("corrupt", f"Damage was found in {_number_of(facts.damaged, 'place')}: run pelton verify.")
    if facts.writer is not None and facts.writer.seconds >= WRITER_S:
        yield Alarm(
            "writer",
            f"Process {facts.writer.pid} has held the writer for {span_text(facts.writer.seconds)} and writes nothing: "
            "nobody else can write.",
        )
    ahead = _age(max(facts.newest.values(), key=parse_rfc3339, default=""), facts.now)
    if ahead < -CLOCK_S:
        yield Alarm("clock", f"The clock went back: the newest message is of a time {span_text(-ahead)} ahead of it.")
    if facts.log_bytes > LOG_BYTES:
        yield Alarm("log", f"The log has grown to {bytes_text(facts.log_bytes)}: a process reads an old snapshot.")

    for hub in facts.hubs:
        if quiet := hub_silence(hub, facts.now):
            if quiet <= GONE_HUB_S:
                yield Alarm(
                    "hub",
                    f"No process is the leaf node of {hub.url}: process {hub.pid} told so last {span_text(quiet)} ago.",
                )
        elif not hub.connected_ns:
            yield Alarm("hub", f"The hub {hub.url} is away: {hub.reason} ({_number_of(hub.attempts, 'attempt')}).")
    yield from _of_standbys(facts)


def _of_standbys(facts: HealthFacts) -> Iterator[Alarm]:
    if facts.replaced_by:
        yield Alarm("standby", f"The store was replaced by its standby {facts.replaced_by}: write to that one.")
        return
    for one in facts.standbys:
        if one.seconds > STANDBY_S:
            lacks = f", and lacks {_number_of(one.messages, 'message')}" if one.messages else ""
            yield Alarm("standby", f"Standby {one.standby} was up to date {span_text(one.seconds // 1)} ago{lacks}.")


def hub_silence(hub: LeafNote, now: int) -> float:
    """Return for how many seconds the leaf node of a hub has told nothing; 0 if it is there, at ``now`` on the wall."""
    quiet = (now - hub.told_ns) / SECOND
    return quiet if quiet > QUIET_HUB_S else 0.0


def _of_queue(queue: QueueSummary, facts: HealthFacts) -> Iterator[Alarm]:
    name = queue.name
    if queue.error:
        yield Alarm("unreadable", f"It cannot be looked at: {queue.error}", name)
        return
    waiting = queue.pending + queue.held + queue.retrying
    workers = facts.workers.get(name, ())
    due = _age(queue.oldest_at, facts.now)
    quiet = min(due, _age(queue.last_ended_at, facts.now, due))
    wait = f"{_number_of(waiting, 'job')} {'wait' if waiting > 1 else 'waits'}"
    if queue.paused:
        yield Alarm("paused", f"It is paused{', and ' + wait if waiting else ''}.", name)
    elif waiting and not workers and due >= NO_WORKER_S:
        yield Alarm("no worker", f"No worker runs, and {wait}.", name)
    elif (queue.pending or queue.running) and quiet >= NO_PROGRESS_S:
        yield Alarm(
            "no progress", f"No job has ended for {span_text(quiet)}{', and ' + wait if waiting else ''}.", name
        )
    elif due >= OVERDUE_S:
        yield Alarm("overdue", f"The oldest job that is due has waited for {span_text(due)}.", name)
    longest = max((one.oldest_running for one in workers if one.running), default=0.0)
    if longest >= OVERDUE_S:
        yield Alarm("hangs", f"A job has run for {span_text(longest)}.", name)
    newest = facts.newest.get(QueueNames(name).dead, "")
    if queue.dead_letters and newest and _age(newest, facts.now) < DEAD_S:
        age = span_text(max(_age(newest, facts.now), 0.0) // 1)
        yield Alarm("dead letters", f"{_number_of(queue.dead_letters, 'dead letter')}, the newest {age} ago.", name)


def _number_of(count: int, what: str) -> str:
    return f"{number_text(count)} {what}{'s' * (count != 1)}"


def _age(time: str, now: int, unknown: float = 0.0) -> float:
    """Return for how many seconds a time has been past; negative for one that is still to come."""
    return (now - parse_rfc3339(time)) / SECOND if time else unknown


async def health_facts(
    jet: Jet, path: str, queues: Sequence[QueueSummary], streams: Sequence[StreamSummary]
) -> HealthFacts:
    """Return the facts of now, with those in ``queues`` and ``streams``; ``path`` is the store's file, or empty."""
    # Where workers tell of themselves; an idle queue costs no question.
    used = {one.name for one in streams if one.messages}
    hold = writer_hold(path, jet.runtime.clock.boottime()) if path else None
    troubles = await _troubles_of(jet)
    return HealthFacts(
        now=jet.runtime.clock.now(),
        queues=queues,
        workers={
            one.name: await workers_present(jet, one.name) for one in queues if QueueNames(one.name).running in used
        },
        newest={one.name: one.last_at for one in streams if one.last_at},
        disk_free=_disk_free(path) if path else None,
        log_bytes=size_of(f"{path}-wal") if path else 0,
        damaged=troubles.damaged,
        writer=hold,
        hubs=leafs_noted(path) if path else (),
        standbys=lags_of(path, streams, jet.runtime.clock.now()),
        replaced_by=troubles.replaced_by,
    )


def lags_of(path: str, streams: Sequence[StreamSummary], now: int) -> list[StandbyLag]:
    """Return how far the standbys of the store at ``path`` are, which has these streams; none without a path."""
    return standby_lags(path, sum(one.last_seq for one in streams), now) if path else []


def _disk_free(path: str) -> int | None:
    with suppress(OSError):
        disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
        return disk.f_bavail * disk.f_frsize
    return None


async def _troubles_of(jet: Jet) -> StoreTroubles:
    try:
        return await jet.backend.to_embedded("health").troubles()
    except ConfigError:
        return StoreTroubles()
