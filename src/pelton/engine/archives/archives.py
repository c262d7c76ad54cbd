"""Archives of the streams of an open store, for a server: what one holds, and restoring one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pelton.api import ConfigError, StreamConfig
from pelton.api.archives import ArchivedConsumer
from pelton.api.backend import Progress, StrPath
from pelton.api.events import Event, StreamAction
from pelton.api.keys import Key
from pelton.engine.archives.building import ArchivedStream, build_store
from pelton.engine.archives.reading import ArchiveReader, archived_consumers
from pelton.engine.connections import Connections
from pelton.engine.host import Host
from pelton.engine.maintenance.upkeep import public_faults
from pelton.engine.verbs import streams
from pelton.runtime import Clock, Halt, on_thread


class RestoringStore(Protocol):
    """The store that a backup is restored into."""

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]: ...


class StreamArchives:
    """The archives of one store."""

    def __init__(self, host: Host, connections: Connections, store: RestoringStore, clock: Clock) -> None:
        self._host = host
        self._connections = connections
        self._store = store
        self._clock = clock

    async def consumers(self, stream: str, last: int) -> list[ArchivedConsumer]:
        """Return the consumers of a stream, as if it ended with the message ``last``."""
        session = self._host.session
        found: list[ArchivedConsumer] = await self._host.stage(
            lambda: archived_consumers(session, stream, last), durable=False
        )
        return found

    def reader(self, stream: str, created: str, first: int, last: int) -> ArchiveReader:
        """Return a reader of messages. Raises ConfigError for a store in memory, StreamNotFoundError."""
        with self._connections.unchanged() as settings:
            if settings.memory:
                raise ConfigError("a store in memory has no archives: serve a file")
            return ArchiveReader(settings.path, settings.key, stream, created, first, last)

    async def advise(self, event: Event) -> None:
        """Send an advisory."""
        await self._host.stage(lambda: self._host.session.advise(event), durable=False)

    # --- restoring

    async def check(self, config: StreamConfig) -> StreamConfig:
        """Return the resolved configuration of a stream that is to be restored. Raises ApiError if it cannot be."""
        session = self._host.session
        found: StreamConfig = await self._host.stage(lambda: streams.checked_restore(session, config), durable=False)
        return found

    def most_bytes(self, config: StreamConfig) -> int:
        """Return how many bytes a stream may have at most, by the account's limits; -1 for any number."""
        limits = self._host.session.registry.account.limits
        return limits.max_memory if config.storage == "memory" else limits.max_storage

    def new_folder(self, name: str) -> str:
        """Make a folder beside the store for what a restore writes. Raises ConfigError, OSError."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("a store in memory cannot restore archives: serve a file")
        folder = f"{settings.path}-restore-{name}"
        os.mkdir(folder, 0o700)
        return folder

    @staticmethod
    def remove_folder(folder: str) -> None:
        """Remove such a folder. Idempotent."""
        shutil.rmtree(folder, ignore_errors=True)

    async def restore(
        self, config: StreamConfig, folder: str, read: Callable[[Mapping[str, str]], ArchivedStream]
    ) -> None:
        """Restore a stream with a resolved configuration, all or nothing; ``folder`` is of :meth:`new_folder`.

        ``read`` is called on a thread, with the creation times of the streams that it sources. Raises ApiError.
        """
        host, now = self._host, self._host.session.now()
        origins = await host.stage(lambda: streams.origins_of(host.session, config), durable=False)
        with self._connections.unchanged() as settings:
            key = settings.key
        scratch = os.path.join(folder, "store")

        def build(halt: Halt) -> int:
            with public_faults():
                return build_store(scratch, key, read(origins), now, halt)

        size = await on_thread(build)
        await host.stage(lambda: host.session.registry.account.check_quota(config.storage, size), durable=False)
        await self._store.restore(scratch, [config.name], {}, key, None)
        await self.advise(StreamAction(stream=config.name, action="create"))
