"""A separate connection for keeping leases, independent of the program that uses the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from pelton.api import PeltonError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.runtime import Clock, within


class Closing(Protocol):
    """A connection that can be closed."""

    async def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closing)


class OwnConnection(Generic[C]):
    """A connection that ``clone`` opens on first use; closed when it fails, and opened again.

    ``store_ended`` is called with the error if it can't be opened any more, because the original store is closed.
    Closing one takes ``patience`` seconds at most.
    """

    def __init__(
        self, clone: Callable[[], C], clock: Clock, patience: float, store_ended: Callable[[Exception], None]
    ) -> None:
        self._clone = clone
        self._clock = clock
        self._patience = patience
        self._store_ended = store_ended
        self._open: C | None = None

    def get(self) -> C:
        """Return the connection, opening it if necessary. Raises what cloning raises."""
        if self._open is None:
            try:
                self._open = self._clone()
            except FINAL_ERRORS as error:
                self._store_ended(error)
                raise
        return self._open

    async def leave(self) -> None:
        """Close the connection, if it is open."""
        left, self._open = self._open, None
        if left is not None:
            with suppress(PeltonError, TimeoutError):
                await within(self._clock, self._patience, left.close())
