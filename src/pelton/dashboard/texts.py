"""Numbers, sizes and times as the pages show them. Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import rfc3339
from pelton.api.times import SECOND, parse_rfc3339

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LONG: Final = (("d", 86_400), ("h", 3600), ("min", 60))


def number_text(value: float) -> str:
    """Return a number with separators, and what is no whole number with three digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def bytes_text(size: float) -> str:
    """Return a number of bytes."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"


def span_text(seconds: float) -> str:
    """Return a duration."""
    for unit, length in _LONG:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else f"{seconds:.3g} s"


def since_text(time: str | int, now: int) -> str:
    """Return how long ago a time was: RFC 3339 text, or wall nanoseconds; a dash for none."""
    if not time:
        return "-"
    at = time if isinstance(time, int) else parse_rfc3339(time)
    return f"{span_text(float(max(now - at, 0) // SECOND))} ago"


def moment_of(time: str | int) -> str:
    """Return a time as ``2026-01-31 12:00:00`` in UTC; a dash for none."""
    if not time:
        return "-"
    return (time if isinstance(time, str) else rfc3339(time))[:19].replace("T", " ")
