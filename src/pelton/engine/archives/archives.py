"""Archives of the streams of an open store, for a server: what one holds, and restoring one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from glob import escape, iglob
from typing import IO, Final, Protocol

from pelton.api import AccountLimits, ConfigError, PeltonError, StreamConfig, api_error
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

_ARCHIVE: Final = "archive"
# How many are built at once: each takes a thread, and as much of the processor as it gets.
_BUILT_AT_ONCE: Final = 2


class RestoreFolder:
    """A folder beside a store for what a restore writes, and the file in it for the archive. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkdir(path, 0o700)
        self.archive: IO[bytes] = open(os.path.join(path, _ARCHIVE), "w+b")  # noqa: SIM115  # remove() closes it
        fcntl.flock(self.archive, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it. Idempotent."""
        self.archive.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_abandoned(prefix: str) -> None:
    """Remove the folders of processes that have ended in the middle of a restore: no one holds their archives."""
    for path in iglob(f"{escape(prefix)}*"):
        with suppress(OSError), open(os.path.join(path, _ARCHIVE), "rb") as archive:
            fcntl.flock(archive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


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
        self._building = asyncio.Semaphore(_BUILT_AT_ONCE)

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
        """Return the resolved configuration of a stream that is to be restored. Raises PeltonError if it cannot be."""
        session = self._host.session
        found: StreamConfig = await self._host.stage(lambda: streams.checked_restore(session, config), durable=False)
        return found

    @property
    def limits(self) -> AccountLimits:
        """The limits of the account."""
        return self._host.session.registry.account.limits

    def free_bytes(self) -> int:
        """Return how much room the disk of the store has. Raises OSError."""
        return shutil.disk_usage(os.path.dirname(self._connections.settings.path) or ".").free

    def new_folder(self, name: str) -> RestoreFolder:
        """Make a folder for what a restore writes; remove those of killed processes. Raises ConfigError, OSError."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("a store in memory cannot restore archives: serve a file")
        prefix = f"{settings.path}-restore-"
        remove_abandoned(prefix)
        return RestoreFolder(prefix + name)

    async def restore(
        self, config: StreamConfig, folder: RestoreFolder, read: Callable[[Mapping[str, str], Halt], ArchivedStream]
    ) -> None:
        """Restore a stream with a resolved configuration, all or nothing.

        ``read`` is called on a thread, with the creation times of the streams that it sources. Raises PeltonError.
        """
        host, now = self._host, self._host.session.now()
        origins = await host.stage(lambda: streams.origins_of(host.session, config), durable=False)
        with self._connections.unchanged() as settings:
            key = settings.key
        scratch = os.path.join(folder.path, "store")

        def build(halt: Halt) -> int:
            try:
                with public_faults():
                    return build_store(scratch, key, read(origins, halt), now, halt)
            except PeltonError:
                raise
            except (OverflowError, ValueError) as error:
                # A number that is out of bounds in a header or a state, which no one has looked at before.
                raise api_error("JSStreamRestoreErrF", stream=config.name, err=error) from None

        def check_again() -> None:
            # Other streams may have been created meanwhile.
            streams.checked_restore(host.session, config)
            host.session.registry.account.check_quota(config.storage, size)

        async with self._building:
            size = await on_thread(build)
        await host.stage(check_again, durable=False)
        await self._store.restore(scratch, [config.name], {}, key, None)
        await self.advise(StreamAction(stream=config.name, action="create"))
