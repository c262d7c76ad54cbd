"""Three clocks in one: the wall clock for stored times, the monotonic clock for waiting, and the
time since boot for leases.

Wall time is an integer of nanoseconds since the epoch, the unit of JetStream's own fields, and may jump when
an operator or NTP corrects it. Monotonic time is seconds as a float, never jumps, and means nothing to
another process. Timers and sleeps follow the monotonic clock, so a corrected wall clock neither fires nor
delays them. The monotonic clock stops while a machine sleeps. The time since boot does not: a laptop that
slept past its lease has to know that another process may hold it.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

# Linux has a clock for it; on macOS the POSIX clock keeps running in sleep, Python's own does not. Elsewhere, as on
# Windows, the monotonic clock does.
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_NS: Final = 1_000_000_000
# Between two readings that are further apart, the process stood still: they can't be compared.
_APART_NS: Final = _NS // 100
_TRIES: Final = 20


def boot_id() -> str:
    """Return an id of this run of the machine, or an empty string if it is unknown."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call; no effect once it was made or cancelled."""


class Clock(Protocol):
    """The source of time. The real one is `SystemClock`; tests use `pelton.testing.ManualClock`."""

    def now(self) -> int:
        """Wall time in nanoseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""

    def boottime(self) -> float:
        """Seconds since an arbitrary start, those in which the machine slept included; never goes backwards."""

    def boot_id(self) -> str:
        """Name this run of the machine, within which `boottime` can be compared; empty if it is unknown."""
        return ""

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` on the event loop after `delay_s` seconds; 0 or less: on its next iteration."""

    async def sleep(self, delay_s: float) -> None:
        """Suspend the calling task for `delay_s` seconds."""


class SystemClock:
    """The machine's clocks, and the running event loop's timers."""

    # They are asked several times for each job: by the functions themselves.
    now = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME))

    def boot_id(self) -> str:
        """Name this run of the machine; empty if the system does not tell."""
        return boot_id()

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` after `delay_s` seconds. Raises RuntimeError outside a running event loop."""
        return asyncio.get_running_loop().call_later(delay_s, fn)

    async def sleep(self, delay_s: float) -> None:
        """Suspend the calling task for `delay_s` seconds."""
        await asyncio.sleep(delay_s)


class WallOffset(NamedTuple):
    """By how many nanoseconds the wall clock is ahead of the time since boot, in the run ``boot`` of a machine."""

    boot: str
    ahead: int


def wall_ahead(clock: Clock) -> int:
    """Return by how much the wall clock is ahead of the time since boot, read as closely together as possible."""
    found: list[tuple[int, int]] = []
    for _ in range(_TRIES):
        before = round(clock.boottime() * _NS)
        wall = clock.now()
        after = round(clock.boottime() * _NS)
        found.append((after - before, wall - (before + after) // 2))
        if after - before < _APART_NS:
            break
    return min(found)[1]


def steady_now(clock: Clock) -> Callable[[], int]:
    """Return a wall clock that goes on from now as if the machine's was not set any more."""
    ahead = wall_ahead(clock)
    return lambda: ahead + round(clock.boottime() * _NS)
