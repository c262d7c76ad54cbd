"""A write transaction with explicit begin, commit and rollback, for one that outlasts a round of the loop."""

from __future__ import annotations

import apsw

from pelton.runtime import pause
from pelton.storage.database import Database
from pelton.storage.faults import translated
from pelton.storage.user_sql import Refusal

_PAUSE_S = 0.00005


class Writer:
    """The write transactions of one connection."""

    def __init__(self, database: Database) -> None:
        self._db = database

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._db.connection.in_transaction

    def begin(self) -> bool:
        """Open a transaction; return False while another connection writes. Raises Fault."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            raise self._db.ending.met(error) from error
        return True

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
