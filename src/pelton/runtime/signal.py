"""A wake-up that cannot be lost.

The danger is a notification that arrives between "there is no work" and "so I wait". A generation counter
closes the gap: the waiter reads the generation first, looks for work, then waits for the generation to be
another one.

    seen = signal.generation
    while not (work := look()):
        seen = await signal.wait(seen)

With a deadline use `await signal.wait_at_most(clock, seconds, seen)`, and look again when it returns.
"""

import asyncio

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
