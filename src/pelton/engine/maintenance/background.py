"""The background work of an open store."""

from __future__ import annotations

import asyncio

from pelton.engine.host import Host
from pelton.engine.maintenance.idle_batches import IdleBatches
from pelton.engine.maintenance.source_catch_up import SourceCatchUp
from pelton.engine.maintenance.store_watch import StoreWatch
from pelton.engine.maintenance.timekeeper import Timekeeper
from pelton.engine.session import Committed
from pelton.runtime import Clock
from pelton.storage import Database


class Background:
    """The background timers of one open store."""

    def __init__(self, host: Host, clock: Clock, database: Database) -> None:
        self.timekeeper: Timekeeper = Timekeeper(host, clock)
        self._source_catch_up = SourceCatchUp(host, clock)
        self._idle_batches = IdleBatches(host, clock)
        loop = asyncio.get_running_loop()
        self._store_watch = None if database.memory else StoreWatch(loop, database, host.woken, host.session.now)

    def committed(self, committed: Committed) -> None:
        """Schedule the work that a transaction of any session has left."""
        # Every transaction passes here, and few leave work.
        if committed.deadlines:
            self.timekeeper.committed(committed.deadlines)
        self._source_catch_up.committed(has_backlog=committed.has_backlog)
        if committed.has_batches or self._idle_batches.is_set:
            self._idle_batches.committed()

    def rolled_back(self) -> None:
        """Read deadlines again: recorded ones may no longer hold."""
        self.timekeeper.look_again()

    def woken(self) -> None:
        """Check for due work: another process has written."""
        self.timekeeper.look_again()
        self._source_catch_up.woken()

    def close(self) -> None:
        """Stop all timers."""
        if self._store_watch is not None:
            self._store_watch.close()
        self._idle_batches.cancel()
        self.timekeeper.close()
        self._source_catch_up.close()
