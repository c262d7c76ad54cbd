"""The idle slots of a worker, and how many of them are woken for new work.

A slot whose jobs never suspend runs one after another and needs no help; one whose job suspends leaves the rest of
the work to other slots. Which of both it is shows only afterwards. So one slot is woken, and each slot that finds
work wakes others, twice as many each time: quick jobs cost no wake-ups, and slow ones all run after a few rounds of
the event loop.

No wake-up is lost: a slot looks for work and then waits, without suspending in between, and a slot that starts work
with which others could help wakes them.
"""

from __future__ import annotations

import asyncio


class IdleSlots:
    """The slots of one worker that have nothing to do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._resting: list[asyncio.Future[None]] = []
        # How many were woken and have not looked for work yet.
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

    def wake(self, most: int) -> None:
        """Wake at most ``most`` slots, unless woken ones have not looked yet: those will wake others."""
        if self._coming or not self._resting:
            return
        count = min(most, self._next, len(self._resting))
        if count > 0:
            self._next = 2 * count
            self._wake(count)

    def wake_anew(self, most: int) -> None:
        """Wake a slot for new work; it wakes others as they are needed."""
        self._next = 1
        self.wake(most)

    def wake_all(self) -> None:
        """Wake all slots."""
        self._wake(len(self._resting))

    def _wake(self, count: int) -> None:
        while count and self._resting:
            waiter = self._resting.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._coming += 1
                count -= 1
