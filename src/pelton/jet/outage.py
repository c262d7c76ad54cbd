"""Failures to outlast: a store that is busy or full, and a cluster whose servers are away or elect a leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pelton.api import (
    JetStreamMissingError,
    ServerTimeoutError,
    ServerUnreachableError,
    StoreBusyError,
    StoreError,
    StoreFullError,
)
from pelton.api.errors import is_passing
from pelton.api.store_errors import FINAL_ERRORS

if TYPE_CHECKING:
    from logging import Logger

    from pelton.runtime import Clock

ASK_AGAIN_S: Final = 0.5
_PASSING: Final = (StoreBusyError, StoreFullError, ServerUnreachableError, ServerTimeoutError, JetStreamMissingError)


def can_pass(error: Exception) -> bool:
    """Whether the store, or the servers, may recover without help from the user."""
    return isinstance(error, _PASSING) or is_passing(error)


def is_busy(error: Exception) -> bool:
    """Whether it is worth trying again."""
    return not isinstance(error, FINAL_ERRORS) and (isinstance(error, StoreError) or can_pass(error))


class Outage:
    """The times during which the store does not answer ``who``: logged as they begin and end.

    ``passes`` says which errors to wait after; the others are raised. ``extra`` are fields of what is logged.
    """

    def __init__(
        self, log: Logger, clock: Clock, who: str, passes: Callable[[Exception], bool] = can_pass, **extra: object
    ) -> None:
        self._log = log
        self._clock = clock
        self._who = who
        self._passes = passes
        self._extra = extra
        self._since: float | None = None

    async def wait(self, error: Exception) -> None:
        """Wait until it is time to retry; raises ``error`` if a retry would be pointless."""
        if not self._passes(error):
            raise error
        if self._since is None:
            self._since = self._clock.monotonic()
            self._log.warning(
                "%s waits for its store, without a time limit: %s", self._who, error, extra={**self._extra}
            )
        await self._clock.sleep(ASK_AGAIN_S)

    def is_over(self) -> None:
        """Note that the store has answered."""
        if self._since is not None:
            lasted, self._since = self._clock.monotonic() - self._since, None
            self._log.warning(
                "%s resumes: its store did not answer for %.1f s",
                self._who,
                lasted,
                extra={**self._extra, "seconds": lasted},
            )
