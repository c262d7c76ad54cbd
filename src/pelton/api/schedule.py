"""When a schedule fires (``Nats-Schedule``, ADR-51): once at a time, at intervals, or by a cron expression. Pure.

Instants are nanoseconds since the epoch. Firings missed while no process had the store open are made up for once: a
schedule that should have fired ten times fires once, and continues from now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from pelton.api.cron import Cron, next_second, parse_cron
from pelton.api.durations import parse_duration
from pelton.api.times import SECOND

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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class At:
    """Fires once."""

    due: int


@dataclass(frozen=True, slots=True)
class Every:
    """Fires every ``interval`` nanoseconds, on whole seconds."""

    interval: int


@dataclass(frozen=True, slots=True)
class Calendar:
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
            return min(_whole(now) + interval, LATEST)
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


def _whole(ns: int) -> int:
    return (ns + SECOND // 2) // SECOND * SECOND


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
