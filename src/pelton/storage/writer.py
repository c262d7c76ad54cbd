"""A write transaction with explicit begin, commit and rollback, for one that outlasts a round of the loop."""

from __future__ import annotations

import apsw

from pelton.runtime import pause
from pelton.storage.database import Database
from pelton.storage.faults import translated
from pelton.storage.user_sql import Refusal
from pelton.storage.write_lock import WriteLock

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
