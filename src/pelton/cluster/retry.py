"""How long, and how often, a request is retried."""

from __future__ import annotations

from typing import Final

from pelton.api import ApiError, PeltonError
from pelton.api.errors import NO_PEERS
from pelton.cluster.connection import Connection

_FIRST_S: Final = 0.05
_LONGEST_S: Final = 1.0
_PEERS_S: Final = 5.0


class Retry:
    """The patience of one operation, which starts to count when it is first needed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._end: float | None = None
        self._pause = _FIRST_S

    async def after(self, error: Exception) -> None:
        """Return when to retry after ``error``; raises it, or what it means, when patience is exhausted."""
        left = await self.connected(error)
        await self._connection.clock.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, _LONGEST_S)

    async def connected(self, error: Exception) -> float:
        """Return when there is a connection, and how many seconds are left; raises as :meth:`after`."""
        clock = self._connection.clock
        if self._end is None:
            patience = self._connection.settings.patience
            # A reply that may be right is not retried for long.
            seldom = isinstance(error, ApiError) and error.err_code == NO_PEERS
            self._end = clock.monotonic() + (min(patience, _PEERS_S) if seldom else patience)
        await self._connection.until_connected(self._end)
        left = self._end - clock.monotonic()
        if left <= 0:
            raise error if isinstance(error, PeltonError) else self._connection.no_answer()
        return left
