"""Where a worker's slots wait that have nothing to do, and how many of them are woken.

A slot whose jobs never suspend runs one after another, and needs no help; one whose job suspends leaves the rest to
others. Which of both it is shows only afterwards. So a few slots are woken, and each that finds work wakes others,
twice as many each time: quick jobs cost no wake-ups, and slow ones all run after a few rounds of the event loop.

No wake-up is lost: a slot looks for work, then waits, with no suspension in between; and whoever begins work that
others could help with calls.
"""

from __future__ import annotations

import asyncio


class Rest:
    """The slots of one worker that wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._resting: list[asyncio.Future[None]] = []
        # Those that were woken, and have not looked yet.
        self._coming = 0
        self._next = 1

    async def wait(self) -> None:
        """Return when there may be work."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._resting.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self._coming -= 1
            elif waiter in self._resting:
                self._resting.remove(waiter)

    def call(self, most: int) -> None:
        """Wake some slots, ``most`` at most, unless others are on their way already: they will call again."""
        count = min(most, self._next, len(self._resting))
        if count > 0 and not self._coming:
            self._next = 2 * count
            self._wake(count)

    def start_over(self, most: int) -> None:
        """There is new work: wake a slot, and others only as they are needed."""
        self._next = 1
        self.call(most)

    def call_all(self) -> None:
        """Wake all slots."""
        self._wake(len(self._resting))

    def _wake(self, count: int) -> None:
        while count and self._resting:
            waiter = self._resting.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._coming += 1
                count -= 1
