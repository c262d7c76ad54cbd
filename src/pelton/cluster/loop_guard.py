"""The process and event loop a connection belongs to."""

from __future__ import annotations

import os

from pelton.api import StoreClosedError, StoreForkedError, WrongLoopError
from pelton.runtime import Home


class LoopGuard:
    """The process that made a connection, and the event loop that used it first; ``name`` is for errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._home = Home()
        self._pid = os.getpid()
        self.is_closed = False

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's connection."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise WrongLoopError on another event loop, StoreForkedError in a forked child."""
        if self._home.is_elsewhere:
            if self.is_inherited:
                raise StoreForkedError(self._name)
            if self.is_closed:
                raise StoreClosedError(self._name)
            raise WrongLoopError(self._name, "that one has ended" if self._home.is_over else "")

    def check_loop(self) -> None:
        """Raise WrongLoopError on another event loop; anything closed or inherited raises its own error."""
        if self._home.is_elsewhere and not (self.is_inherited or self.is_closed):
            self.check()
