"""An open store or cluster and all of its operations, in one place so that completion finds them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, Unpack, overload

from msgspec.structs import replace

from pelton.api import AccountInfo, Backend, ConfigError
from pelton.api.arguments import (
    check_callback,
    check_instance,
    check_known,
    items_of,
    names_of_streams,
    path_of,
    texts_of,
)
from pelton.api.build import check_name
from pelton.api.keys import Key
from pelton.api.times import Seconds
from pelton.jet import SqlReads, Streams
from pelton.jet.registers import Closing
from pelton.runtime import Runtime

# Buckets, locks, queues and forwarding are loaded by the first call that needs them: a program that only publishes
# starts in half the time.
if TYPE_CHECKING:
    from pelton.buckets import Bucket, BucketSettings, Codec, ObjectSettings, ObjectStore
    from pelton.locks import Election, ElectionOptions, Lock, LockManager, Semaphore
    from pelton.queue import Jobs, Queue, Transaction

T = TypeVar("T")


class Domains(Protocol):
    """Opens the JetStream of the domain of a name, or the one whose API has a prefix."""

    async def __call__(self, name: str | None, patience: Seconds, api_prefix: str | None = None, /) -> Jet:
        """Open it."""


# So long a write into a mirror waits for its origin, as NATS's clients wait for an answer.
_ORIGIN_S: Final = 5.0


class Jet(Streams):
    """An open store, returned by :func:`open`; close it, or use it as ``async with``."""

    def __init__(
        self,
        backend: Backend,
        runtime: Runtime,
        domains: Domains | None = None,
        companion: Closing | None = None,
        own_domain: str = "",
    ) -> None:
        super().__init__(backend, runtime)
        self._domains = domains
        self._own_domain = own_domain
        self._companion = companion
        # Where buckets are written that mirror others here, by the prefix of its API; a cluster reaches all by itself.
        self._origins: dict[str, Jet] = {}
        self._opening_origin = asyncio.Lock()
        self._origin = self._open_origin if backend.planning.own_verbs and not backend.planning.read_only else None

    async def queue(
        self,
        name: str,
        *,
        exclusive: bool | None = None,
        lease: float | timedelta | None = None,
        history_max_age: float | timedelta | None = None,
        num_replicas: int | None = None,
        jobs: Jobs | Sequence[Jobs] | None = None,
        create: bool = True,
    ) -> Queue:
        """Open a work queue, creating it if it is new and ``create`` is True.

        ``exclusive`` (default False) allows one job per key in flight, in order. ``lease`` (default 30 s) is how
        long a worker that died keeps its jobs; healthy workers renew theirs. Both are fixed when the queue is
        created: all its workers have to agree on them, and a different value is refused.
        ``history_max_age`` (default 7 days; 0: for ever) bounds the history, ``num_replicas`` (default 1) is the number
        of servers of a cluster that keep the queue. A new value takes effect at once. None keeps the current value.
        ``jobs`` are those declared in a `Jobs`, or in several. Raises QueueNotFoundError, ConfigError.
        """
        from pelton.queue import Queue

        return await Queue.open(
            self,
            name,
            exclusive=exclusive,
            lease=lease,
            history_max_age=history_max_age,
            num_replicas=num_replicas,
            jobs=jobs,
            create=create,
        )

    async def queue_names(self) -> list[str]:
        """Return the names of all work queues."""
        from pelton.queue import queue_names

        return await queue_names(self)

    @overload
    async def bucket(self, name: str, *, codec: Codec | None = None) -> Bucket[bytes]: ...
    @overload
    async def bucket(self, name: str, *, type: type[T], codec: Codec | None = None) -> Bucket[T]: ...
    async def bucket(self, name: str, *, type: type[Any] | None = None, codec: Codec | None = None) -> Bucket[Any]:
        """Return an existing key-value bucket; its values are bytes, or of ``type``, stored as JSON.

        ``codec`` encodes keys and values; without it they are stored unchanged (ADR-54). Raises
        BucketNotFoundError, ConfigError.
        """
        from pelton.buckets import open_bucket

        return await open_bucket(self, name, type, codec, self._origin)

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
        """Create a key-value bucket, or return the existing one if its settings are the same (ADR-8).

        ``type`` and ``codec`` are those of :meth:`bucket`; see :class:`BucketSettings` for the rest. Raises
        ConfigError; ApiError 10058 if it exists with other settings.
        """
        from pelton.buckets import create_bucket

        return await create_bucket(self, name, type, codec, self._origin, **settings)

    async def update_bucket(self, name: str, **settings: Unpack[BucketSettings]) -> Bucket[bytes]:
        """Change settings of a bucket; its other settings and its keys stay.

        Raises BucketNotFoundError, ConfigError; ApiError for settings that cannot be changed, such as ``storage``.
        """
        from pelton.buckets import update_bucket

        return await update_bucket(self, name, self._origin, **settings)

    async def delete_bucket(self, name: str) -> None:
        """Remove a bucket with all its keys. Raises BucketNotFoundError."""
        from pelton.buckets import delete_bucket

        await delete_bucket(self, name)

    async def bucket_names(self) -> list[str]:
        """Return the names of all buckets."""
        from pelton.buckets import bucket_names

        return await bucket_names(self)

    async def objects(self, name: str) -> ObjectStore:
        """Return an existing object store. Raises BucketNotFoundError, ConfigError."""
        from pelton.buckets import open_objects

        return await open_objects(self, name)

    async def create_objects(self, name: str, **settings: Unpack[ObjectSettings]) -> ObjectStore:
        """Create an object store, or return the existing one if its settings are the same (ADR-20).

        See :class:`ObjectSettings`. Raises ConfigError; ApiError 10058 if it exists with other settings.
        """
        from pelton.buckets import create_objects

        return await create_objects(self, name, **settings)

    async def delete_objects(self, name: str) -> None:
        """Remove an object store with all its objects. Raises BucketNotFoundError."""
        from pelton.buckets import delete_objects

        await delete_objects(self, name)

    async def objects_names(self) -> list[str]:
        """Return the names of all object stores."""
        from pelton.buckets import objects_names

        return await objects_names(self)

    def elect(self, election: str, **options: Unpack[ElectionOptions]) -> Election:
        """Return a candidate of a leader election: ``async with jet.elect("scheduler") as term``, or ``run`` it.

        ``options`` are those of :class:`ElectionOptions`. Raises ConfigError.
        """
        from pelton.locks import Election, ElectionOptions

        check_known(f"election {election!r}", options, ElectionOptions.__annotations__)
        return Election(self, election, **options)

    @cached_property
    def _lock_manager(self) -> LockManager:
        from pelton.locks import LockManager

        return LockManager(self)

    def lock(self, name: str, *, ttl: Seconds = 30) -> Lock:
        """Return the lock of this name, shared by all processes: ``async with jet.lock("car1") as held``.

        It is renewed in the background while it is held; if its holder dies, others can acquire it after ``ttl``
        (whole seconds, at least 1). Raises ConfigError.
        """
        from pelton.locks import Lock, lock_spec

        return Lock(self._lock_manager, lock_spec("lock", name, 1, ttl))

    def semaphore(self, name: str, *, slots: int, ttl: Seconds = 30) -> Semaphore:
        """Return the semaphore of this name, which up to ``slots`` callers hold at once; otherwise like :meth:`lock`.

        All its users have to agree on ``slots`` (at most 1,000). ``ttl`` is in whole seconds. Raises ConfigError.
        """
        from pelton.locks import Semaphore, lock_spec

        return Semaphore(self._lock_manager, lock_spec("semaphore", name, slots, ttl))

    async def clone(self) -> Jet:
        """Open the same store or cluster again, for the calling event loop; close the clone as well.

        A jet, and every handle made from it, belongs to the event loop it was opened on (WrongLoopError on any other).
        Other threads with their own event loop use a clone, also of a ``memory:`` store. Raises
        StoreClosedError, StoreKeyError, StoreError.
        """
        backend = self.backend.clone()
        # A cluster's jet belongs to the event loop that uses it first.
        backend.check_loop()
        return Jet(backend, self.runtime, self._domains, own_domain=self._own_domain)

    async def account_info(self) -> AccountInfo:
        """Return the storage in use, the numbers of streams and consumers, and the domain, if there is one."""
        info = await super().account_info()
        return replace(info, domain=self._own_domain) if self._own_domain else info

    async def domain(self, name: str, *, patience: Seconds = 30) -> Jet:
        """Open the JetStream of another domain of the same NATS system, for the calling event loop; close it as well.

        From a file that was opened with ``leaf=``, that of its hub, or another that the hub leads to; from a cluster,
        that of one of its leaf nodes. It has the words of this store, as far as a cluster has them: streams, consumers,
        buckets, queues. Needs the extra ``pip install 'pelton[cluster]'``.

        ``patience`` in seconds bounds how long an operation, and this call, outlasts that it is away. Raises
        ConfigError, also for a file that was opened without ``leaf=``; ServerUnreachableError, JetStreamMissingError.
        """
        if self._domains is None:
            raise ConfigError("domain: this file has no hub: open it with leaf=pelton.Leaf('nats://HOST:7422')")
        return await self._domains(name, patience)

    async def _open_origin(self, api: str) -> Jet:
        """Return the JetStream whose API has a prefix; it is closed with this store."""
        if self._domains is None:
            raise ConfigError(
                f"a mirror of a bucket behind {api!r} is written there, and this file has no hub: "
                "open it with leaf=pelton.Leaf('nats://HOST:7422')"
            )
        async with self._opening_origin:
            if api not in self._origins:
                self._origins[api] = await self._domains(None, _ORIGIN_S, api)
            return self._origins[api]

    async def close(self) -> None:
        """Finish what is in progress and close the store; held locks are lost. Idempotent."""
        self.backend.check_loop()
        try:
            if "_lock_manager" in vars(self):
                await self._lock_manager.close()
            async with self._opening_origin:
                for origin in self._origins.values():
                    await origin.close()
        finally:
            try:
                if self._companion is not None:
                    await self._companion.close()
            finally:
                await super().close()

    async def feed(
        self, stream: str, to: Jet, *, name: str = "", filters: Sequence[str] = (), until_empty: bool = False
    ) -> int:
        """Copy the messages of a stream to another store or cluster, in order, each once, until cancelled.

        They keep their subjects; the stream of ``to`` that takes those stores them. The position is kept in this
        store, as the durable consumer ``feed_<name>`` (default: the stream's name): started again, it resumes
        there. While ``to`` is away, or full, it waits, with at most 2,000 messages in memory. ``filters`` select
        subjects. With ``until_empty`` it ends when nothing is left. Returns the number of messages copied.

        One process at a time: another that starts takes over, and this one ends with AckRejectedError. Raises
        ApiError for messages that ``to`` never takes: no stream for a subject, a message too large.
        """
        from pelton.sourcing.forwarder import Forwarder

        check_name("feed", name or stream)
        check_instance(f"feed {name or stream!r}", "to", to, Jet, "give an open store or cluster")
        given = items_of(f"feed {name or stream!r}", "filters", filters, "subject filters")
        carrier = Forwarder(self.backend, to.backend, stream, name or stream, self.runtime)
        return await carrier.run(given, until_empty=until_empty)

    async def rekey(self, key: Key) -> None:
        """Encrypt an encrypted store with another key, now.

        Other processes that have the store open get StoreKeyError from their next operation and must open it again with
        the new key; nothing acknowledged is lost, and a kill or power loss leaves the old key or the new one.
        Blocks this process until it is done. Raises StoreSettingsError for a plain store (:func:`pelton.rekey`
        encrypts one), StoreBusyError, ConfigError.
        """
        await self.backend.to_embedded("rekey").rekey(key)

    async def backup(
        self,
        path: str | os.PathLike[str],
        *,
        streams: Sequence[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Copy the store, as of now, to the new file ``path``, which is a store itself; reads and writes continue.

        With ``streams`` only those, with their consumers. The copy has the store's key, and gets its name once it is
        complete and on disk. ``progress`` is called with the amounts done and total. Raises StoreSettingsError if the
        file exists, StreamNotFoundError, StoreFullError, ConfigError for a path that is no file.

        On a cluster ``path`` becomes a folder with the servers' snapshot of each stream, one after another, in the
        layout of the ``nats`` command (not tried with the command itself).
        """
        check_callback("backup", "progress", progress)
        chosen = names_of_streams("backup", streams)
        await self.backend.backups().backup(path_of("backup", path), chosen, progress)

    async def restore(
        self,
        path: str | os.PathLike[str],
        *,
        streams: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        key: Key | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[str]:
        """Copy streams of the backup at ``path``, with their consumers, into this store; return their names here.

        All of them, or ``streams``. The backup is verified first; ``key`` is the backup's, if it is encrypted. All is
        copied in one transaction, which other writers wait for. ``names`` gives streams new names (old to new): such a
        stream takes that name as its only subject, so that it can exist beside its original; give it others with
        update_stream. ``progress`` is called with the numbers of rows done and total.

        Raises StoreError if the backup is damaged, ApiError 10130 if a name is taken, 10065 if subjects are,
        StreamNotFoundError for a stream that the backup lacks, ConfigError. :func:`pelton.restore` creates a new store.
        """
        check_callback("restore", "progress", progress)
        chosen, renamed = names_of_streams("restore", streams), texts_of("restore", "names", names)
        return await self.backend.backups().restore(path_of("restore", path), chosen, renamed, key, progress)

    def transaction(self, *, timeout: float | timedelta = 1.0) -> Transaction:
        """Return a transaction over this store: ``async with jet.transaction() as tx``.

        Publishes, acks, jobs, bucket keys (``tx.bucket``) and your own SQL rows (``tx.sql``) take effect together and
        durably when the block ends, or not at all when it raises. From its first operation it holds the store's writer,
        for at most ``timeout`` seconds: then it is rolled back (TransactionTimeoutError). Nested in the block of
        another transaction of the same task it is a savepoint. Raises ConfigError, also on a cluster; StoreBusyError
        when it cannot acquire the writer.
        """
        from pelton.queue import Transaction

        return Transaction(self.backend, timeout)

    def read(self, *, timeout: float | timedelta = 60.0) -> SqlReads:
        """Return reads with SQL: ``async with jet.read() as view: rows = await view.sql("SELECT ...")``.

        All statements of the block see the store as it was when the block began, your own tables and Pelton's
        (``docs/internals/file-format.md``). They run on a thread, and no publisher waits for them. After ``timeout``
        seconds the block is ended (SnapshotTimeoutError): the store's log grows while a snapshot is held.
        ``memory:`` is copied for the block. Raises ConfigError, also on a cluster.
        """
        return SqlReads(self.backend, timeout)
