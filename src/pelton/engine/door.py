"""The checks before every operation: the store can be used, and this is the event loop that it was opened on.

Before a write, also that its caller is in no transaction of its own, for whose end the write would wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable
from typing import NoReturn

from pelton.api import TransactionError, WrongLoopError
from pelton.engine.faults import public_error
from pelton.runtime import Home, owner, running_loop
from pelton.storage import Database, Fault


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
