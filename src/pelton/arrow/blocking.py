"""An open store for blocking calls, closed when they are done."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from pelton import connect
from pelton.api import ConfigError, NotAStoreError
from pelton.connect import Jet
from pelton.sync.portal import Portal

T = TypeVar("T")
_MEMORY: Final = "memory:"


class BlockingStore:
    """A store file or a cluster on an event loop of its own; close it, or use it in a ``with``."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self._portal = Portal(address)
        try:
            self.jet: Jet = self.run(lambda: connect.open(address, **options))
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

    def each(self, batches: AsyncIterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the event loop yields; then close the store."""
        try:
            while (batch := self.run(_next, batches)) is not None:
                yield batch
        finally:
            self.close()


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


def check_address(address: str) -> None:
    """Raise ConfigError, NotAStoreError for what cannot be opened again and again."""
    if address == _MEMORY:
        raise ConfigError("pelton.arrow.open: a store in memory belongs to its program: use its stream.to_arrow()")
    if "://" not in address and not address.startswith("context:") and not os.path.exists(address):
        raise NotAStoreError(address, "there is no such file; pelton.open creates one")
