"""Time stamps as the wire carries them: RFC 3339 text, UTC, up to nine digits of a second.

Inside Pelton an instant is an ``int``: nanoseconds since the Unix epoch. Text appears only on structs that
travel. Like in Go's ``RFC3339Nano`` the fraction has no trailing zeros, so that our replies look like the
reference server's. No clock is read here.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

from pelton.api.errors import ConfigError

Seconds = float | timedelta
"""A duration, as users give it."""
SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

NEVER: Final = (1 << 63) - 1
"""A time that never comes."""

ZERO_TIME: Final = "0001-01-01T00:00:00Z"
"""How the wire says "never": Go's zero time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHAPE = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def rfc3339(ns: int) -> str:
    """Return the text of an instant given in nanoseconds since the epoch; years 1 to 9999, else `ConfigError`."""
    seconds, fraction = divmod(ns, SECOND)
    try:
        text = _text_of(seconds)
    except OverflowError:
        raise ConfigError(f"{ns} ns since 1970 is outside the years 1 to 9999: pass another time") from None
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


# What is written or read together is often of one second.
@lru_cache(maxsize=1024)
def _text_of(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def parse_rfc3339(text: str) -> int:
    """Return the nanoseconds since the epoch of RFC 3339 text with any offset; `ConfigError` if it is invalid."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise _not_a_time(text)
    fraction = found[3] or ""
    try:
        seconds = _seconds_at(found[1], found[2], found[4], found[5], found[6])
    except ValueError:
        raise _not_a_time(text) from None
    return seconds * SECOND + int(fraction.ljust(9, "0"))


@lru_cache(maxsize=1024)
def _seconds_at(day: str, clock: str, sign: str | None, hours: str, minutes: str) -> int:
    since = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=_zone(sign, hours, minutes)) - _EPOCH
    return since.days * 86_400 + since.seconds


def datetime_ns(moment: datetime) -> int:
    """Return the nanoseconds since the epoch of an aware datetime; refuse a naive one, whose zone would be a guess."""
    if moment.utcoffset() is None:
        raise ConfigError(f"{moment.isoformat()} has no time zone: add tzinfo=timezone.utc, or your own zone")
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def go_duration(ns: int) -> str:
    """Return a duration as Go writes it, as in the server's texts: ``1m30s``, ``1.5s``, ``250ms``."""
    for unit, size in (("ns", 1), ("µs", 1000), ("ms", 1_000_000)):
        if 0 < ns < size * 1000:
            return _decimal(ns, size) + unit
    minutes, rest = divmod(ns, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{prefix}{_decimal(rest, SECOND)}s"


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    digits = f"{fraction:0{len(str(unit)) - 1}d}".rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


def _zone(sign: str | None, hours: str, minutes: str) -> timezone:
    if sign is None:
        return UTC
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if sign == "-" else offset)


def _not_a_time(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no RFC 3339 time: write it like 2026-01-02T03:04:05.123456789Z")
