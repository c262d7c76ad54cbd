"""SQLite's write lock as one connection takes it: without blocking the event loop, and in turn with all others."""

from __future__ import annotations

import apsw

from pelton.storage.database import Database
from pelton.storage.faults import Fault
from pelton.storage.troubles import LONG_WAIT_S
from pelton.storage.writer_wait import WriterWait


class WriteLock:
    """Opens the write transactions of one connection; ``busy_timeout`` (seconds) is the longest wait for others."""

    def __init__(self, database: Database, busy_timeout: float) -> None:
        self._db = database
        self._busy_timeout = busy_timeout
        self._wait = WriterWait(busy_timeout)
        self._priority = database.writer_priority()
        self._has_claimed = False

    def begin(self, now: float) -> float | None:
        """Open a transaction and return None, or return how many seconds to pause before the next try.

        ``now`` is the monotonic clock's. Raises Fault, of kind ``busy`` when the wait has taken too long.
        """
        is_next = self._is_our_turn(now)
        if is_next:
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                pass
            except apsw.Error as error:
                self.give_up()
                raise self._db.ending.met(error) from error
            else:
                self._note(now)
                self.give_up()
                return None
        if self._wait.is_over(now):
            self._note(now)
            self.give_up()
            detail = (
                f"another process has held the write lock for {self._busy_timeout:g} s; if it is stopped or hangs, "
                "let it go on or end it, then retry"
            )
            raise Fault("busy", self._db.path, detail)
        return self._wait.missed(now, is_next=is_next)

    def is_anothers(self, now: float) -> bool:
        """Whether a try would be in vain: another connection has claimed the next turn."""
        return self._priority.is_anothers(now)

    def give_up(self) -> None:
        """Wait no longer."""
        self._wait.end()
        if self._has_claimed:
            self._has_claimed = False
            self._priority.withdraw()

    def _note(self, now: float) -> None:
        since = self._wait.since
        if since is not None and now - since >= LONG_WAIT_S:
            self._db.troubles.writer_took(now - since)

    def _is_our_turn(self, now: float) -> bool:
        since = self._wait.since
        if since is None or not self._wait.has_priority(now):
            return not self._priority.is_anothers(now)
        self._has_claimed = True
        return self._priority.claim(since, now)
