"""The order of publishes that cannot be sent at once: there is no connection, or no room in it.

Design: every publish has a number, in call order. Those that are sent at once are in order by themselves. One that
has to wait, or whose connection broke before its reply came, waits here until it has the smallest number of all that
wait; until then nothing later is sent. So publishes lost with a connection are sent again in their old order, all
in flight at once, ahead of later ones.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class SendOrder:
    """The turn to send."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._gone: set[int] = set()
        self._turns: dict[int, asyncio.Future[None]] = {}

    @property
    def is_free(self) -> bool:
        """Whether no publish waits, so that you may send at once."""
        return not self._numbers

    async def send(self, number: int, attempt: Callable[[], T | None], ready: Callable[[], Awaitable[object]]) -> T:
        """Return the result of ``attempt`` once it is ``number``'s turn and the result is not None.

        ``ready`` returns when it is worth trying again; an error it raises ends the wait.
        """
        heapq.heappush(self._numbers, number)
        try:
            while True:
                if self._numbers[0] != number:
                    await self._turn_of(number)
                elif (sent := attempt()) is not None:
                    return sent
                else:
                    # In the meantime one with a smaller number may come.
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
