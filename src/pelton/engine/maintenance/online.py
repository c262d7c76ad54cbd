"""Upkeep of a store while an engine has it open: rekey, backup and restore."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from pelton.api import ConfigError
from pelton.api.backend import Progress, StrPath
from pelton.api.keys import Key, key_bytes
from pelton.engine.connections import Connections
from pelton.engine.host import Host
from pelton.engine.maintenance.restoring import restore_into
from pelton.engine.maintenance.upkeep import backup, public_faults
from pelton.engine.transactions.transactions import Transactions
from pelton.runtime import Halt, on_thread
from pelton.storage import Committer, Database


class OnlineMaintenance:
    """Upkeep of one open store; ``wake_others`` wakes its other openers, so that they read it again."""

    def __init__(
        self,
        host: Host,
        connections: Connections,
        database: Database,
        committer: Committer,
        transactions: Transactions,
        wake_others: Callable[[], None],
    ) -> None:
        self._host = host
        self._connections = connections
        self._db = database
        self._committer = committer
        self._transactions = transactions
        self._wake_others = wake_others
        self._loop = asyncio.get_running_loop()

    async def rekey(self, key: Key) -> None:
        """Encrypt the store with another key."""
        self._host.check_loop()
        new = key_bytes(key)
        if new is None:
            raise ConfigError("rekey needs a key; to decrypt a store, close it and use pelton.rekey(path, key, None)")
        # Staged work waits for the open transaction: inside its block, this call would wait for itself.
        self._host.check_outside()
        await self._committer.quiesce()
        await self._transactions.rest()
        with public_faults():
            self._db.check()
            with self._connections.rekeyed(new):
                self._db.rekey(new)
        self._wake_others()
        await self._host.stage(_nothing, durable=True)

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Copy the store on another thread; if the caller is cancelled, no copy is left, not even a complete one."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("'memory:' has no file to back up: open a file")
        self._host.check_loop()
        self._host.check_place()

        def work(halt: Halt) -> None:
            backup(settings.path, target, streams=streams, progress=self._telling(progress, halt), key=settings.key)

        await on_thread(work, undo=lambda _: os.unlink(target))

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Copy streams of a backup into the store on another thread."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("'memory:' has no file to restore to: open a file")
        self._host.check_loop()
        self._host.check_place()
        self._host.check_outside()
        path, own = settings.path, settings.key

        def work(halt: Halt) -> list[str]:
            told = self._telling(progress, halt)
            return restore_into(source, path, own, streams=streams, names=names, key=key, progress=told, halt=halt)

        try:
            found = await on_thread(work)
        finally:
            # Also if the caller was cancelled just after the work was done.
            self._wake_others()
            self._host.woken()
        # Load the new streams here as well, before the caller uses them, and start their background work.
        await self._host.stage(_nothing, durable=True)
        self._host.woken()
        return found

    def _telling(self, progress: Progress | None, halt: Halt) -> Progress:
        """Return a callback that calls ``progress`` on the loop, and raises when the work should halt."""

        def tell(done: int, total: int) -> None:
            halt.check()
            if progress is not None:
                self._loop.call_soon_threadsafe(progress, done, total)

        return tell


def _nothing() -> None:
    return None
