"""SQLite's write lock as one connection takes it, and a transaction that holds it for longer than a round."""

from __future__ import annotations

import apsw

from pelton.runtime import pause
from pelton.storage.database import Database
from pelton.storage.faults import Fault, translated
from pelton.storage.troubles import LONG_WAIT_S
from pelton.storage.user_sql import Refusal
from pelton.storage.writer_priority import WriterWait


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


# --- a write transaction with explicit begin, commit and rollback, for one that outlasts a round of the loop

_PAUSE_S = 0.00005


class Writer:
    """The write transactions of one connection; ``busy_timeout`` (seconds) is the longest wait for others."""

    def __init__(self, database: Database, busy_timeout: float) -> None:
        self._db = database
        self._lock = WriteLock(database, busy_timeout)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._db.connection.in_transaction

    def begin(self, now: float) -> float | None:
        """Open a transaction; while another connection writes, return how many seconds to pause before the next try.

        ``now`` is the event loop's time. Raises Fault.
        """
        return self._lock.begin(now)

    def give_up(self) -> None:
        """Wait for the lock no longer."""
        self._lock.give_up()

    def commit(self) -> None:
        """Commit. Raises Fault, or Refusal if a constraint of the user's tables fails: then it stays open."""
        while True:
            try:
                self._db.execute("COMMIT")
                return
            except apsw.BusyError:
                # Only possible for a memory store: another thread of this process is reading it.
                pause(_PAUSE_S)
            except apsw.ConstraintError as error:
                raise Refusal("constraint", str(error)) from error
            except apsw.Error as error:
                self._db.note(error)
                raise self._db.ending.met(error) from error

    def roll_back(self) -> None:
        """Roll back the transaction, if one is open. Raises Fault."""
        if self.is_open:
            with translated(self._db.path):
                self._db.execute("ROLLBACK")
