"""A user's own SQL on the connection of an open transaction, and what it may not do.

SQLite asks, while it compiles a statement, whether each thing the statement does is allowed. A user's statement may
read everything, and make, change and drop tables of its own. It may not write to Pelton's tables, hang a trigger or
an index on them, take a name that they have or may get, or end the transaction: what is not known to be harmless is
refused. A compiled statement is kept under its text; the mark before a user's text keeps it apart from Pelton's own
statements, which nobody was asked about.

Foreign keys are enforced. A statement that runs when the time of its transaction is over is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import apsw

from pelton.storage.database import Database
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
# The table comes as the first name, or as the second.
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
# The last ones are values that SQLite can't take, and statements that are no text.
_MISTAKES: Final = (
    apsw.SQLError, apsw.BindingsError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError,
    TypeError, ValueError, OverflowError,
)  # fmt: skip
_SEQUENCES: Final = "sqlite_sequence"
_ENDS: Final = "the transaction ends with its block, tx.savepoint() goes back"


class Refusal(Exception):  # noqa: N818  # a refusal is not an error yet: the engine makes one of it
    """A statement was not done, or undone: ``kind`` says whose fault it is, ``reason`` what was wrong."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind: RefusalKind = kind
        self.reason = reason


class UserSql:
    """Runs a user's statements on one connection; ``is_late`` says whether a transaction's time is over."""

    def __init__(self, database: Database, is_late: Callable[[], bool]) -> None:
        self._db = database
        self._asking = False
        self._alters = False
        self._why = ""
        database.execute("PRAGMA foreign_keys=ON")
        database.connection.authorizer = self._authorize
        # At least once in so many steps of SQLite's machine.
        database.connection.set_progress_handler(lambda: is_late(), _STEPS)

    def run(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        """Run statements, and return their rows. Raises :class:`Refusal`, with nothing done.

        Where it ends the transaction itself (an interrupted write, ``INSERT OR ROLLBACK``), the connection is in none
        afterwards.
        """
        run = self._db.execute
        run("SAVEPOINT user")
        try:
            rows = self._asked(statement, bindings)
        except Exception as error:
            if self._db.connection.in_transaction:
                run("ROLLBACK TO user")
                run("RELEASE user")
            raise self._refusal(error) from error
        run("RELEASE user")
        return rows

    def _asked(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        self._asking, self._alters, self._why = True, False, ""
        try:
            rows = self._db.execute(_MARK + statement, bindings or None).fetchall()
        finally:
            self._asking = False
        if self._alters and (stray := self._db.value(_STRAY)):
            raise Refusal("forbidden", f"the name {stray!r} is kept for Pelton's tables")
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
        """Return what speaks against a thing that a statement would do, or an empty text."""
        if action in (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT):
            return f"{first} is not for SQL here: {_ENDS}"
        if action == apsw.SQLITE_PRAGMA:
            return "" if first in _PRAGMAS else f"PRAGMA {first} is not allowed in a transaction"
        if action == apsw.SQLITE_ALTER_TABLE:
            self._alters = True
            return self._about(second) if first == "main" else "temporary tables are not altered here"
        if action in _BY_FIRST:
            if first == _SEQUENCES:
                # SQLite's own, while it drops or renames a table.
                return "" if self._alters else f"{_SEQUENCES} is not written by hand"
            self._alters = self._alters or action == apsw.SQLITE_DROP_TABLE
            return self._about(first)
        if action in _BY_SECOND:
            return self._about(second)
        return f"{apsw.mapping_authorizer_function[action]} is not allowed in a transaction"

    def _about(self, table: str | None) -> str:
        if not is_reserved(table):
            return ""
        return f"{table!r} is a name of Pelton's own tables, which are read with SQL and written by Pelton alone"
