"""The shared state of an open store's locks: the table, the keeper, and the locks held in this process."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from pelton.api import Backend, LockReentryError
from pelton.jet import Streams
from pelton.locks.acquisition import Acquisition
from pelton.locks.keeper import LockKeeper, ThreadKeeper
from pelton.locks.records import LockSpec
from pelton.locks.table import LockTable
from pelton.runtime import Clock, Runtime, owner


class HeldLock(Protocol):
    """A held lock, as the manager needs it."""

    @property
    def spec(self) -> str:
        """The name of the lock or semaphore."""

    @property
    def token(self) -> int:
        """Its fencing token."""

    @property
    def caller(self) -> object:
        """The task or thread that acquired it."""

    @property
    def is_held(self) -> bool:
        """Whether it is neither released nor lost."""


class LockManager:
    """Manages the locks and semaphores of one open store."""

    def __init__(self, jet: Streams, keeper: Callable[[Backend, Runtime], LockKeeper] = ThreadKeeper) -> None:
        self.runtime: Runtime = jet.runtime
        self.clock: Clock = jet.runtime.clock
        self.check_loop: Callable[[], None] = jet.backend.check_loop
        self.table: LockTable = LockTable(jet)
        self.keeper: LockKeeper = keeper(jet.backend, jet.runtime)
        self._who = f"{platform.node()} {os.getpid()}"
        self._waiting: set[str] = set()
        self._held: defaultdict[str, WeakSet[HeldLock]] = defaultdict(WeakSet)

    def acquisition(self, spec: LockSpec) -> Acquisition:
        """Return a new acquisition. Raises LockReentryError if a caller would wait for itself."""
        if spec.kind == "lock":
            caller = owner()
            for held in list(self._held.get(str(spec), ())):
                if caller is not None and held.caller == caller and held.is_held:
                    raise LockReentryError(str(spec), held.token)
        return Acquisition(self.table, self.runtime, spec, self._who, self._waiting)

    def remember(self, held: HeldLock) -> None:
        """Note that a lock is held."""
        self._held[held.spec].add(held)

    def forget(self, held: HeldLock) -> None:
        """Note that a lock is no longer held."""
        spec = held.spec
        found = self._held.get(spec)
        if found is not None:
            found.discard(held)
            if not found:
                del self._held[spec]

    async def close(self) -> None:
        """Stop renewing; held locks are lost."""
        await self.keeper.close()
