"""The checks before every operation: the store can be used, and this is the event loop that it was opened on."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from pelton.api import WrongLoopError
from pelton.engine.faults import public_error
from pelton.runtime import Home, running_loop
from pelton.storage import Database, Fault


class Door:
    """Refuses calls from another event loop than ``loop``, and calls to a store that is closed, failed or inherited."""

    __slots__ = ("_db", "_home", "_loop")

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._db = database
        self._loop = loop
        self._home = Home(loop)

    def check(self) -> None:
        """Raise StoreClosedError, StoreFailedError, StoreForkedError, WrongLoopError."""
        try:
            self._db.check()
        except Fault as fault:
            raise public_error(fault) from None
        # Every publish passes here, so on the store's own loop this is the only check.
        if running_loop() is not self._loop and self._home.is_elsewhere:
            self._refuse()

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
