"""Checks the store and the clock once a second, for changes that wake no opener.

An opener that commits, or changes the key, wakes the others. But nothing wakes them when the file is removed or a sync
fails in another process, and an opener without a wake-up socket cannot wake others. A fault that ends the connection is
reported by :class:`pelton.storage.ConnectionEnd`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pelton.storage import Database, Fault

EVERY_S: Final = 1.0


class StoreWatch:
    """The checks of one open store, on its event loop; ``on_news`` is called when others have written.

    ``now`` reads the store's clock, which notices its jumps by itself.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        database: Database,
        on_news: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._db = database
        self._on_news = on_news
        self._now = now
        self._seen = -1
        # The event loop's real time and not the injected clock: it watches the outside world.
        self._timer = loop.call_later(EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._look)
        self._now()
        try:
            self._db.check_sound()
            with self._db.reading():
                seen = self._db.seen()
        except Fault:
            # Operations on the store raise it, if it persists.
            return
        if seen != self._seen:
            self._seen = seen
            self._on_news()

    def close(self) -> None:
        """Stop checking."""
        self._timer.cancel()
