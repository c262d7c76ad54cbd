"""What a jump of the wall clock changes in the rows of a store: deadlines, and the ages of messages.

Most times in rows count from a moment: ack waits, delays, times to live, duplicate windows, intervals. They are moved
by as much as the clock has jumped. A time of day (``at``, the end of a pause) stays, and a cron expression is looked at
again. Messages keep the time at which they were stored; how it compares with the time now is kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from pelton.api import ApiError, headers
from pelton.api.schedule import At, Every, first_due
from pelton.api.times import NEVER, SECOND, parse_duration
from pelton.storage import STATE_SEQ, DamagedRowError, Database, blob, integer, newest
from pelton.streams import Jumps, schedule_of

# A run that a clock made too early by less than this is not repeated.
_SAME_RUN: Final = 60 * SECOND
# Later times mean "never".
_LATEST: Final = NEVER // 2
_MOST_JUMPS: Final = 64
_SHIFTS: Final = (
    # That of consumers, too, which is the least of their deliveries.
    "UPDATE pelton_deliveries SET due=due+?1 WHERE consumer>0 AND due<?2",
    "UPDATE pending_removed SET due=due+?1 WHERE due<?2",
    "UPDATE consumer_state SET last_active=last_active+?1 WHERE last_active",
    "UPDATE consumer_state SET last_ack=last_ack+?1 WHERE last_ack",
    "UPDATE consumer_state SET replay_shift=replay_shift+?1 WHERE replay_shift",
    "UPDATE consumer_state SET replay_due=replay_due+?1 WHERE replay_due",
    "UPDATE pulls SET since=since+?1, seen=seen+?1",
    "UPDATE pins SET since=since+?1, seen=seen+?1",
    "UPDATE nearest SET seen=seen+?1",
    "UPDATE timers SET due=due+?1 WHERE due<?2",
    "UPDATE ids SET ts=ts+?1",
    "UPDATE sourcing SET active=active+?1 WHERE active",
)

_CLAMP: Final = "UPDATE pelton_deliveries SET due=?1 WHERE consumer=?2 AND seq<?4 AND NOT waits AND due>?1 AND due<?3"


class _StreamAges(msgspec.Struct):
    """What matters here of a stream's configuration, in nanoseconds; a mirror has the times of its origin."""

    max_age: int = 0
    allow_msg_schedules: bool = False
    mirror: Any = None
    sources: Any = None


class _AckWaits(msgspec.Struct):
    """What matters here of a consumer's configuration, in nanoseconds."""

    ack_wait: int = 0
    backoff: list[int] = []


_ages: Final = msgspec.json.Decoder(_StreamAges).decode
_ack_waits: Final = msgspec.json.Decoder(_AckWaits).decode


def shift_deadlines(database: Database, by: int, now: int) -> None:
    """Move everything that counts from a moment, after the clock has jumped ``by`` nanoseconds to ``now``."""
    for statement in _SHIFTS:
        database.execute(statement, (by, _LATEST) if "?2" in statement else (by,))
    _move_schedules(database, by, now)


def clamp_deadlines(database: Database, now: int) -> None:
    """Let nothing wait longer than it was asked to, as far as its row or its message tells."""
    for row_id, raw in database.execute("SELECT id, config FROM consumers").fetchall():
        with suppress(msgspec.DecodeError):
            config = _ack_waits(blob(raw))
            if longest := max(config.backoff, default=config.ack_wait):
                database.execute(_CLAMP, (now + longest, row_id, _LATEST, STATE_SEQ))
    _move_schedules(database, 0, now)


def _move_schedules(database: Database, by: int, now: int) -> None:
    for (stream,) in database.execute("SELECT DISTINCT stream FROM schedules").fetchall():
        sql = f"SELECT s.subject, s.due, m.hdr FROM schedules s JOIN m_{stream} m ON m.seq=s.seq WHERE s.stream=?"
        moved = [
            (due, stream, subject)
            for subject, before, hdr in database.execute(sql, (stream,)).fetchall()
            if (due := moved_schedule(hdr, integer(before), by, now)) != before
        ]
        database.executemany("UPDATE schedules SET due=? WHERE stream=? AND subject=?", moved)


def moved_schedule(hdr: object, due: int, by: int, now: int) -> int:
    """Return when a schedule is due that was due at ``due``, after the clock has jumped ``by`` to ``now``."""
    if not isinstance(hdr, bytes):
        return due
    try:
        schedule = schedule_of(hdr)
        if isinstance(schedule, At):
            delay = headers.first(hdr, headers.DELAY)
            return due if delay is None else min(due + by, now + parse_duration(delay))
        if isinstance(schedule, Every):
            return min(due + by, first_due(schedule, now))
        return due if -_SAME_RUN <= by < 0 else min(due, first_due(schedule, now))
    except (ApiError, ValueError):
        # It is stopped when it fires.
        return due


# --- the ages of messages


def jumps_after(database: Database, jumps: Mapping[int, Jumps], by: int) -> dict[int, Jumps]:
    """Return the jumps of all streams whose messages age, after the clock has jumped ``by``."""
    found: dict[int, Jumps] = {}
    for stream, config, first, last, _ in _streams(database):
        # Those of a queue have schedules; its jobs have times to live of their own.
        is_aging = config.max_age or config.allow_msg_schedules
        if is_aging and (entries := _after(jumps.get(stream, ()), by, first, last)):
            found[stream] = entries
    return found


def _after(jumps: Jumps, by: int, first: int, last: int) -> Jumps:
    moved = [(upto, total + by) for upto, total in jumps if first <= upto]
    if last >= first and not (moved and moved[-1][0] == last):
        moved.append((last, by))
    # Of neighbours that differ by the same, the later says it; and the last need not say that nothing differs.
    following = [*(total for _, total in moved[1:]), 0]
    kept = [entry for entry, after in zip(moved, following, strict=False) if entry[1] != after]
    return tuple(kept[-_MOST_JUMPS:])


def last_used(database: Database, ahead: Mapping[int, int]) -> int:
    """Return when the store was last used, by the clock that it had then, as far as its rows tell; 0 if they don't.

    Nothing is told by the streams of :func:`stored_ahead`, as long as they have got no other message.
    """
    consumers = "SELECT max(max(last_active, last_ack)) FROM consumer_state"
    times = [time for stream, (last, time) in _last_stored(database).items() if ahead.get(stream) != last]
    return max([int(database.value(consumers) or 0), *times])


def stored_ahead(database: Database, now: int) -> dict[int, int]:
    """Return the streams whose last message has a time later than ``now``, with its sequence."""
    return {stream: last for stream, (last, time) in _last_stored(database).items() if time > now}


def _last_stored(database: Database) -> dict[int, tuple[int, int]]:
    """Return the sequence and time of the last message of each stream whose times are those of this machine."""
    found: dict[int, tuple[int, int]] = {}
    for stream, config, _, last, last_ts in _streams(database):
        if not (config.mirror or config.sources):
            found[stream] = last, last_ts
    return found


def _streams(database: Database) -> Iterator[tuple[int, _StreamAges, int, int, int]]:
    """Yield each stream, with its first sequence, its last one, and the time of that."""
    sql = "SELECT s.id, s.config, t.first, t.last, t.last_ts FROM streams s JOIN stream_state t ON t.id=s.id"
    for row_id, raw, first, last, last_ts in database.execute(sql).fetchall():
        with suppress(msgspec.DecodeError, ValueError):
            stream, ages, end = integer(row_id), _ages(blob(raw)), (integer(last), integer(last_ts))
            with suppress(DamagedRowError):
                end = newest(database, stream, *end)
            yield stream, ages, integer(first), *end
