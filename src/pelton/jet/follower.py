"""Following what a stream holds and all that comes to it, for ever and through outages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pelton.jet.ordered import OrderedReader

if TYPE_CHECKING:
    from pelton.api import Delivered
    from pelton.jet.streams import Streams

T = TypeVar("T")
_HEARTBEAT_S: Final = 1.0


def last_and_new(jet: Streams, stream: str, **fields: Any) -> AsyncGenerator[Delivered | None, None]:
    """Yield the last message of each subject, then None, then all that come."""
    fields = {"heartbeat": _HEARTBEAT_S, "deliver_policy": "last_per_subject", **fields}
    return OrderedReader(jet.backend, jet.runtime, stream, **fields).follow()


class Follower(Generic[T]):
    """Calls ``saw`` with what ``opened`` yields, which is opened again when it ends or fails.

    ``opened`` yields None once, after all that was there. ``failed`` waits until it is time to go on, or raises an
    error that ends it; ``answered`` is called whenever something comes.
    """

    def __init__(
        self,
        opened: Callable[[], AsyncGenerator[T | None, None]],
        saw: Callable[[T | None], Awaitable[None]],
        failed: Callable[[Exception], Awaitable[None]],
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._opened = opened
        self._saw = saw
        self._failed = failed
        self._answered = answered
        self._begun: AsyncGenerator[T | None, None] | None = None

    async def begin(self) -> None:
        """Follow until all has come that was there. Raises the first error; :meth:`close` it afterwards."""
        found = self._opened()
        async for one in found:
            await self._saw(one)
            if one is None:
                self._begun = found
                return

    async def follow(self) -> None:
        """Follow for ever, from where :meth:`begin` ended."""
        while True:
            try:
                found, self._begun = self._begun or self._opened(), None
                async with aclosing(found):
                    async for one in found:
                        self._answered()
                        await self._saw(one)
            except Exception as error:  # which it is says the user
                await self._failed(error)

    async def close(self) -> None:
        """End what was begun, and is not followed."""
        begun, self._begun = self._begun, None
        if begun is not None:
            await begun.aclose()
