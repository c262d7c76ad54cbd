"""Round moments for an axis of time: full seconds, minutes, hours and days, as people read clocks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_DAY: Final = 86_400.0
_STEPS: Final = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY),
)
_MOST_DAYS: Final = 1000


def moments(begin: datetime, seconds: float, most: int = 7) -> list[tuple[float, str]]:
    """Return round moments in a span of time, ``most`` of them: how many seconds after ``begin``, and as text."""
    step = next((step for step in _STEPS if seconds / step < most), _MOST_DAYS * _DAY)
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = (begin - midnight).total_seconds()
    first = -int(-passed // step)
    found: list[tuple[float, str]] = []
    for number in range(first, first + most + 1):
        at = number * step - passed
        if at <= seconds + 1e-9:
            found.append((at, _shown(midnight + timedelta(seconds=number * step), step, seconds)))
    return found


def _shown(moment: datetime, step: float, seconds: float) -> str:
    if step >= _DAY:
        return f"{moment:%Y-%m-%d}"
    if step < 1:
        return f"{moment:%H:%M:%S.%f}"[: -4 if step < 0.1 else -5]
    clock = f"{moment:%H:%M}" if step >= 60 else f"{moment:%H:%M:%S}"
    return f"{moment:%m-%d} {clock}" if seconds > _DAY else clock
