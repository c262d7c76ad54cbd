"""An open store for a program's own blocking calls, on an event loop of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self, TypeVar

from pelton.connect import Jet, Opening
from pelton.sync.portal import Portal

T = TypeVar("T")


class BlockingStore:
    """A store file or a cluster at ``address``, which ``opened`` opens; close it, or use it in a ``with``."""

    def __init__(self, address: str, opened: Callable[[], Opening]) -> None:
        self._portal = Portal(address)
        try:
            self.jet: Jet = self.run(opened)
        except BaseException:
            self._portal.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Idempotent."""
        if self._portal.is_usable:
            self.run(self.jet.close)
            self._portal.stop()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function on the event loop, and wait for its result."""
        result: T = self._portal.run(function, *args)
        return result

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what the event loop yields, which is never None; then close the store."""
        try:
            while (item := self.run(_next, items)) is not None:
                yield item
        finally:
            self.close()


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)
