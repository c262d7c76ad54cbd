"""A connection of its own, for whatever keeps leases beside the program that uses the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from pelton.api import PeltonError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.runtime import Clock, within


class Closing(Protocol):
    """A connection, as far as it has to be left."""

    async def close(self) -> None:
        """Let go of it."""


C = TypeVar("C", bound=Closing)


class OwnConnection(Generic[C]):
    """Made by ``clone`` when it is first needed, left when it fails, made again.

    ``store_ended`` is called with the error if it can't be made any more: the store that it is a clone of is at its
    end. Leaving one takes ``patience`` seconds at most.
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
        """Return it, making it first if there is none. Raises what cloning raises."""
        if self._open is None:
            try:
                self._open = self._clone()
            except FINAL_ERRORS as error:
                self._store_ended(error)
                raise
        return self._open

    async def leave(self) -> None:
        """Let go of it, if there is one."""
        left, self._open = self._open, None
        if left is not None:
            with suppress(PeltonError, TimeoutError):
                await within(self._clock, self._patience, left.close())
