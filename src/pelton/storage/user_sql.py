"""A transaction that a user holds open: its own SQL, of which it is refused what it may not do, its begin and its end.

While SQLite compiles a statement, it calls an authorizer for each action of the statement. A user's statement may read
everything, and create, change and drop tables of its own. It may not write to Pelton's tables, add a trigger or an
index to them, use a name that they have or may get, or end the transaction: any action that is not known to be harmless
is refused. Compiled statements are cached by their text; a mark before a user's text separates it from Pelton's own
statements, which are not checked.

Foreign keys are enforced. A statement that still runs when its transaction times out is interrupted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import apsw

from pelton.runtime import pause
from pelton.storage.committer import SPIN_S, WriteLock
from pelton.storage.database import Database
from pelton.storage.faults import translated
from pelton.storage.schema import is_reserved

RefusalKind = Literal["forbidden", "constraint", "mistake"]
Bindings = Sequence[Any] | Mapping[str, Any]

_MARK: Final = "/* user */ "
_STEPS: Final = 20_000
_STRAY: Final = (
    "SELECT name FROM sqlite_schema WHERE type='table' AND lower(name) GLOB 'm_[0-9]*' "
    "AND NOT EXISTS(SELECT 1 FROM streams WHERE lower(sqlite_schema.name)='m_' || streams.id)"
)
_HARMLESS: Final = frozenset(
    {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE, apsw.SQLITE_REINDEX}
)
# The table is the first argument, or the second.
_BY_FIRST: Final = frozenset(
    {
        apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_DROP_TABLE, apsw.SQLITE_CREATE_VIEW, apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_CREATE_TEMP_TABLE, apsw.SQLITE_DROP_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_VIEW, apsw.SQLITE_DROP_TEMP_VIEW,
        apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_DROP_VTABLE,
    }
)  # fmt: skip
_BY_SECOND: Final = frozenset(
    {
        apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_CREATE_TEMP_INDEX, apsw.SQLITE_DROP_TEMP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER, apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER, apsw.SQLITE_DROP_TEMP_TRIGGER,
    }
)  # fmt: skip
_PRAGMAS: Final = frozenset(
    {
        "table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list",
        "foreign_key_check", "data_version", "compile_options", "function_list",
    }
)  # fmt: skip
# The Python errors are for values that SQLite can't store, and statements that are not text.
_MISTAKES: Final = (
    apsw.SQLError, apsw.BindingsError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError,
    TypeError, ValueError, OverflowError,
)  # fmt: skip
_SEQUENCES: Final = "sqlite_sequence"
_ENDS: Final = "the transaction ends with its block; to roll back a part of it, use tx.savepoint()"


class Refusal(Exception):  # noqa: N818  # a refusal is not an error yet: the engine makes one of it
    """A statement was refused or rolled back: ``kind`` is the kind of refusal, ``reason`` describes it."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind: RefusalKind = kind
        self.reason = reason


class UserSql:
    """Runs a user's statements on one connection; ``is_late`` returns whether the transaction has timed out."""

    def __init__(self, database: Database, is_late: Callable[[], bool]) -> None:
        self._db = database
        self._is_late = is_late
        self._asking = False
        self._alters = False
        self._why = ""
        database.execute("PRAGMA foreign_keys=ON")
        # The connection may live longer than all that uses it, and must not hold it. Without this, no user asks.
        me = weakref.ref(self)
        database.connection.authorizer = lambda *action: it._authorize(*action) if (it := me()) else apsw.SQLITE_OK
        # Called at least once in this many steps of SQLite's virtual machine.
        database.connection.set_progress_handler(lambda: bool((it := me()) and it._is_late()), _STEPS)

    def run(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        """Run statements, and return their rows. Raises :class:`Refusal`, after rolling them back.

        If a statement ends the whole transaction (an interrupted write, ``INSERT OR ROLLBACK``), the connection has no
        open transaction afterwards.
        """
        run = self._db.run
        run("SAVEPOINT user")
        try:
            rows = self._ask(statement, bindings)
        except Exception as error:
            if self._db.connection.in_transaction:
                run("ROLLBACK TO user")
                run("RELEASE user")
            raise self._refusal(error) from error
        run("RELEASE user")
        return rows

    def _ask(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        self._asking, self._alters, self._why = True, False, ""
        try:
            rows = self._db.execute(_MARK + statement, bindings or None).fetchall()
        finally:
            self._asking = False
        if self._alters and (stray := self._db.value(_STRAY)):
            raise Refusal("forbidden", f"the name {stray!r} is reserved for Pelton's tables")
        return rows

    def _refusal(self, error: Exception) -> Exception:
        if self._why:
            return Refusal("forbidden", self._why)
        if isinstance(error, apsw.ConstraintError):
            return Refusal("constraint", str(error))
        if isinstance(error, _MISTAKES):
            return Refusal("mistake", str(error))
        return error

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if not self._asking or action in _HARMLESS:
            return apsw.SQLITE_OK
        self._why = self._why or self._objection(action, first, second)
        return apsw.SQLITE_DENY if self._why else apsw.SQLITE_OK

    def _objection(self, action: int, first: str | None, second: str | None) -> str:
        """Return the reason to refuse an action of a statement, or an empty string."""
        if action in (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT):
            return f"{first} is not allowed in a transaction: {_ENDS}"
        if action == apsw.SQLITE_PRAGMA:
            return "" if first in _PRAGMAS else f"PRAGMA {first} is not allowed in a transaction"
        if action == apsw.SQLITE_ALTER_TABLE:
            self._alters = True
            return self._about(second) if first == "main" else "temporary tables cannot be altered in a transaction"
        if action in _BY_FIRST:
            if first == _SEQUENCES:
                # SQLite writes it itself while it drops or renames a table.
                return "" if self._alters else f"{_SEQUENCES} cannot be written with SQL"
            self._alters = self._alters or action == apsw.SQLITE_DROP_TABLE
            return self._about(first)
        if action in _BY_SECOND:
            return self._about(second)
        return f"{apsw.mapping_authorizer_function[action]} is not allowed in a transaction"

    def _about(self, table: str | None) -> str:
        if not is_reserved(table):
            return ""
        return f"{table!r} is a name of Pelton's own tables, which you can read with SQL and only Pelton can write"


class Writer:
    """The write transactions of one connection; ``busy_timeout`` (seconds) is the longest wait for others."""

    def __init__(self, database: Database, busy_timeout: float) -> None:
        self._db = database
        self._lock = WriteLock(database, busy_timeout)

    @property
    def is_open(self) -> bool:
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
                self._db.run("COMMIT")
                return
            except apsw.BusyError:
                # Only possible for a memory store: another thread of this process is reading it.
                pause(SPIN_S)
            except apsw.ConstraintError as error:
                raise Refusal("constraint", str(error)) from error
            except apsw.Error as error:
                self._db.note(error)
                raise self._db.ending.met(error) from error

    def roll_back(self) -> None:
        """Roll back the transaction, if one is open. Raises Fault."""
        if self.is_open:
            with translated(self._db.path):
                self._db.run("ROLLBACK")
