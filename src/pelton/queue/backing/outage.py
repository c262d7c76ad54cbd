"""Failures a worker outlasts: a store that is busy or full, and a cluster whose servers are away or elect a leader."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pelton.api import (
    JetStreamMissingError,
    PeltonError,
    ServerTimeoutError,
    ServerUnreachableError,
    StoreBusyError,
    StoreError,
    StoreFullError,
)
from pelton.api.errors import is_passing
from pelton.api.store_errors import FINAL_ERRORS

if TYPE_CHECKING:
    from pelton.runtime import Clock

_log: Final = logging.getLogger("pelton.queue")
_ASK_AGAIN_S: Final = 0.5
_PASSING: Final = (StoreBusyError, StoreFullError, ServerUnreachableError, ServerTimeoutError, JetStreamMissingError)


def can_pass(error: PeltonError) -> bool:
    """Whether the store, or the servers, may recover without help from the worker's user."""
    return isinstance(error, _PASSING) or is_passing(error)


def is_busy(error: PeltonError) -> bool:
    """Whether it is worth trying again."""
    return not isinstance(error, FINAL_ERRORS) and (isinstance(error, StoreError) or can_pass(error))


class Outage:
    """The times during which a queue's store does not answer one worker: logged as they begin and end."""

    def __init__(self, queue: str, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._since: float | None = None

    async def wait(self, error: PeltonError) -> None:
        """Wait until it is time to retry; raises ``error`` if a retry would be pointless."""
        if not can_pass(error):
            raise error
        if self._since is None:
            self._since = self._clock.monotonic()
            _log.warning(
                "queue %r waits for its store, without a time limit: %s",
                self._queue,
                error,
                extra={"queue": self._queue},
            )
        await self._clock.sleep(_ASK_AGAIN_S)

    def is_over(self) -> None:
        """Note that the store has answered."""
        if self._since is not None:
            lasted, self._since = self._clock.monotonic() - self._since, None
            _log.warning(
                "queue %r resumes: its store did not answer for %.1f s",
                self._queue,
                lasted,
                extra={"queue": self._queue, "seconds": lasted},
            )
