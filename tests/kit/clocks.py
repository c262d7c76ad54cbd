"""Clocks that are not right."""

from __future__ import annotations

from dataclasses import replace

from pelton.runtime import Runtime, SystemClock, system_runtime


class ClockBehind(SystemClock):
    """The system's clock, with a wall clock that is ``seconds`` behind."""

    def __init__(self, seconds: float) -> None:
        self._behind_ns = round(seconds * 1e9)

    def now(self) -> int:
        return super().now() - self._behind_ns


def runtime_behind(seconds: float) -> Runtime:
    """Return a runtime whose wall clock is that much behind."""
    return replace(system_runtime(), clock=ClockBehind(seconds))
