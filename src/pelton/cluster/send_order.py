"""The order in which publishes go out, where they cannot go at once: there is no connection, or no room in it.

Design: every publish has a number, in the order in which they were called. Those that go out as they are called are
in order by themselves. One that has to wait, or whose connection broke before its answer came, waits here until it has
the smallest number of all that wait; meanwhile nothing that is called later goes out. So what a broken connection lost
is sent again in its old order, all of it in flight at once, ahead of what was called since.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class SendOrder:
    """Who may send next."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._gone: set[int] = set()
        self._turns: dict[int, asyncio.Future[None]] = {}

    @property
    def is_free(self) -> bool:
        """Whether nobody waits, so that one may send at once."""
        return not self._numbers

    async def send(self, number: int, attempt: Callable[[], T | None], ready: Callable[[], Awaitable[object]]) -> T:
        """Return what ``attempt`` does, when it is ``number``'s turn and it does anything.

        ``ready`` returns when it is worth trying again; what it raises ends this.
        """
        heapq.heappush(self._numbers, number)
        try:
            while True:
                if self._numbers[0] != number:
                    await self._turn_of(number)
                elif (sent := attempt()) is not None:
                    return sent
                else:
                    # Meanwhile one with a smaller number may come.
                    await ready()
        finally:
            self._leave(number)

    async def _turn_of(self, number: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[number] = turn
        try:
            await turn
        finally:
            del self._turns[number]

    def _leave(self, number: int) -> None:
        self._gone.add(number)
        while self._numbers and self._numbers[0] in self._gone:
            self._gone.remove(heapq.heappop(self._numbers))
        turn = self._turns.get(self._numbers[0]) if self._numbers else None
        if turn is not None and not turn.done():
            turn.set_result(None)
