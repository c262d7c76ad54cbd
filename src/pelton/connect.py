"""From an address to an open :class:`Jet`: the one place where a backend is chosen."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, cast, overload

from pelton.api import AccountLimits, Backend, ConfigError
from pelton.api.build import check_name, seconds_to_ns
from pelton.api.times import Seconds
from pelton.buckets import (
    Bucket,
    BucketSettings,
    Codec,
    ObjectSettings,
    ObjectStore,
    bucket_names,
    create_bucket,
    create_objects,
    delete_bucket,
    delete_objects,
    objects_names,
    open_bucket,
    open_objects,
    update_bucket,
)
from pelton.engine import Engine, EngineSettings, Key, key_bytes
from pelton.jet import Streams
from pelton.locks import Commons, Election, ElectionOptions, Lock, Semaphore, place
from pelton.queue import Queue, Transaction
from pelton.runtime import Runtime, system_runtime
from pelton.sourcing import Carrier
from pelton.storage import SyncMode

if TYPE_CHECKING:
    from pelton.cluster import Cluster

T = TypeVar("T")
_MEMORY: Final = "memory:"
_SYNC_MODES: Final = ("commit", "interval", "off")
_CLUSTER_SCHEMES: Final = ("nats", "tls", "context")
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
        num_replicas: int = 1,
    ) -> Queue:
        """Open a work queue, making it if it is new.

        ``exclusive`` (default False) allows one job a key in flight, in order. ``lease`` (default 30 s) is how
        long a worker that died keeps its jobs; healthy workers renew theirs. Both are fixed when the queue is
        made: all its workers have to agree on them.
        ``history_max_age`` bounds the history, ``num_replicas`` says how many servers of a cluster keep a new queue.
        Raises ConfigError.
        """
        return await Queue.open(
            self,
            name,
            exclusive=exclusive,
            lease=lease,
            history_max_age=history_max_age,
            num_replicas=num_replicas,
        )

    @overload
    async def bucket(self, name: str, *, codec: Codec | None = None) -> Bucket[bytes]: ...
    @overload
    async def bucket(self, name: str, *, type: type[T], codec: Codec | None = None) -> Bucket[T]: ...
    async def bucket(self, name: str, *, type: type[Any] | None = None, codec: Codec | None = None) -> Bucket[Any]:
        """Return a key-value bucket that exists; its values are bytes, or of ``type``, kept as JSON.

        ``codec`` says how keys and values are written, where that is not as they are (ADR-54). Raises
        BucketNotFoundError, ConfigError.
        """
        return await open_bucket(self, name, type, codec)

    @overload
    async def create_bucket(
        self, name: str, *, codec: Codec | None = None, **settings: Unpack[BucketSettings]
    ) -> Bucket[bytes]: ...
    @overload
    async def create_bucket(
        self, name: str, *, type: type[T], codec: Codec | None = None, **settings: Unpack[BucketSettings]
    ) -> Bucket[T]: ...
    async def create_bucket(
        self,
        name: str,
        *,
        type: type[Any] | None = None,
        codec: Codec | None = None,
        **settings: Unpack[BucketSettings],
    ) -> Bucket[Any]:
        """Make a key-value bucket, or return the one there is with the same settings (ADR-8).

        ``type`` and ``codec`` are as :meth:`bucket` says; see :class:`BucketSettings` for the rest. Raises
        ConfigError; ApiError 10058 for other settings than it has.
        """
        return await create_bucket(self, name, type, codec, **settings)

    async def update_bucket(self, name: str, **settings: Unpack[BucketSettings]) -> Bucket[bytes]:
        """Change settings of a bucket; the others, and its keys, stay.

        Raises BucketNotFoundError, ConfigError; ApiError for what cannot be changed, such as ``storage``.
        """
        return await update_bucket(self, name, **settings)

    async def delete_bucket(self, name: str) -> None:
        """Remove a bucket with all its keys. Raises BucketNotFoundError."""
        await delete_bucket(self, name)

    async def bucket_names(self) -> list[str]:
        """Return the names of all buckets."""
        return await bucket_names(self)

    async def objects(self, name: str) -> ObjectStore:
        """Return an object store that exists. Raises BucketNotFoundError, ConfigError."""
        return await open_objects(self, name)

    async def create_objects(self, name: str, **settings: Unpack[ObjectSettings]) -> ObjectStore:
        """Make an object store, or return the one there is with the same settings (ADR-20).

        See :class:`ObjectSettings`. Raises ConfigError; ApiError 10058 for other settings than it has.
        """
        return await create_objects(self, name, **settings)

    async def delete_objects(self, name: str) -> None:
        """Remove an object store with all its objects. Raises BucketNotFoundError."""
        await delete_objects(self, name)

    async def objects_names(self) -> list[str]:
        """Return the names of all object stores."""
        return await objects_names(self)

    def elect(self, election: str, **options: Unpack[ElectionOptions]) -> Election:
        """Return a candidate of a leader election: ``async with jet.elect("scheduler") as term``, or ``run`` it.

        See :class:`ElectionOptions`. Raises ConfigError.
        """
        return Election(self, election, **options)

    @cached_property
    def _commons(self) -> Commons:
        return Commons(self)

    def lock(self, name: str, *, ttl: Seconds = 30) -> Lock:
        """Return the lock of this name, one among all processes: ``async with jet.lock("car1") as held``.

        It is renewed in the background while it is held; if its holder dies, others have it after ``ttl`` (whole
        seconds, at least 1). Raises ConfigError.
        """
        return Lock(self._commons, place("lock", name, 1, ttl))

    def semaphore(self, name: str, *, slots: int, ttl: Seconds = 30) -> Semaphore:
        """Return the semaphore of this name, which up to ``slots`` callers hold at once; else as :meth:`lock`.

        All its users have to agree on ``slots`` (at most 1,000). Raises ConfigError.
        """
        return Semaphore(self._commons, place("semaphore", name, slots, ttl))

    async def close(self) -> None:
        """Finish what is under way and let go of the store; locks that are held are lost. Idempotent."""
        if "_commons" in vars(self):
            await self._commons.close()
        await super().close()

    async def feed(
        self, stream: str, to: Jet, *, name: str = "", filters: Sequence[str] = (), until_empty: bool = False
    ) -> int:
        """Carry the messages of a stream to another store or cluster, in order, each once, until cancelled.

        They keep their subjects; the stream of ``to`` that takes those stores them. How far it has come is kept in
        this store, as the durable consumer ``feed_<name>`` (default: the stream's name): begun again it goes on
        there. While ``to`` is away, or full, it waits, with at most 2,000 messages in memory. ``filters`` name a part
        of the subjects. ``until_empty`` ends it when nothing is left. Returns how many were carried.

        One process at a time: another that begins takes over, and this one ends with AckRejectedError. Raises
        ApiError for what ``to`` never takes: no stream for a subject, a message too large.
        """
        check_name("feed", name or stream)
        carrier = Carrier(self.backend, to.backend, stream, name or stream, self.runtime)
        return await carrier.run(filters, until_empty=until_empty)

    async def rekey(self, key: Key) -> None:
        """Encrypt an encrypted store with another key, now.

        Other processes that have the store open get StoreKeyError from their next operation and open it again with
        the new key; nothing that was acknowledged is lost, and a kill or power loss leaves the old key or the new one.
        This process does nothing else meanwhile. Raises StoreSettingsError for a plain store (:func:`pelton.rekey`
        encrypts one), StoreBusyError, ConfigError.
        """
        await self._engine("rekey").rekey(key)

    async def backup(
        self,
        path: str | os.PathLike[str],
        *,
        streams: Sequence[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Copy the store, as it is at this moment, to the new file ``path``, which is a store itself; work goes on.

        With ``streams`` only those, with their consumers. The copy has the store's key, and its name once it is whole
        and on disk. ``progress`` is called with how much of how much is done. Raises StoreSettingsError where the file
        exists, StreamNotFoundError, StoreFullError, ConfigError for what is no file.

        On a cluster ``path`` becomes a folder with what its servers say of each stream, one after another, as the
        ``nats`` command keeps it.
        """
        await self._keeper().backup(path, streams, progress)

    async def restore(
        self,
        path: str | os.PathLike[str],
        *,
        streams: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        key: Key | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[str]:
        """Copy the streams of a backup, or some of them, with their consumers into this store; return their names here.

        The backup is verified first; ``key`` is its own, if it is encrypted. It happens in one transaction: what others
        write waits meanwhile. ``names`` gives streams new names (old to new): such a stream takes that name as its only
        subject, so that it may lie beside the one it was copied of; give it others with update_stream. ``progress``
        is called with how many rows of how many are done.

        Raises StoreError where the backup is damaged, ApiError 10130 where a name is taken, 10065 where subjects are,
        StreamNotFoundError for a stream that the backup has not, ConfigError. :func:`pelton.restore` makes a new store.
        """
        return await self._keeper().restore(path, streams, names or {}, key, progress)

    def _keeper(self) -> Engine | Cluster:
        return cast("Engine | Cluster", self.backend)

    def _engine(self, what: str) -> Engine:
        if not isinstance(self.backend, Engine):
            raise ConfigError(f"{what} works on a store file; a cluster keeps its own: see the tools of nats-server")
        return self.backend

    def transaction(self, *, timeout: float | timedelta = 1.0) -> Transaction:
        """Return a transaction over this store: ``async with jet.transaction() as tx``.

        Publishes, acks, jobs, keys of buckets (``tx.bucket``) and your own SQL rows (``tx.sql``) take effect together
        when the block is left, durable, or not at all when it raises. From its first operation it holds the store's
        writer, for at most ``timeout``: then it is rolled back (TransactionTimeoutError). Within another
        one's block of the same task it is a savepoint.
        Raises ConfigError, also on a cluster; StoreBusyError when the writer cannot be had.
        """
        return Transaction(self.backend, timeout)


class ClusterOptions(TypedDict, total=False):
    """What :func:`open` takes for a cluster.

    Who we are, one of these or ``user:password@`` in the address: ``user`` and ``password``, ``token``,
    ``credentials`` (the file of a user, as ``nsc`` writes it), ``nkey`` (a seed, or a file that holds one).

    ``tls``, an ``ssl.SSLContext``, or the files ``tls_ca``, ``tls_cert``, ``tls_key``; ``tls_first`` for servers
    with ``handshake_first``. With any of them, as with ``tls://``, nothing is said in the clear.

    ``domain`` or ``api_prefix``: where the JetStream API is. ``inbox_prefix``: what answers are sent below
    (``_INBOX``).

    ``patience`` bounds how long an operation outlasts lost connections and elections (30 s). ``message_ids``
    gives every publish without a ``msg_id`` one of ours, so that repeating it is harmless (True).
    """

    user: str
    password: str
    token: str
    credentials: str | os.PathLike[str]
    nkey: str | os.PathLike[str]
    tls: ssl.SSLContext
    tls_ca: str | os.PathLike[str]
    tls_cert: str | os.PathLike[str]
    tls_key: str | os.PathLike[str]
    tls_first: bool
    domain: str
    api_prefix: str
    inbox_prefix: str
    patience: float | timedelta
    message_ids: bool


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
    sync: SyncMode | None = None,
    sync_interval: float | timedelta | None = None,
    busy_timeout: float | timedelta | None = None,
    limits: AccountLimits | None = None,
    key: Key | None = None,
    runtime: Runtime | None = None,
    **cluster: Unpack[ClusterOptions],
) -> Opening:
    """Open a store: the path of a file (made if it is missing), ``memory:`` for one that ends with the process,
    or a NATS cluster with JetStream (needs the extra: ``pip install 'pelton[cluster]'``):
    ``nats://host:4222,other:4222``, ``tls://host``, or ``context:path`` for a file of ``nats context``.

    A file: ``sync`` says what an acknowledgement promises: ``commit`` (default) that the message is on disk;
    ``interval`` that it is at most ``sync_interval`` (0.1 s) later; ``off`` that it survives this process, not a
    power loss. ``busy_timeout`` (30 s) bounds the wait for another process's transaction. ``limits`` bound what may
    be stored and made through this opening, as a NATS server bounds an account. ``key`` encrypts a new file and
    opens an encrypted one: a text, bytes, a :class:`pelton.KeyFile` or a function that fetches it. Any number of
    processes may open the same file.

    A cluster: ``cluster`` are the fields of :class:`ClusterOptions`. It decides by itself what it keeps, and when.

    Raises ConfigError, also for an option of the other kind; ServerUnreachableError, ServerRefusedError,
    ServerTimeoutError, JetStreamMissingError; NotAStoreError, StoreKeyError, StoreVersionError,
    StoreReadOnlyError, StoreSettingsError, StoreBusyError.
    """
    text = os.fspath(address)
    runtime = runtime or system_runtime()
    embedded = {
        "sync": sync,
        "sync_interval": sync_interval,
        "busy_timeout": busy_timeout,
        "limits": limits,
        "key": key,
    }
    _refuse_unknown(cluster)
    scheme = _cluster_scheme(text)
    if scheme is not None:
        _refuse([option for option, value in embedded.items() if value is not None], text, "a cluster", "a file")
        return Opening(_cluster(scheme, text, dict(cluster), runtime), runtime)
    _refuse(list(cluster), text, "a file", "a cluster")
    settings = _engine_settings(
        text,
        sync or "commit",
        0.1 if sync_interval is None else sync_interval,
        30.0 if busy_timeout is None else busy_timeout,
        limits or AccountLimits(),
    )
    if key is not None and settings.memory:
        raise ConfigError("'memory:' has no file to encrypt: leave key= out")
    return Opening(_engine(settings, key, runtime), runtime)


def _cluster_scheme(address: str) -> str | None:
    scheme, found, _ = address.partition(":")
    if scheme in _CLUSTER_SCHEMES and found:
        return scheme
    if "://" in address:
        known = "a path, 'memory:', 'nats://host:4222', 'tls://host' or 'context:path'"
        raise ConfigError(f"{scheme}:// is not supported: give {known}")
    return None


def _refuse(options: list[str], address: str, kind: str, other: str) -> None:
    if options:
        shown = address if kind == "a file" else address.partition(":")[0] + ":..."
        raise ConfigError(f"{shown!r} is {kind}, and {', '.join(options)} mean something to {other} alone: leave out")


def _refuse_unknown(options: Mapping[str, object]) -> None:
    known = list(ClusterOptions.__annotations__)
    for option in options:
        if option not in known:
            near = get_close_matches(option, [*known, "sync", "sync_interval", "busy_timeout", "limits", "key"], n=1)
            raise ConfigError(f"open has no option {option!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _engine_settings(
    text: str,
    sync: SyncMode,
    sync_interval: float | timedelta,
    busy_timeout: float | timedelta,
    limits: AccountLimits,
) -> EngineSettings:
    if sync not in _SYNC_MODES:
        raise ConfigError(f"sync is {sync!r}: choose one of {', '.join(map(repr, _SYNC_MODES))}")
    memory = text == _MEMORY
    return EngineSettings(
        path=f"pelton-{os.getpid()}-{next(_memory_stores)}" if memory else text,
        memory=memory,
        sync=sync,
        interval=seconds_to_ns("sync_interval", sync_interval) / 1e9,
        busy_timeout=seconds_to_ns("busy_timeout", busy_timeout) / 1e9,
        limits=limits,
    )


def _engine(settings: EngineSettings, key: Key | None, runtime: Runtime) -> Callable[[], Awaitable[Backend]]:
    async def connect() -> Backend:
        return Engine(replace(settings, key=key_bytes(key)), runtime)

    return connect


def _cluster(scheme: str, address: str, options: dict[str, Any], runtime: Runtime) -> Callable[[], Awaitable[Backend]]:
    try:
        from pelton.cluster import Cluster, read_context, settings_of
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "nats":
            raise
        raise ConfigError(
            f"a {scheme}: address needs nats-py, which is not installed: pip install 'pelton[cluster]'"
        ) from None
    if scheme == "context":
        address, options = read_context(address.partition(":")[2], options)
    cluster = Cluster(settings_of(address, **options), runtime)

    async def connect() -> Backend:
        await cluster.connect()
        return cluster

    return connect
