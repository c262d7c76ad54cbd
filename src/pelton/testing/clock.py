"""A clock that moves only on demand.

`advance` moves both clocks and makes the calls that fall due, in the order of their deadlines, each seeing
the time it was scheduled for. `set_wall` steps the wall clock alone, as NTP or an operator would; `suspend` simulates
a machine that sleeps. Nothing here waits for real.

Calls happen inside `advance`; a task woken by one continues on the event loop's next iteration, so await what it
signals. What another thread's event loop has scheduled is called there.
"""

import asyncio
import heapq
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from pelton.runtime import Ids, Random, Runtime, Timer

_NS = 1_000_000_000
_START_NS = 1_700_000_000 * _NS


_is_background: ContextVar[bool] = ContextVar("whether calls are scheduled in the background", default=False)


@contextmanager
def in_background() -> Iterator[None]:
    """Let ``next_call`` pass over the calls that are scheduled within, and by the tasks that begin within."""
    before = _is_background.set(True)
    try:
        yield
    finally:
        _is_background.reset(before)


class _ManualTimer:
    """A call that is made in :meth:`ManualClock.advance`, or by the event loop of another thread that asked for it."""

    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn: Callable[[], None] | None = fn
        self.is_background: bool = _is_background.get()
        self._thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    @property
    def is_over(self) -> bool:
        return self._fn is None

    def cancel(self) -> None:
        self._fn = None

    def fire(self) -> None:
        """Make the call now, or let the loop that it belongs to make it, if that runs on another thread."""
        if self._loop is None or self._thread == threading.get_ident():
            self._call()
            return
        # A loop that is closed has no use for it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        fn, self._fn = self._fn, None
        if fn is not None:
            fn()


class ManualClock:
    """A `Clock` for tests. Wall time starts at `start_ns` nanoseconds, monotonic time at 0."""

    def __init__(self, start_ns: int = _START_NS) -> None:
        """Create a clock that does not move until `advance`."""
        self._boot_id = f"manual {uuid.uuid4()}"
        self._elapsed_ns = 0
        self._suspended_ns = 0
        self._wall_offset_ns = start_ns
        self._order = itertools.count()  # equal deadlines fire in the order they were scheduled
        self._timers: list[tuple[int, int, _ManualTimer]] = []
        # Leases are kept on a thread of their own, which uses the same clock.
        self._lock = threading.Lock()

    def now(self) -> int:
        """Wall time in nanoseconds since the epoch."""
        return self._wall_offset_ns + self._elapsed_ns

    def monotonic(self) -> float:
        """The total seconds this clock was advanced."""
        return self._elapsed_ns / _NS

    def boottime(self) -> float:
        """The total seconds this clock was advanced or suspended."""
        return self.monotonic() + self._suspended_ns / _NS

    def boot_id(self) -> str:
        """Name this clock: the time since boot of another one can't be compared with its own."""
        return self._boot_id

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` in the `advance` that reaches `delay_s` seconds from now, `advance(0)` for 0."""
        timer = _ManualTimer(fn)
        with self._lock:
            due_ns = self._elapsed_ns + max(0, round(delay_s * _NS))
            heapq.heappush(self._timers, (due_ns, next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Suspend the calling task until the clock was advanced by `delay_s` seconds."""
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A cancelled sleeper may not have run its `finally` yet when its time comes.
        timer = self.call_later(delay_s, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: wall time and the time since boot advance, the monotonic clock and timers do not."""
        self._suspended_ns += round(seconds * _NS)
        self._wall_offset_ns += round(seconds * _NS)

    def advance(self, seconds: float) -> None:
        """Move both clocks forward and make every call that falls due, including those scheduled in between.

        Raises ValueError when `seconds` is negative: time does not go back (`set_wall` does).
        """
        if seconds < 0:
            raise ValueError(f"a clock advances; to step the wall clock back use set_wall: {seconds}")
        until_ns = self._elapsed_ns + round(seconds * _NS)
        while (timer := self._due(until_ns)) is not None:
            timer.fire()
        self._elapsed_ns = max(self._elapsed_ns, until_ns)  # a call may itself have advanced

    def _due(self, until_ns: int) -> _ManualTimer | None:
        """Return the next call that falls due until then, and let its time be now."""
        with self._lock:
            if not self._timers or self._timers[0][0] > until_ns:
                return None
            due_ns, _, timer = heapq.heappop(self._timers)
            self._elapsed_ns = max(self._elapsed_ns, due_ns)
            return timer

    def next_call(self) -> float | None:
        """Return in how many seconds the next scheduled call falls due, or None."""
        with self._lock:
            dues = [due for due, _, timer in self._timers if not (timer.is_over or timer.is_background)]
            return (min(dues) - self._elapsed_ns) / _NS if dues else None

    def set_wall(self, wall_ns: int) -> None:
        """Step the wall clock to `wall_ns` nanoseconds since the epoch; timers do not notice."""
        self._wall_offset_ns = wall_ns - self._elapsed_ns


class ManualRuntime(Runtime, frozen=True):
    """A `Runtime` with a manual clock."""

    clock: ManualClock


def manual_runtime(seed: int = 0) -> ManualRuntime:
    """Return a runtime in which equal seeds give equal ids and random numbers, and time moves only by `advance`."""
    return ManualRuntime(clock=ManualClock(), random=Random(seed), ids=Ids(Random(seed)))
