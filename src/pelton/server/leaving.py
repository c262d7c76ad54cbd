"""The subscriptions of clients that have left an account: so many of each end in one round of the event loop.

Design: a client with 400,000 subscriptions would have the loop for seconds when it leaves. Nobody finds those that are
left meanwhile (:class:`Router`): they get no messages, hold up no queue group, and count no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pelton.server.router import ClientSubscription, Router

_AT_ONCE: Final = 512


class Departures:
    """Ends the subscriptions of those that have left; ``remove`` ends one that ``router`` has."""

    def __init__(self, router: Router, remove: Callable[[ClientSubscription], None]) -> None:
        self._router = router
        self._remove = remove
        self._left: list[dict[bytes, ClientSubscription]] = []

    def begin(self, subscriptions: dict[bytes, ClientSubscription]) -> None:
        """End subscriptions that their client has no more; the first ones now."""
        self._router.leaving += len(subscriptions)
        self._left.append(subscriptions)
        self._go_on(subscriptions)

    def _go_on(self, subscriptions: dict[bytes, ClientSubscription]) -> None:
        self._end(subscriptions, _AT_ONCE)
        if subscriptions:
            asyncio.get_running_loop().call_soon(self._go_on, subscriptions)
        else:
            self._left = [one for one in self._left if one]

    def _end(self, subscriptions: dict[bytes, ClientSubscription], most: int) -> None:
        for _ in range(min(most, len(subscriptions))):
            _, one = subscriptions.popitem()
            self._router.leaving -= 1
            self._remove(one)

    def finish(self) -> None:
        """End all that are left at once: what is told of it ends, or is told to others from now on."""
        for subscriptions in self._left:
            self._end(subscriptions, len(subscriptions))

    def forget(self) -> None:
        """End none of them any more: their account has ended."""
        for subscriptions in self._left:
            subscriptions.clear()
