"""From an address to an open :class:`Jet`: the one place where a backend is chosen."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any, Final

from pelton.api import Backend, ConfigError
from pelton.api.build import seconds_to_ns
from pelton.engine import Engine, EngineSettings
from pelton.jet import Streams
from pelton.queue import Queue
from pelton.runtime import Runtime, system_runtime
from pelton.storage import SyncMode

_MEMORY: Final = "memory:"
_SYNC_MODES: Final = ("commit", "interval", "off")
_CLUSTER_SCHEMES: Final = ("nats", "tls")
_memory_stores = count(1)


class Jet(Streams):
    """An open store. Made by :func:`open`; close it, or use it as ``async with``."""

    async def queue(
        self,
        name: str,
        *,
        exclusive: bool | None = None,
        lease: float | timedelta | None = None,
        history_max_age: float | timedelta = timedelta(days=7),
    ) -> Queue:
        """Open a work queue, making it if it is new.

        ``exclusive`` (default False) allows one job a key in flight, in order. ``lease`` (default 30 s) is how
        long a worker that died keeps its jobs; healthy workers renew theirs. Both are fixed when the queue is
        made: all its workers have to agree on them.
        ``history_max_age`` bounds the history. Raises ConfigError, also for an exclusive queue on a cluster.
        """
        if exclusive and not isinstance(self.backend, Engine):
            raise ConfigError(
                f"queue {name!r}: exclusive queues need the embedded engine (pelton.open with a file) for now; "
                "open this one without exclusive=True"
            )
        return await Queue.open(self, name, exclusive=exclusive, lease=lease, history_max_age=history_max_age)


class Opening:
    """A store about to be opened: ``await`` it, or use it as ``async with``."""

    def __init__(self, connect: Callable[[], Awaitable[Backend]], runtime: Runtime) -> None:
        self._connect = connect
        self._runtime = runtime
        self._jet: Jet | None = None

    def __await__(self) -> Generator[Any, None, Jet]:
        return self._open().__await__()

    async def __aenter__(self) -> Jet:
        self._jet = await self._open()
        return self._jet

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._jet is not None
        await self._jet.close()

    async def _open(self) -> Jet:
        return Jet(await self._connect(), self._runtime)


def open(
    address: str | os.PathLike[str],
    *,
    sync: SyncMode = "commit",
    sync_interval: float | timedelta = 0.1,
    busy_timeout: float | timedelta = 30.0,
    runtime: Runtime | None = None,
) -> Opening:
    """Open a store: the path of a file (made if it is missing), ``memory:`` for one that ends with the process,
    or a NATS cluster with JetStream: ``nats://host:4222,other:4222`` or ``tls://``, with ``user:password@`` or
    ``token@`` before the host where the servers ask for it (needs the extra: ``pip install 'pelton[cluster]'``).

    ``sync`` says what an acknowledgement promises: ``commit`` (default) that the message is on disk;
    ``interval`` that it is at most ``sync_interval`` later; ``off`` that it survives this process, not a
    power loss. ``busy_timeout`` bounds the wait for another process's transaction. Any number of processes
    may open the same file. A cluster decides these by itself.

    Raises ConfigError, ServerUnreachableError, ServerRefusedError, ServerTimeoutError, JetStreamMissingError,
    NotAStoreError, StoreVersionError, StoreReadOnlyError, StoreSettingsError,
    StoreBusyError.
    """
    text = os.fspath(address)
    if sync not in _SYNC_MODES:
        raise ConfigError(f"sync is {sync!r}: choose one of {', '.join(map(repr, _SYNC_MODES))}")
    runtime = runtime or system_runtime()
    if "://" in text:
        return Opening(_cluster(text, runtime), runtime)
    memory = text == _MEMORY
    settings = EngineSettings(
        path=f"pelton-{os.getpid()}-{next(_memory_stores)}" if memory else text,
        memory=memory,
        sync=sync,
        interval=seconds_to_ns("sync_interval", sync_interval) / 1e9,
        busy_timeout=seconds_to_ns("busy_timeout", busy_timeout) / 1e9,
    )
    return Opening(_engine(settings, runtime), runtime)


def _engine(settings: EngineSettings, runtime: Runtime) -> Callable[[], Awaitable[Backend]]:
    async def connect() -> Backend:
        return Engine(settings, runtime)

    return connect


def _cluster(address: str, runtime: Runtime) -> Callable[[], Awaitable[Backend]]:
    scheme = address.partition("://")[0]
    if scheme not in _CLUSTER_SCHEMES:
        raise ConfigError(f"{scheme}:// is not supported: give a path, 'memory:', 'nats://host:4222' or 'tls://host'")
    try:
        from pelton.cluster import Cluster, settings_of
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "nats":
            raise
        raise ConfigError(
            f"a {scheme}:// address needs nats-py, which is not installed: pip install 'pelton[cluster]'"
        ) from None
    cluster = Cluster(settings_of(address), runtime)

    async def connect() -> Backend:
        await cluster.connect()
        return cluster

    return connect
