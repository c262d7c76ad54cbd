"""Clocks that are not right, and clocks that tests move."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from msgspec.structs import replace

from pelton.runtime import Clock, Ids, Random, Runtime, SystemClock, system_runtime


class ClockBehind(SystemClock):
    """The system's clock, with a wall clock that is ``seconds`` behind."""

    def __init__(self, seconds: float) -> None:
        self._behind_ns = round(seconds * 1e9)

    def now(self) -> int:
        return super().now() - self._behind_ns


def runtime_behind(seconds: float) -> Runtime:
    """Return a runtime whose wall clock is that much behind."""
    return replace(system_runtime(), clock=ClockBehind(seconds))


def runtime_with(clock: Clock) -> Runtime:
    """Return a runtime with another clock, whose numbers and ids are drawn anew."""
    entropy = Random()
    return Runtime(clock=clock, random=entropy, ids=Ids(entropy))


class SharedClock(SystemClock):
    """The machine's clocks, with a wall clock that is ahead by what the file ``path`` says.

    All processes that use the file see it jump at once, as all of a machine do; the time since boot is true.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._ahead_ns = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("q")
        os.close(descriptor)

    def now(self) -> int:
        return super().now() + self._ahead_ns[0]

    def jump_to(self, ahead_ns: int) -> None:
        """Let it be ahead by that much."""
        self._ahead_ns[0] = ahead_ns


class PassingClock(SystemClock):
    """The machine's clocks, and the time that a test lets pass on them; timers do not notice."""

    def __init__(self) -> None:
        self._passed_ns = 0

    def now(self) -> int:
        return super().now() + self._passed_ns

    def boottime(self) -> float:
        return super().boottime() + self._passed_ns / 1e9

    def let_pass(self, seconds: float) -> None:
        """Let time pass."""
        self._passed_ns += round(seconds * 1e9)
