"""The interface of the engine for its parts.

**The checks before every operation: the store can be used, and this is the event loop that it was opened on.** Before a
write, also that its caller is in no transaction of its own, for whose end the write would wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Hashable
from typing import Any, Final, NoReturn, Protocol, TypeVar

from pelton.api import (
    Delivered,
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
    TransactionError,
    WrongLoopError,
    api_error,
)
from pelton.engine.session import Committed, Session
from pelton.runtime import Home, owner, running_loop
from pelton.storage import SCHEMA_VERSION, Database, Fault, FaultKind, Refusal
from pelton.storage.damage import note_damage
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
    if error.kind == "corrupt":
        # Every find comes through here.
        note_damage(error.path, f"SQLite: {error.detail}")
    return _ERRORS[error.kind](error.path, error.detail)


class Door:
    """Refuses calls from another event loop than ``loop``, and calls to a store that is closed, failed or inherited."""

    __slots__ = ("_db", "_home", "_loop", "entered")

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._db = database
        self._loop = loop
        self._home = Home(loop)
        # The callers that are in the block of a transaction.
        self.entered: Collection[Hashable] = ()

    def check(self) -> None:
        """Raise StoreClosedError, StoreFailedError, StoreForkedError, WrongLoopError."""
        try:
            self._db.check()
        except Fault as fault:
            raise public_error(fault) from None
        # Nearly all calls come from the store's own loop: there, this is the only check.
        if running_loop() is not self._loop and self._home.is_elsewhere:
            self._refuse()

    def check_outside(self) -> None:
        """Raise TransactionError if the caller would wait for its own transaction."""
        if self.entered and owner() in self.entered:
            raise TransactionError(
                "inside its block only operations of the transaction are possible (tx.publish, tx.ack, tx.sql, "
                "tx.bucket, tx.enqueue); all other writes wait for its end, so make them before or after the block"
            )

    def check_loop(self) -> None:
        """Raise WrongLoopError on another event loop; a closed or inherited store raises its own error later."""
        # Every step of an iteration passes here.
        if running_loop() is self._loop:
            return
        if self._home.is_elsewhere and not (self._db.is_inherited or self._db.is_closed):
            self._refuse()

    def check_place(self) -> None:
        """Raise StoreGoneError if the open store was removed, moved or replaced, or the error that ended it."""
        try:
            self._db.check_sound()
        except Fault as fault:
            raise public_error(fault) from None

    def _refuse(self) -> NoReturn:
        raise WrongLoopError(self._db.path, "that one has ended" if self._home.is_over else "")


R = TypeVar("R")


class Host(Protocol):
    """``session`` is that of shared transactions, and ``door`` has the checks before each operation.

    ``stage`` runs a call in the next transaction, ``stage_quietly`` one whose result nobody waits for, and ``read`` one
    in a snapshot. ``second_session`` opens another session, on
    a connection of its own, for transactions that users hold open.
    """

    session: Session
    door: Door

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]: ...
    def stage_quietly(self, call: Callable[[], Any], *, durable: bool = False) -> None: ...
    def read(self, call: Callable[[], R]) -> R: ...
    async def readable(self) -> None: ...
    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None: ...
    def woken(self) -> None: ...
    def second_session(self) -> Session: ...
    def publish_committed(self, committed: Committed) -> None: ...


_MORE: Final = object()


async def stage_fresh(host: Host, stream: str, call: Callable[[], Any], *, durable: bool) -> Any:
    """Run a call in a transaction in which nothing of a stream has expired: that goes before, if it is much in portions
    between which others can write.
    """

    def attempt() -> Any:
        registry = host.session.registry
        if stream in registry.streams and registry.stream(stream).advance_some(host.session.now()):
            return _MORE
        return call()

    while (found := await host.stage(attempt, durable=durable)) is _MORE:
        pass
    return found
