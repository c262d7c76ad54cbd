"""What time does to a stream: messages age and expire, markers tell of it, schedules fire (ADR-43, ADR-48, ADR-51).

The story. Nothing runs by itself: a deadline is a row, and whatever reads or writes a stream first lets time pass
(:func:`pass_time`), in its own transaction. So all that is due has happened before anybody can see that it has not,
however late it is, and whoever comes second finds nothing due.

First what is past its age or its time to live goes; then, where a subject lost its last message that way, a marker
takes its place, itself with a time to live (a marker's own end leaves none); then schedules fire that are still there.
A schedule with a time to live is therefore not made up for when the store was closed until after its end.

Messages of the stream's own (markers, scheduled ones) meet none of the conditions of a publisher: they cannot be
refused, so that a schedule is never stuck.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from pelton.api import ApiError, StreamConfig, headers
from pelton.api.durations import format_duration
from pelton.api.times import SECOND
from pelton.storage import MessageTable, Row, intact
from pelton.streams.blocks import with_header, without_headers
from pelton.streams.schedule import Schedule, due_text, next_due
from pelton.streams.timers import Firing, Timers
from pelton.streams.wishes import PURGE, expiry, lifted, schedule_of, seconds_of

_log: Final = logging.getLogger("pelton")
_CHUNK: Final = 4096
_AGED: Final = "MaxAge"
_KV_OPERATION: Final = "KV-Operation"
# What of a schedule is not the message that it makes; the prefixes stand for all that begin so.
_NOT_CARRIED: Final = (
    headers.SCHEDULE,
    "Nats-Schedule-",
    "Nats-Expected-",
    headers.SCHEDULER,
    headers.MSG_ID,
    headers.TTL,
    headers.ROLLUP,
)


class Ticking(Protocol):
    """What time passes for: a stream's log."""

    name: str
    config: StreamConfig
    table: MessageTable
    timers: Timers

    def stored_subject(self, subject: str) -> str: ...
    def oldest_ts(self) -> int | None: ...
    def remove(self, sequences: list[int]) -> int: ...
    def get(self, seq: int) -> Row | None: ...
    def last_row_of(self, subject_filter: str) -> Row | None: ...
    def subject_row(self, subject: str) -> list[int]: ...
    def remove_subject(self, subject: str) -> None: ...
    def append_own(self, subject: str, hdr: bytes, data: bytes, now: int, expires: int | None) -> None: ...


def pass_time(log: Ticking, now: int) -> None:
    """Let all happen that is due."""
    while doomed := _doomed(log, now):
        if log.config.subject_delete_marker_ttl > 0:
            _remove_marking(log, doomed, now)
        else:
            log.remove(doomed)
        # Also of a message that was lost in another way.
        log.timers.drop(doomed)
    if log.config.allow_msg_schedules:
        for firing in log.timers.fired(now):
            _fire(log, firing, now)
    log.timers.met()


def _doomed(log: Ticking, now: int) -> list[int]:
    """Return the messages past their age or their time to live, a chunk of them, in order."""
    doomed = log.timers.expired(now, _CHUNK)
    if log.config.max_age > 0:
        limit = now - log.config.max_age
        oldest = log.oldest_ts()
        if oldest is not None and oldest <= limit:
            doomed += [seq for seq, ts in log.timers.ageing(log.table.name, _CHUNK) if ts <= limit]
    return sorted(set(doomed))


# --- markers


def _remove_marking(log: Ticking, doomed: list[int], now: int) -> None:
    """Remove messages, and leave a marker on each subject that has lost its last one."""
    unmarked: dict[str, bool] = {}
    for seq in doomed:
        row = log.get(seq)
        if row is not None and intact(row):
            unmarked[row[2]] = not _is_marker(row[3])
    log.remove(doomed)
    for subject, wanted in unmarked.items():
        if wanted and log.subject_row(subject)[2] <= 0:
            _mark(log, subject, now)


def _is_marker(hdr: bytes | None) -> bool:
    """Whether a message tells of an end itself: a marker, or a key-value store's purge."""
    if hdr is None:
        return False
    return bool(headers.first(hdr, headers.MARKER_REASON)) or headers.first(hdr, _KV_OPERATION) == "PURGE"


def _mark(log: Ticking, subject: str, now: int) -> None:
    seconds = log.config.subject_delete_marker_ttl // SECOND
    life = format_duration(seconds * SECOND)
    hdr = headers.encode({headers.MARKER_REASON: _AGED, headers.TTL: life, headers.ROLLUP: "sub"})
    log.append_own(subject, hdr, b"", now, expiry(seconds, now))


# --- schedules


def _fire(log: Ticking, firing: Firing, now: int) -> None:
    """Make the message of a schedule, and set when it fires again, or end it."""
    if log.timers.schedule(firing.subject) != firing:
        # One that fired before has ended or replaced it.
        return
    row = log.get(firing.seq)
    try:
        if row is None or not intact(row):
            raise ValueError("its message is damaged")
        hdr = row[3] or b""
        schedule = schedule_of(hdr)
        following = next_due(schedule, firing.due, now)
    except (ApiError, ValueError) as error:
        _log.error("stream %s: the schedule on %s cannot fire and stands still: %s", log.name, firing.subject, error)
        log.timers.stop(firing.subject)
        return
    _produce(log, firing.subject, hdr, row[4], schedule, following, now)
    if log.timers.schedule(firing.subject) != firing:
        # What it made has taken its place.
        return
    if following is None:
        log.remove_subject(firing.subject)
    else:
        log.timers.put(firing._replace(due=following))


def _produce(
    log: Ticking, subject: str, hdr: bytes, data: bytes, schedule: Schedule, following: int | None, now: int
) -> None:
    target = log.stored_subject(headers.first(hdr, headers.SCHEDULE_TARGET) or "")
    carried: bytes | None = hdr
    source = headers.first(hdr, headers.SCHEDULE_SOURCE)
    sampled = log.last_row_of(source) if source else None
    if sampled is not None and intact(sampled):
        carried, data = sampled[3], sampled[4]
    block = with_header(without_headers(carried, *_NOT_CARRIED), headers.SCHEDULER, subject)
    when = PURGE if following is None else due_text(schedule, following)
    block = with_header(block, headers.SCHEDULE_NEXT, when)
    expires = None
    if life := headers.first(hdr, headers.SCHEDULE_TTL):
        seconds = seconds_of(life)
        least = lifted(log.config, seconds)
        block = with_header(block, headers.TTL, life if least == seconds else str(least))
        expires = expiry(least, now)
    if rollup := headers.first(hdr, headers.SCHEDULE_ROLLUP):
        block = with_header(block, headers.ROLLUP, rollup)
    log.append_own(target, block, data, now, expires)
