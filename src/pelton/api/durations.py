"""Durations as text, the way Go writes and reads them: ``1h30m``, ``1.5s``, ``250ms``.

NATS carries such texts in headers (``Nats-TTL``, ``Nats-Schedule``). Inside Pelton a duration is an ``int`` of
nanoseconds.
"""

import re
from typing import Final

from pelton.api.times import SECOND

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,  # the Greek letter, beside the micro sign
    "ms": 1_000_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PART: Final = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LIMIT: Final = 1 << 63


def parse_duration(text: str) -> int:
    """Nanoseconds of a text like ``-1h2.5m``; ValueError where it is none, or lasts longer than 292 years."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total = position = 0
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None or not (found[1] or found[2]):
            raise ValueError(f"{text!r} is no duration: write it like 1h30m, 90s or 500ms")
        total += _part(found[1], found[2] or "", _UNITS[found[3]])
        position = found.end()
    if not rest or total >= _LIMIT:
        raise ValueError(f"{text!r} is no duration below 292 years: write it like 1h30m, 90s or 500ms")
    return sign * total


def _part(whole: str, fraction: str, unit: int) -> int:
    return int(whole or "0") * unit + int(fraction or "0") * unit // int(10 ** len(fraction))


def format_duration(ns: int) -> str:
    """The text of a duration, as Go prints it: ``1m40s``, ``1.5s``, ``250ms``."""
    if ns < 0:
        return f"-{format_duration(-ns)}"
    if ns < SECOND:
        unit = "ns" if ns < 1_000 else "µs" if ns < 1_000_000 else "ms"
        return f"{_decimal(ns, _UNITS[unit])}{unit}" if ns else "0s"
    minutes, rest = divmod(ns, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
