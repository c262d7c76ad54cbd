"""Translates storage faults into public errors: the only place that does."""

from __future__ import annotations

import re
from typing import Final

from pelton.api import (
    NotAStoreError,
    PeltonError,
    SqlConstraintError,
    SqlError,
    SqlForbiddenError,
    StoreBusyError,
    StoreClosedError,
    StoreDescriptorsError,
    StoreError,
    StoreFailedError,
    StoreForkedError,
    StoreFullError,
    StoreGoneError,
    StoreKeyError,
    StoreReadOnlyError,
    StoreSettingsError,
    StoreVersionError,
    api_error,
)
from pelton.storage import SCHEMA_VERSION, Fault, FaultKind, Refusal
from pelton.storage.user_sql import RefusalKind

_ERRORS: Final[dict[FaultKind, type[StoreError]]] = {
    "busy": StoreBusyError,
    "foreign": NotAStoreError,
    "key": StoreKeyError,
    "read_only": StoreReadOnlyError,
    "full": StoreFullError,
    "descriptors": StoreDescriptorsError,
    "closed": StoreClosedError,
    "forked": StoreForkedError,
    "failed": StoreFailedError,
    "gone": StoreGoneError,
    "settings": StoreSettingsError,
    "corrupt": StoreError,
    "io": StoreError,
}

_SQL_ERRORS: Final[dict[RefusalKind, type[SqlError]]] = {
    "forbidden": SqlForbiddenError,
    "constraint": SqlConstraintError,
    "mistake": SqlError,
}


class UndoneError(Exception):
    """What a caller asked for is refused after it had begun: its transaction is rolled back, and it gets ``error``."""

    def __init__(self, error: PeltonError) -> None:
        super().__init__(str(error))
        self.error = error


def sql_error(refusal: Refusal, statement: str) -> SqlError:
    """Return the public error for a statement that was refused."""
    return _SQL_ERRORS[refusal.kind](refusal.reason, str(statement))


def public_error(error: Exception) -> Exception:
    """Return the public error for a storage fault; anything else unchanged."""
    if isinstance(error, UndoneError):
        return error.error
    if not isinstance(error, Fault):
        return error
    if error.kind == "newer":
        found = re.search(r"schema (\d+)", error.detail)
        return StoreVersionError(error.path, int(found[1]) if found else 0, SCHEMA_VERSION)
    if error.kind == "too_large":
        # A message of more than a gigabyte, which SQLite cannot store.
        return api_error("JSStreamMessageExceedsMaximumErr")
    return _ERRORS[error.kind](error.path, error.detail)
