"""A stream inside a transaction: its state, appender, remover and reader.

All durable state is in rows; :class:`~pelton.streams.state.StreamState` caches the small ones and buffers what the open
transaction has appended. The appender's ``flush`` writes the buffer; anything that reads message rows writes those
first. After another process has written, or after a rollback, the cache is read again.

**Time in a stream: messages age and expire, delete markers report it, schedules fire (ADR-43, ADR-48, ADR-51).** There
is no background task: a deadline is a row, and every read or write of a stream first lets time pass
(:func:`pass_time`), in its own transaction. So nothing overdue is ever visible, however late it is applied, and the
next caller finds nothing due. If very much has expired, it goes in several transactions, between which others can
write, and whoever reads waits for them; only a plain publish, which reads nothing, leaves the rest to the next one.
What a roll-up replaces is removed likewise, if it is much: from the commit of its message on, it is due.

First, messages past their age or TTL are removed; then each subject that lost its last message this way gets a marker,
which has a TTL itself (an expired marker leaves no other); then the remaining schedules fire. So a schedule with a TTL
is not made up for if the store was closed until after its end.

Messages that the stream itself makes (markers, scheduled ones) are subject to no publish conditions: they cannot be
refused, so a schedule is never stuck.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from pelton.api import ApiError, StreamConfig, headers
from pelton.api.schedule import At, Schedule, due_text, next_due
from pelton.api.times import SECOND, format_duration
from pelton.storage import FastGet, intact
from pelton.storage.messages import MessageTable
from pelton.streams.appender import Appender
from pelton.streams.copier import Copier
from pelton.streams.publish_checks import PURGE, expiry, lifted, schedule_of, seconds_of
from pelton.streams.reader import Reader
from pelton.streams.remover import Remover
from pelton.streams.state import StreamEnv, StreamState
from pelton.streams.timers import Firing

_log: Final = logging.getLogger("pelton.streams")
# So many expire at once, and so many where each may leave a marker.
_CHUNK: Final = 1024
_MARKED: Final = 128
_AGED: Final = "MaxAge"
_KV_OPERATION: Final = "KV-Operation"
# Headers of a schedule that its messages do not get; a name that ends in ``-`` is a prefix.
_NOT_CARRIED: Final = (
    headers.SCHEDULE,
    "Nats-Schedule-",
    "Nats-Expected-",
    headers.SCHEDULER,
    headers.DELAY,
    headers.MSG_ID,
    headers.TTL,
    headers.ROLLUP,
)


def pass_time(appender: Appender, remover: Remover, now: int, portions: int = -1) -> bool:
    """Apply everything that is due, or some ``portions`` of what has expired; return whether more is due."""
    state = appender.state
    while state.rolling:
        if portions == 0:
            return True
        portions -= 1
        remover.roll_on()
    while doomed := _find_doomed(state, now):
        if portions == 0:
            return True
        portions -= 1
        if state.config.subject_delete_marker_ttl.ns > 0:
            _remove_marking(appender, remover, doomed, now)
        else:
            remover.remove(doomed)
        # Also for a message that was lost in another way.
        state.timers.drop(doomed)
    if state.config.allow_msg_schedules:
        for firing in state.timers.fired(now):
            _fire(appender, remover, firing, now)
    state.timers.met()
    return False


def _find_doomed(state: StreamState, now: int) -> list[int]:
    """Return the messages past their age or TTL, a chunk of them, in order."""
    most = _MARKED if state.config.subject_delete_marker_ttl.ns > 0 else _CHUNK
    doomed = state.timers.expired(now, most)
    if state.config.max_age.ns > 0:
        limit = now - state.config.max_age.ns
        oldest = state.oldest_ts()
        if oldest is not None and oldest <= limit:
            ageing = state.timers.ageing(state.table.name, most)
            doomed += [aged.seq for aged in ageing if state.counts_from(aged.seq, aged.ts) <= limit]
    return sorted(set(doomed))[:most]


# --- markers


def _remove_marking(appender: Appender, remover: Remover, doomed: list[int], now: int) -> None:
    """Remove messages, and leave a marker on each subject that has lost its last one, in the order of those."""
    unmarked: dict[str, bool] = {}
    for seq in doomed:
        row = appender.reader.get(seq)
        if row is not None and intact(row):
            unmarked.pop(row.subject, None)
            unmarked[row.subject] = not _is_marker(row.hdr)
    remover.remove(doomed)
    for subject, wanted in unmarked.items():
        if wanted and appender.state.subject_row(subject).msgs <= 0:
            _mark(appender, subject, now)


def _is_marker(hdr: bytes | None) -> bool:
    """Whether a message marks a removal itself: a delete marker, or a purge of a key-value store."""
    if hdr is None:
        return False
    return bool(headers.first_value(hdr, headers.MARKER_REASON)) or headers.first_value(hdr, _KV_OPERATION) == "PURGE"


def _mark(appender: Appender, subject: str, now: int) -> None:
    seconds = appender.state.config.subject_delete_marker_ttl.ns // SECOND
    life = format_duration(seconds * SECOND)
    hdr = headers.encode({headers.MARKER_REASON: _AGED, headers.TTL: life, headers.ROLLUP: "sub"})
    appender.append_own(subject, hdr, b"", now, expiry(seconds, now))


# --- schedules


def _fire(appender: Appender, remover: Remover, firing: Firing, now: int) -> None:
    """Store the message of a schedule, and set when it fires again, or end it."""
    state = appender.state
    if state.timers.schedule(firing.subject) != firing:
        # A schedule that fired before has ended or replaced this one.
        return
    row = appender.reader.get(firing.seq)
    try:
        if row is None or not intact(row):
            raise ValueError("its message is damaged")
        hdr = row.hdr or b""
        schedule = schedule_of(hdr)
        following = next_due(schedule, firing.due, now)
    except (ApiError, ValueError) as error:
        _log.error(
            "stream %s: the schedule on %s cannot fire and was stopped: %s",
            state.name,
            firing.subject,
            error,
            extra={"stream": state.name, "subject": firing.subject},
        )
        state.timers.stop(firing.subject)
        return
    jumped = state.counts_from(firing.seq, row.ts) - row.ts
    if jumped and isinstance(schedule, At):
        # For what counts from when it was stored.
        hdr = headers.with_value(headers.without_headers(hdr, headers.JUMPED), headers.JUMPED, str(jumped))
    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)
    if state.timers.schedule(firing.subject) != firing:
        # The stored message has replaced it.
        return
    if following is None:
        remover.remove_subject(firing.subject)
    else:
        state.timers.put(msgspec.structs.replace(firing, due=following))


def _produce(
    appender: Appender, subject: str, hdr: bytes, data: bytes, schedule: Schedule, following: int | None, now: int
) -> None:
    target = appender.stored_subject(headers.first_value(hdr, headers.SCHEDULE_TARGET) or "")
    carried: bytes | None = hdr
    source = headers.first_value(hdr, headers.SCHEDULE_SOURCE)
    sampled = appender.reader.last_row_of(source) if source else None
    if sampled is not None and intact(sampled):
        carried, data = sampled.hdr, sampled.data
    block = headers.with_value(headers.without_headers(carried, *_NOT_CARRIED), headers.SCHEDULER, subject)
    when = PURGE if following is None else due_text(schedule, following)
    block = headers.with_value(block, headers.SCHEDULE_NEXT, when)
    expires = None
    if life := headers.first_value(hdr, headers.SCHEDULE_TTL):
        seconds = seconds_of(life)
        least = lifted(appender.state.config, seconds)
        block = headers.with_value(block, headers.TTL, life if least == seconds else str(least))
        expires = expiry(least, now)
    if rollup := headers.first_value(hdr, headers.SCHEDULE_ROLLUP):
        block = headers.with_value(block, headers.ROLLUP, rollup)
    appender.append_own(target, block, data, now, expires)


class StreamLog:
    """The stream with row id ``stream`` and configuration ``config``, ``created`` at a time."""

    def __init__(self, env: StreamEnv, stream: int, config: StreamConfig, created: int) -> None:
        self.id = stream
        self.name: str = config.name
        self.created = created
        self.config: StreamConfig = config
        self.state: StreamState = StreamState(env, stream, config)
        self.table: MessageTable = self.state.table
        self.fast_get: FastGet = FastGet(env.database, stream)
        self.reader: Reader = Reader(self.state)
        self.remover: Remover = Remover(self.state, self.reader)
        self.appender: Appender = Appender(self.state, self.reader, self.remover)
        self.copier: Copier = Copier(self.appender)

    def configure(self, config: StreamConfig) -> None:
        """Apply a (changed) configuration; its limits take effect with the next flush."""
        self.config = config
        self.state.configure(config)
        self.appender.configure(config)

    def advance(self, now: int) -> None:
        """Apply everything that is due; call it before anything reads or writes the stream.

        Raises SnapshotOnlyError if something is due in a snapshot.
        """
        if self.state.is_overdue(now):
            self.state.db.check_changing()
            pass_time(self.appender, self.remover, now)

    def advance_some(self, now: int) -> bool:
        """Apply what is due, but of what has expired a portion; return whether more is due: nobody may read it."""
        return self.state.is_overdue(now) and pass_time(self.appender, self.remover, now, 1)
