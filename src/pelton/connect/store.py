"""An open store or cluster, with all that can be done with it: one place, so that a user finds it with a dot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, Unpack, overload

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
from pelton.jet import Streams
from pelton.locks import Election, ElectionOptions, Lock, LockManager, Semaphore, lock_spec
from pelton.queue import Queue, Transaction
from pelton.sourcing import Forwarder

T = TypeVar("T")


class Jet(Streams):
    """An open store. Made by :func:`open`; close it, or use it as ``async with``."""

    async def queue(
        self,
        name: str,
        *,
        exclusive: bool | None = None,
        lease: float | timedelta | None = None,
        history_max_age: float | timedelta | None = None,
        num_replicas: int | None = None,
    ) -> Queue:
        """Open a work queue, making it if it is new.

        ``exclusive`` (default False) allows one job a key in flight, in order. ``lease`` (default 30 s) is how
        long a worker that died keeps its jobs; healthy workers renew theirs. Both are fixed when the queue is
        made: all its workers have to agree on them, and another value is refused.
        ``history_max_age`` (default 7 days; 0: for ever) bounds the history, ``num_replicas`` (default 1) says how many
        servers of a cluster keep the queue. Another value than before takes effect at once. None: as it is.
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
        check_known(f"election {election!r}", options, ElectionOptions.__annotations__)
        return Election(self, election, **options)

    @cached_property
    def _lock_manager(self) -> LockManager:
        return LockManager(self)

    def lock(self, name: str, *, ttl: Seconds = 30) -> Lock:
        """Return the lock of this name, one among all processes: ``async with jet.lock("car1") as held``.

        It is renewed in the background while it is held; if its holder dies, others have it after ``ttl`` (whole
        seconds, at least 1). Raises ConfigError.
        """
        return Lock(self._lock_manager, lock_spec("lock", name, 1, ttl))

    def semaphore(self, name: str, *, slots: int, ttl: Seconds = 30) -> Semaphore:
        """Return the semaphore of this name, which up to ``slots`` callers hold at once; else as :meth:`lock`.

        All its users have to agree on ``slots`` (at most 1,000). Raises ConfigError.
        """
        return Semaphore(self._lock_manager, lock_spec("semaphore", name, slots, ttl))

    async def clone(self) -> Jet:
        """Open the same store or cluster again, for the event loop that calls this; close it as well.

        A jet, and all that was made from it, belongs to the event loop it was opened on (WrongLoopError on any other):
        this is what other threads with event loops of their own use, also of a ``memory:`` store. Raises
        StoreClosedError, StoreKeyError, StoreError.
        """
        backend = self.backend.clone()
        # A cluster's belongs to the event loop that uses it first.
        backend.check_loop()
        return Jet(backend, self.runtime)

    async def close(self) -> None:
        """Finish what is under way and let go of the store; locks that are held are lost. Idempotent."""
        self.backend.check_loop()
        try:
            if "_lock_manager" in vars(self):
                await self._lock_manager.close()
        finally:
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
        check_instance(f"feed {name or stream!r}", "to", to, Jet, "give an open store or cluster")
        given = items_of(f"feed {name or stream!r}", "filters", filters, "subject filters")
        carrier = Forwarder(self.backend, to.backend, stream, name or stream, self.runtime)
        return await carrier.run(given, until_empty=until_empty)

    async def rekey(self, key: Key) -> None:
        """Encrypt an encrypted store with another key, now.

        Other processes that have the store open get StoreKeyError from their next operation and open it again with
        the new key; nothing that was acknowledged is lost, and a kill or power loss leaves the old key or the new one.
        This process does nothing else meanwhile. Raises StoreSettingsError for a plain store (:func:`pelton.rekey`
        encrypts one), StoreBusyError, ConfigError.
        """
        await self.backend.embedded("rekey").rekey(key)

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
        ``nats`` command keeps it (not tried with the command itself).
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
        """Copy the streams of a backup, or some of them, with their consumers into this store; return their names here.

        The backup is verified first; ``key`` is its own, if it is encrypted. It happens in one transaction: what others
        write waits meanwhile. ``names`` gives streams new names (old to new): such a stream takes that name as its only
        subject, so that it may lie beside the one it was copied of; give it others with update_stream. ``progress``
        is called with how many rows of how many are done.

        Raises StoreError where the backup is damaged, ApiError 10130 where a name is taken, 10065 where subjects are,
        StreamNotFoundError for a stream that the backup has not, ConfigError. :func:`pelton.restore` makes a new store.
        """
        check_callback("restore", "progress", progress)
        chosen, renamed = names_of_streams("restore", streams), texts_of("restore", "names", names)
        return await self.backend.backups().restore(path_of("restore", path), chosen, renamed, key, progress)

    def transaction(self, *, timeout: float | timedelta = 1.0) -> Transaction:
        """Return a transaction over this store: ``async with jet.transaction() as tx``.

        Publishes, acks, jobs, keys of buckets (``tx.bucket``) and your own SQL rows (``tx.sql``) take effect together
        when the block is left, durable, or not at all when it raises. From its first operation it holds the store's
        writer, for at most ``timeout``: then it is rolled back (TransactionTimeoutError). Within another
        one's block of the same task it is a savepoint.
        Raises ConfigError, also on a cluster; StoreBusyError when the writer cannot be had.
        """
        return Transaction(self.backend, timeout)
