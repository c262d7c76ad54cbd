"""All that an open store does beside the work that it is asked for."""

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
    """The timers of one open store."""

    def __init__(self, host: Host, clock: Clock, database: Database) -> None:
        self._timekeeper = Timekeeper(host, clock)
        self._feeding = SourceCatchUp(host, clock)
        self._idle_batches = IdleBatches(host, clock)
        self._lookout = None if database.memory else StoreWatch(asyncio.get_running_loop(), database, host.woken)

    def committed(self, committed: Committed) -> None:
        """Go on where a transaction, of whichever session, has left something to do."""
        # That concerns few transactions, and every one passes here.
        if committed.deadlines:
            self._timekeeper.committed(committed.deadlines)
        if committed.has_backlog:
            self._feeding.committed()
        if committed.has_batches or self._idle_batches.is_set:
            self._idle_batches.committed()

    def rolled_back(self) -> None:
        """Look again: deadlines that were taken down may not hold."""
        self._timekeeper.look_again()

    def woken(self) -> None:
        """Another process has written."""
        self._timekeeper.look_again()
        self._feeding.woken()

    def close(self) -> None:
        """Stop all timers."""
        if self._lookout is not None:
            self._lookout.close()
        self._idle_batches.cancel()
        self._timekeeper.close()
        self._feeding.close()
