"""Errors of a transaction that a program holds open, and of the SQL in it."""

from pelton.api.errors import PeltonError


class TransactionError(PeltonError):
    """A transaction was misused, or was rolled back; `reason` says what happened."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"transaction: {reason}")


class TransactionTimeoutError(TransactionError):
    """A transaction held the writer for longer than `seconds`, and was rolled back."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"it was open for longer than {seconds:g} s and was rolled back, because all other writes wait "
            "for it: do slow work before its first operation, or give it more time with transaction(timeout=...)"
        )


class SnapshotTimeoutError(TransactionError):
    """A block of ``jet.read()`` was open for longer than `seconds`, and was ended."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the reads were open for longer than {seconds:g} s and were ended, because the store's log grows while a "
            "snapshot is held: read less in one block, or give it more time with read(timeout=...)"
        )


class SqlError(PeltonError):
    """SQLite refused your statement, for `reason`. The transaction continues without it."""

    reason: str
    statement: str

    def __init__(self, reason: str, statement: str) -> None:
        self.reason, self.statement = reason, statement
        shown = " ".join(statement.split())
        super().__init__(f"SQL {shown[:200]!r}: {reason}; the statement changed nothing, the transaction continues")


class SqlConstraintError(SqlError):
    """A statement would break a constraint of your tables: a unique, foreign or checked value."""


class SqlForbiddenError(SqlError):
    """A statement would write Pelton's own tables, end the transaction, or write in ``jet.read()``."""
