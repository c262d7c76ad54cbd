"""Time: clocks, the time of a lease as its holder counts it, and waiting for a wake-up with a limit.

**Clocks: the time that a program asks for, and the time of a lease, as its holder counts it.** Three clocks in one: the
wall clock for stored times, the monotonic clock for waiting, and the time since boot for leases.

Wall time is an integer of nanoseconds since the epoch, the unit of JetStream's own fields, and may jump when
an operator or NTP corrects it. Monotonic time is seconds as a float, never jumps, and means nothing to
another process. Timers and sleeps follow the monotonic clock, so a corrected wall clock neither fires nor
delays them. The monotonic clock stops while a machine sleeps. The time since boot does not: a laptop that
slept past its lease has to know that another process may hold it.

**Time for code that blocks its thread for microseconds: spinning on a lock, measuring a sync.** Only storage needs it,
and only where a suspended coroutine would cost more than the wait itself.

**The time of a lease, as its holder counts it: pure, and the same for locks, elections and jobs.** A lease is held for
some seconds at a time and renewed again and again. Its holder counts from *before* it asked for a renewal, and stops at
a share of those seconds. So it has stopped before another holder can begin, however long answers take, as long as a
second is about a second everywhere.

The time since boot counts, which includes the machine's sleep: monotonic time stands still while it sleeps. If the end
of a lease is judged by the wall clock of this same machine, that is given as well, and the clock on which more time has
passed decides.

**Waiting: for a wake-up that cannot be lost, and with a time limit, on an injected clock.** The danger is a
notification that arrives between "there is no work" and "so I wait". A generation counter closes the gap: the waiter
reads the generation first, looks for work, then waits for the generation to be another one.

    seen = signal.generation
    while not (work := look()):
        seen = await signal.wait(seen)

With a deadline use `await signal.wait_at_most(clock, seconds, seen)`, and look again when it returns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

# Linux has a clock for it; on macOS the POSIX clock keeps running in sleep, Python's own does not. Elsewhere, as on
# Windows, the monotonic clock does.
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_THREAD_TIMES: Final = "/proc/thread-self/schedstat"
_SECOND_NS: Final = 1_000_000_000
# Between two readings that are further apart, the process stood still: they can't be compared.
_APART_NS: Final = _SECOND_NS // 100
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

    # The clocks are read several times for each job: these are the functions themselves.
    now: Callable[[], int] = staticmethod(time.time_ns)
    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    boottime: Callable[[], float] = staticmethod(
        time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
    )

    def boot_id(self) -> str:
        """Name this run of the machine; empty if the system does not tell."""
        return boot_id()

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` after `delay_s` seconds. Raises RuntimeError outside a running event loop."""
        return asyncio.get_running_loop().call_later(delay_s, fn)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class WallOffset(msgspec.Struct, frozen=True, array_like=True):
    """By how many nanoseconds the wall clock is ahead of the time since boot, in the run ``boot`` of a machine."""

    boot: str
    ahead: int


def wall_ahead(clock: Clock) -> int:
    """Return by how much the wall clock is ahead of the time since boot, read as closely together as possible."""
    found: list[tuple[int, int]] = []
    for _ in range(_TRIES):
        before = round(clock.boottime() * _SECOND_NS)
        wall = clock.now()
        after = round(clock.boottime() * _SECOND_NS)
        found.append((after - before, wall - (before + after) // 2))
        if after - before < _APART_NS:
            break
    return min(found)[1]


def steady_now(clock: Clock) -> Callable[[], int]:
    """Return a wall clock that goes on from now as if the machine's was not set any more."""
    ahead = wall_ahead(clock)
    return lambda: ahead + round(clock.boottime() * _SECOND_NS)


stopwatch: Final = time.perf_counter
"""Return the seconds since an arbitrary start, at the finest resolution."""

pause: Final = time.sleep
"""Block the calling thread for this many seconds."""


def cpu_wait() -> float:
    """Return the seconds that the calling thread waited for a CPU since its start; 0 if the system does not tell."""
    with suppress(OSError, ValueError, IndexError), open(_THREAD_TIMES, "rb", buffering=0) as file:
        return int(file.read().split()[1]) / _SECOND_NS
    return 0.0


_NS_A_SECOND: Final = 1e9


class LeaseShares(msgspec.Struct, frozen=True):
    """The times of a lease, as shares of its duration.

    ``renew``: its age when it is renewed; ``stop``: its age when its holder must have stopped; ``again``: the pause
    after a failed attempt; ``longest_try``: how long an attempt may take.
    """

    renew: float
    stop: float
    again: float
    longest_try: float


class LeaseClock:
    """The time of one lease of ``duration`` seconds; ``confirmed``: when what confirmed it last was asked for.

    Times are seconds since boot, and wall nanoseconds where the wall clock counts: then always.
    """

    confirmed: float

    # A lease clock is made for each job.
    __slots__ = ("_shares", "_wall", "confirmed", "duration")

    def __init__(self, asked: float, duration: float, shares: LeaseShares, wall: int = 0) -> None:
        self.confirmed = asked
        self.duration: float = duration
        self._shares = shares
        self._wall = wall

    def confirm(self, asked: float, wall: int = 0) -> None:
        """Note that it is confirmed by a request sent then."""
        self.confirmed, self._wall = asked, wall

    @property
    def renew_after(self) -> float:
        """The seconds after a confirmation until it must be renewed."""
        return self.duration * self._shares.renew

    @property
    def due_at(self) -> float:
        """The second since boot from which on it is to be renewed."""
        return self.confirmed + self.renew_after

    @property
    def over_at(self) -> float:
        """The second since boot from which on its holder must have stopped."""
        return self.confirmed + self.duration * self._shares.stop

    @property
    def pause(self) -> float:
        """The seconds between a failed attempt and the next."""
        return self.duration * self._shares.again

    def is_due(self, now: float) -> bool:
        """Whether it is old enough to be renewed."""
        return now >= self.due_at

    def is_over(self, now: float, wall: int = 0) -> bool:
        """Whether its holder must have stopped, notified or not."""
        return self._age(now, wall) >= self.duration * self._shares.stop

    def seconds_left(self, now: float, wall: int = 0) -> float:
        """Return for how many seconds its holder may go on if it is never renewed."""
        return max(0.0, self.duration * self._shares.stop - self._age(now, wall))

    def try_for(self, now: float, wall: int = 0) -> float:
        """Return for how many seconds at most a try that begins now may go on; 0 when it is over."""
        return min(self.seconds_left(now, wall), self.duration * self._shares.longest_try)

    def _age(self, now: float, wall: int) -> float:
        return max(now - self.confirmed, (wall - self._wall) / _NS_A_SECOND)


class Signal:
    """Wakes every waiter of one event loop. Another thread notifies through `loop.call_soon_threadsafe`."""

    def __init__(self) -> None:
        """A signal that was never notified: generation 0."""
        self._generation = 0
        # In the order in which they came: so they are woken, and equal runs are equal.
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def generation(self) -> int:
        """The number of notifications so far."""
        return self._generation

    def notify(self) -> None:
        """Wake all current waiters, and all future ones that wait with a generation read before this call."""
        self._generation += 1
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            _wake(waiter)

    async def wait(self, seen: int | None = None) -> int:
        """Return the generation as soon as it differs from `seen`.

        Without `seen` it waits for the next notification after this call; use that only if you have not looked for
        work before.
        """
        if seen is None or seen == self._generation:
            await self._wait(asyncio.get_running_loop().create_future())
        return self._generation

    async def wait_at_most(self, clock: Clock, seconds: float | None, seen: int) -> int:
        """Do the same, but return after at most `seconds` of `clock`; None: wait for ever."""
        if seen == self._generation:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            timer = None if seconds is None else clock.call_later(seconds, lambda: _wake(waiter))
            try:
                await self._wait(waiter)
            finally:
                if timer is not None:
                    timer.cancel()
        return self._generation

    async def _wait(self, waiter: asyncio.Future[None]) -> None:
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# --- waiting with a time limit on an injected clock (for a signal: ``Signal.wait_at_most``)

T = TypeVar("T")


class Deadline:
    """A deadline some seconds after its creation; None: never."""

    __slots__ = ("_clock", "_end")

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """The seconds left, at least 0; None: for ever."""
        return None if self._end is None else max(self._end - self._clock.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return self._end is not None and self._clock.monotonic() >= self._end


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await something for at most ``seconds`` of ``clock``; then it is cancelled. Raises TimeoutError."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = clock.call_later(seconds, end)
    try:
        answer = await work
    except asyncio.CancelledError:
        if is_late and task.uncancel() <= before:
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    if is_late:
        # It came at the same moment, and was preferred to the cancellation.
        task.uncancel()
    return answer


async def interruptible(work: Awaitable[T]) -> T:
    """Await something that may swallow a cancellation; it is raised afterwards.

    ``asyncio.wait_for`` does before Python 3.12, if what it waits for is there at the same moment. Who cancels a task
    once and waits for its end would wait for ever.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    answer = await work
    if task.cancelling() > before:
        raise asyncio.CancelledError
    return answer
