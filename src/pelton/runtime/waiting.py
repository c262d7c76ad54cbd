"""Waiting: for a wake-up that cannot be lost, and with a time limit, on an injected clock.

The danger is a notification that arrives between "there is no work" and "so I wait". A generation counter
closes the gap: the waiter reads the generation first, looks for work, then waits for the generation to be
another one.

    seen = signal.generation
    while not (work := look()):
        seen = await signal.wait(seen)

With a deadline use `await signal.wait_at_most(clock, seconds, seen)`, and look again when it returns.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pelton.runtime.clock import Clock


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
        """Start to count."""
        self._clock = clock
        self._end = None if seconds is None else clock.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """The seconds left, at least 0; None: for ever."""
        return None if self._end is None else max(self._end - self._clock.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
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
