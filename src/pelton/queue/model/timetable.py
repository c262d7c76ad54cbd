"""When the jobs of a schedule are due: what a user passes, checked, and the next time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pelton.api import ConfigError
from pelton.api.durations import format_duration
from pelton.api.schedule import Schedule, first_due, parse_schedule, parse_zone
from pelton.queue.model.checks import checked_text, seconds
from pelton.queue.model.states import Timetable

if TYPE_CHECKING:
    from pelton.api.times import Seconds

_OVERLAPS: Final = ("skip", "allow")
_SHORTEST_S: Final = 1.0


def timetable_of(
    queue: str, name: object, cron: str | None, timezone: str | None, every: Seconds | None, overlap: str
) -> Timetable:
    """Return when the jobs of a schedule are due, from what a user passes. Raises ConfigError."""
    what = f"queue {queue!r}: schedule {checked_text(f'queue {queue!r}: the name of a schedule', name)!r}"
    if (cron is None) == (every is None):
        raise ConfigError(f"{what}: give cron or every, one of them")
    if overlap not in _OVERLAPS:
        raise ConfigError(f"{what}: overlap is {overlap!r}; it must be 'skip' or 'allow'")
    if every is not None:
        if timezone is not None:
            raise ConfigError(f"{what}: an interval (every) has no time zone: leave timezone out, or give cron")
        interval = seconds(f"{what}: every", every)
        if interval < _SHORTEST_S:
            raise ConfigError(f"{what}: every is {interval:g} s; it must be at least 1 s")
        return Timetable(str(name), every=interval, overlap=overlap)
    found = Timetable(str(name), cron=_six_fields(what, cron), timezone=timezone or "", overlap=overlap)
    try:
        first_due(_parsed(found), 0)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None
    return found


def _six_fields(what: str, cron: object) -> str:
    """Return a cron expression with the field for seconds, which most dialects do not have."""
    fields = checked_text(f"{what}: cron", cron).split()
    return " ".join(["0", *fields] if len(fields) == 5 else fields)


def schedule_text_of(timetable: Timetable) -> str:
    """Return the value of ``Nats-Schedule``."""
    return timetable.cron or f"@every {format_duration(int(timetable.every * 1e9))}"


def next_due(timetable: Timetable, since: int, now: int) -> int:
    """Return when a schedule that was stored at ``since`` is due next, in wall nanoseconds; 0 if that is not known."""
    try:
        if timetable.cron:
            return first_due(_parsed(timetable), now)
        # The clock may have been set back since.
        first = first_due(parse_schedule(schedule_text_of(timetable)), min(since, now))
    except ValueError:
        # Another program, or a server, may know more time zones.
        return 0
    interval = int(timetable.every * 1e9)
    return first if first > now else first + ((now - first) // interval + 1) * interval


def _parsed(timetable: Timetable) -> Schedule:
    return parse_schedule(timetable.cron, parse_zone(timetable.timezone) if timetable.timezone else None)
