"""When a schedule fires (``Nats-Schedule``, ADR-51): once at a time, at intervals, or by a cron expression. Pure.

Instants are nanoseconds since the epoch. Firings missed while no process had the store open are made up for once: a
schedule that should have fired ten times fires once, and continues from now.

**Cron expressions: which seconds match, and which of them comes next. Pure.** An expression has six fields: second,
minute, hour, day of the month, month, day of the week (0 is Sunday). A field is a list of ``*``, ``n``, ``a-b``, each
with an optional step (``*/n``); months and weekdays have names. If both day fields are restricted, a match of either is
enough. This is the dialect of nats-server 2.15 (ADR-51).

In a time zone, an expression matches every second of real time whose local time matches. So a time that is skipped in
spring does not occur, and one that is repeated in autumn occurs twice.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Final

import msgspec

from pelton.api.times import SECOND, parse_duration

_DAY_S: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal()
_YEARS: Final = 5
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_WEEKDAYS: Final = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


class Field(msgspec.Struct, frozen=True):
    """The values of one field in order, and whether its list contains ``*``."""

    values: tuple[int, ...]
    starred: bool


class Cron(msgspec.Struct, frozen=True):
    """A parsed expression."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Field
    months: tuple[int, ...]
    weekdays: Field

    def takes_day(self, day: date) -> bool:
        """Return whether a day matches."""
        if day.month not in self.months:
            return False
        in_month = day.day in self.days.values
        in_week = day.isoweekday() % 7 in self.weekdays.values
        if self.days.starred or self.weekdays.starred:
            return in_month and in_week
        return in_month or in_week

    def time_from(self, second: int) -> int | None:
        """Return the first matching second of a day at or after ``second``."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        for h in self.hours[bisect_left(self.hours, hour) :]:
            if h > hour:
                return h * 3600 + self.minutes[0] * 60 + self.seconds[0]
            for m in self.minutes[bisect_left(self.minutes, minute) :]:
                if m > minute:
                    return h * 3600 + m * 60 + self.seconds[0]
                place = bisect_left(self.seconds, second)
                if place < len(self.seconds):
                    return h * 3600 + m * 60 + self.seconds[place]
        return None


def parse_cron(text: str) -> Cron:
    """Parse an expression; raises ValueError if it is invalid."""
    fields = text.split()
    if len(fields) != 6:
        raise ValueError(f"cron expression {text!r} has {len(fields)} fields, not 6: seconds come first")
    return Cron(
        seconds=_field(fields[0], 0, 59).values,
        minutes=_field(fields[1], 0, 59).values,
        hours=_field(fields[2], 0, 23).values,
        days=_field(fields[3], 1, 31),
        months=_field(fields[4], 1, 12, _MONTHS).values,
        weekdays=_field(fields[5], 0, 6, _WEEKDAYS),
    )


def _field(text: str, low: int, high: int, names: dict[str, int] | None = None) -> Field:
    values: set[int] = set()
    starred = False
    for part in filter(None, text.split(",")):
        found, star = _range(part, low, high, names or {})
        values.update(found)
        starred = starred or star
    if not values:
        raise ValueError(f"cron field {text!r} names no value")
    return Field(tuple(sorted(values)), starred)


def _range(text: str, low: int, high: int, names: dict[str, int]) -> tuple[range, bool]:
    bounds, slash, step_text = text.partition("/")
    step = _number(step_text, {}) if slash else 1
    first, dash, last = bounds.partition("-")
    star = first in ("*", "?")
    start = low if star else _number(first, names)
    to_the_end = star or (slash and not dash)
    end = high if to_the_end else _number(last, names) if dash else start
    if not (low <= start <= end <= high) or step < 1:
        raise ValueError(f"cron range {text!r} is not within {low}-{high} with a step of 1 or more")
    return range(start, end + 1, step), star and step == 1


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise ValueError(f"cron value {text!r} is not a number or a name of this field")
    return int(digits)


def next_second(cron: Cron, after: int, zone: tzinfo | None = None) -> int | None:
    """Return the first matching second of Unix time after ``after``; None if there is none within five years."""
    if zone is None:
        return _next_local(cron, after, _last_day(after))
    last_day = _last_day(after)
    while after // _DAY_S <= last_day - _EPOCH_DAY:
        # A span of time within one day in which the zone's offset does not change.
        offset, end = _piece(zone, after + 1)
        found = _next_local(cron, after + offset, (end - 1 + offset) // _DAY_S + _EPOCH_DAY)
        if found is not None and found - offset < end:
            return found - offset
        after = end - 1
    return None


def _last_day(after: int) -> int:
    year = date.fromordinal(min(after // _DAY_S + _EPOCH_DAY, _LAST_DAY)).year
    return date(min(year + _YEARS, date.max.year), 12, 31).toordinal()


def _next_local(cron: Cron, after: int, last_day: int) -> int | None:
    """Do the same on a clock without zones, on which every day has 86,400 seconds."""
    days, second = divmod(after + 1, _DAY_S)
    for ordinal in range(days + _EPOCH_DAY, last_day + 1):
        if cron.takes_day(date.fromordinal(ordinal)):
            found = cron.time_from(second)
            if found is not None:
                return (ordinal - _EPOCH_DAY) * _DAY_S + found
        second = 0
    return None


def _piece(zone: tzinfo, start: int) -> tuple[int, int]:
    """Return the zone's offset at ``start``, and the end (at most a day later) of the time for which it holds."""
    offset, end = _offset(zone, start), start + _DAY_S
    if _offset(zone, end - 1) == offset:
        return offset, end
    low = start
    while end - low > 1:
        middle = (low + end) // 2
        if _offset(zone, middle) == offset:
            low = middle
        else:
            end = middle
    return offset, end


def _offset(zone: tzinfo, second: int) -> int:
    found = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return 0 if found is None else int(found.total_seconds())


LATEST: Final = (1 << 63) - 2
"""The last instant that a row can hold."""

_PREDEFINED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)


class At(msgspec.Struct, frozen=True):
    """Fires once."""

    due: int


class Every(msgspec.Struct, frozen=True):
    """Fires every ``interval`` nanoseconds, on whole seconds."""

    interval: int


class Calendar(msgspec.Struct, frozen=True):
    """Fires by a cron expression, evaluated in a time zone (None: UTC)."""

    cron: Cron
    zone: tzinfo | None


Schedule = At | Every | Calendar


def parse_schedule(text: str, zone: tzinfo | None = None) -> Schedule:
    """Parse a ``Nats-Schedule``; raises ValueError if it is invalid."""
    kind, space, rest = text.partition(" ")
    if kind in ("@at", "@every") and space:
        if zone is not None:
            raise ValueError(f"schedule {text!r}: only cron expressions are read in a time zone; leave it out")
        return At(_instant(rest)) if kind == "@at" else Every(_interval(rest))
    return Calendar(parse_cron(_PREDEFINED.get(text, text)), zone)


def parse_zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name; raises ValueError if it is invalid or unknown to this machine."""
    # Few programs have schedules in a time zone, and it reads where this machine keeps its zones.
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone known to this machine: use a name like Europe/Berlin") from None


def _instant(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no RFC 3339 time: write it like 2026-01-02T03:04:05Z")
    day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    moment = datetime.fromisoformat(f"{day}T{int(hour):02}:{minute}:{second}+00:00")
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    since = moment - _EPOCH - (-offset if sign == "-" else offset)
    ns = (since.days * 86_400 + since.seconds) * SECOND + int((fraction or "")[:9].ljust(9, "0"))
    return min(max(ns, 0), LATEST)


def _interval(text: str) -> int:
    interval = parse_duration(text)
    if interval < SECOND:
        raise ValueError(f"an interval of {text!r} is too short: at least 1s")
    return interval


def first_due(schedule: Schedule, now: int) -> int:
    """Return when a schedule that is stored at ``now`` fires first; ValueError if it never does."""
    match schedule:
        case At(due):
            return due
        case Every(interval):
            return min((now + SECOND // 2) // SECOND * SECOND + interval, LATEST)
        case Calendar(cron, zone):
            found = next_second(cron, now // SECOND, zone)
            if found is None:
                raise ValueError("the cron expression names no time within five years")
            return min(found * SECOND, LATEST)


def next_due(schedule: Schedule, due: int, now: int) -> int | None:
    """Return when a schedule fires next, after it fired for ``due`` at ``now``; None if it is done."""
    if isinstance(schedule, At):
        return None
    following = first_due(schedule, due)
    return following if following >= now else first_due(schedule, now)


def due_text(schedule: Schedule, due: int) -> str:
    """Return an instant on a whole second in wire format, in the schedule's own zone."""
    zone = schedule.zone if isinstance(schedule, Calendar) and schedule.zone is not None else UTC
    moment = (_EPOCH + timedelta(seconds=due // SECOND)).astimezone(zone)
    offset = moment.utcoffset()
    if not offset:
        return moment.replace(tzinfo=None).isoformat() + "Z"
    # RFC 3339 offsets have minutes only; some historical zones have seconds.
    minutes = timezone(timedelta(minutes=offset // timedelta(minutes=1)))
    return moment.replace(tzinfo=minutes).isoformat()
