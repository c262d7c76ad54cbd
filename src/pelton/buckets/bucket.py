"""A key-value bucket in the hands of its users.

The story. A bucket is a stream that keeps the last ``history`` messages of each subject; a key is a subject, a value a
message, its revision the message's sequence. To delete a key is to write a marker; to purge it, one that takes the
older revisions with it. Every condition is one that the stream checks in the transaction of the write, so buckets need
no locks: who expects a revision that is no longer the last writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from pelton.api import (
    BucketKeyExistsError,
    BucketKeyNotFoundError,
    ConfigError,
    MessageNotFoundError,
    StoredMessage,
    WrongLastSequenceError,
)
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds
from pelton.buckets.entry import OPERATION_HEADER, BucketStatus, Entry, operation_of, stored_block
from pelton.buckets.naming import check_filter, check_key, key_prefix
from pelton.buckets.watching import watched
from pelton.jet import Stream, Streams

T = TypeVar("T")
_EVERYTHING: Final = ">"
_HALF_AN_HOUR_S: Final = 1800.0


class Bucket(Generic[T]):
    """A bucket of keys whose values are bytes, or of the ``type`` it was opened with (as JSON)."""

    def __init__(self, jet: Streams, stream: Stream, name: str, kind: type[T] | None) -> None:
        self.name = name
        self._jet = jet
        self._stream = stream
        self._encode: Any = bytes if kind is None else msgspec.json.encode
        self._decode: Any = _same if kind is None else msgspec.json.Decoder(kind).decode
        self._prefix = key_prefix(stream.config)

    # --- reading

    async def get(self, key: str, *, revision: int = 0) -> Entry[T]:
        """Return what a key holds now, or held at a revision.

        Raises BucketKeyNotFoundError for a key that was never written, or is deleted; ConfigError.
        """
        entry = await self._read(check_key(key), revision)
        if entry is None or entry.operation != "put":
            raise BucketKeyNotFoundError(self.name, key, revision)
        return entry

    async def _read(self, key: str, revision: int = 0) -> Entry[T] | None:
        subject = self._prefix + key
        try:
            if not revision:
                return self._entry(await self._stream.get_last_message(subject))
            stored = await self._stream.get_message(revision)
        except MessageNotFoundError:
            return None
        return self._entry(stored) if stored.subject == subject else None

    def _entry(self, stored: StoredMessage) -> Entry[T]:
        operation = operation_of(stored_block(stored))
        return Entry(
            bucket=self.name,
            key=stored.subject.removeprefix(self._prefix),
            value=self._decode(stored.data) if operation == "put" else None,
            revision=stored.seq,
            time_ns=stored.time_ns,
            operation=operation,
        )

    # --- writing

    async def put(self, key: str, value: T) -> int:
        """Write a key, whatever it holds, and return the revision. Raises ConfigError, LimitError."""
        return (await self._jet.publish(self._prefix + check_key(key), self._encode(value))).seq

    async def create(self, key: str, value: T, *, ttl: Seconds | None = None) -> int:
        """Write a key that is not there, or is deleted, and return the revision.

        It is gone after ``ttl`` (whole seconds; the bucket must have ``limit_marker_ttl``). Raises
        BucketKeyExistsError.
        """
        data = self._encode(value)
        try:
            return await self._write(check_key(key), data, 0, ttl)
        except WrongLastSequenceError:
            last = await self._read(key)
        if last is None or last.operation == "put":
            raise BucketKeyExistsError(self.name, key)
        try:
            return await self._write(key, data, last.revision, ttl)
        except WrongLastSequenceError:
            raise BucketKeyExistsError(self.name, key) from None

    async def update(self, key: str, value: T, revision: int, *, ttl: Seconds | None = None) -> int:
        """Write a key if ``revision`` is still its last, and return the new one.

        Revision 0: if it was never written. Raises WrongLastSequenceError, whose ``seq`` is the last.
        """
        return await self._write(check_key(key), self._encode(value), revision, ttl)

    async def _write(self, key: str, data: bytes, revision: int, ttl: Seconds | None) -> int:
        subject = self._prefix + key
        return (await self._jet.publish(subject, data, expected_last_subject_seq=revision, ttl=ttl)).seq

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete a key, if ``revision`` is still its last where one is given; older revisions stay.

        Raises WrongLastSequenceError.
        """
        await self._mark(key, {OPERATION_HEADER: "DEL"}, revision, None)

    async def purge(self, key: str, *, revision: int | None = None, ttl: Seconds | None = None) -> None:
        """Delete a key and its older revisions; what tells of it is itself gone after ``ttl``.

        Raises WrongLastSequenceError.
        """
        await self._mark(key, {OPERATION_HEADER: "PURGE", "Nats-Rollup": "sub"}, revision, ttl)

    async def _mark(self, key: str, marks: dict[str, str], revision: int | None, ttl: Seconds | None) -> None:
        subject = self._prefix + check_key(key)
        await self._jet.publish(subject, headers=marks, expected_last_subject_seq=revision, ttl=ttl)

    # --- many keys

    async def watch(
        self,
        *keys: str,
        include_history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        resume_from_revision: int = 0,
    ) -> AsyncGenerator[Entry[T] | None, None]:
        """Follow what keys hold, for ever: first what they hold now, then None, then every change as it comes.

        ``keys`` are keys or filters (``*``, ``>``), none for all. ``include_history`` begins with all revisions
        that are kept, ``updates_only`` with nothing, ``resume_from_revision`` with that one. ``meta_only`` leaves
        values out.
        Raises ConfigError.
        """
        if sum((include_history, updates_only, resume_from_revision > 0)) > 1:
            raise ConfigError("include_history, updates_only and resume_from_revision: one of them at most")
        fields: dict[str, Any] = {"deliver_policy": "last_per_subject", "headers_only": meta_only}
        if include_history:
            fields["deliver_policy"] = "all"
        elif updates_only:
            fields["deliver_policy"] = "new"
        elif resume_from_revision:
            fields |= {"deliver_policy": "by_start_sequence", "opt_start_seq": resume_from_revision}
        entries = self._watched(keys or (_EVERYTHING,), fields, meta_only=meta_only)
        try:
            async for entry in entries:
                if entry is None or entry.operation == "put" or not ignore_deletes:
                    yield entry
        finally:
            await entries.aclose()

    def _watched(
        self, keys: tuple[str, ...], fields: dict[str, Any], *, meta_only: bool
    ) -> AsyncGenerator[Entry[T] | None, None]:
        filters = [self._prefix + check_filter(key) for key in keys]
        fields |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": filters}
        return watched(self._decoded, self._jet, self._stream.name, fields, meta_only=meta_only)

    async def keys(self, *filters: str) -> AsyncIterator[str]:
        """Iterate over the keys that are there, of some filters or all."""
        entries = self.watch(*filters, ignore_deletes=True, meta_only=True)
        try:
            async for entry in entries:
                if entry is None:
                    return
                yield entry.key
        finally:
            await entries.aclose()

    async def history(self, key: str) -> list[Entry[T]]:
        """Return the revisions of a key that are kept, the oldest first. Raises BucketKeyNotFoundError."""
        found: list[Entry[T]] = []
        entries = self.watch(check_key(key), include_history=True)
        try:
            async for entry in entries:
                if entry is None:
                    break
                found.append(entry)
        finally:
            await entries.aclose()
        if not found:
            raise BucketKeyNotFoundError(self.name, key, 0)
        return found

    async def purge_deletes(self, *, older_than: Seconds = _HALF_AN_HOUR_S) -> None:
        """Remove what deleted keys left: markers and older revisions; of those deleted within ``older_than`` the marker

        stays, so that watchers still learn of it.
        """
        limit = self._jet.runtime.clock.now() - seconds_to_ns("older_than", older_than)
        gone: list[Entry[T]] = []
        entries = self.watch(meta_only=True)
        try:
            async for entry in entries:
                if entry is None:
                    break
                if entry.operation != "put":
                    gone.append(entry)
        finally:
            await entries.aclose()
        for entry in gone:
            await self._stream.purge(filter=self._prefix + entry.key, keep=1 if entry.time_ns > limit else 0)

    async def status(self) -> BucketStatus:
        """Return settings and size."""
        info = await self._stream.info()
        config = info.config
        return BucketStatus(
            bucket=self.name,
            values=info.state.messages,
            bytes=info.state.bytes,
            history=max(config.max_msgs_per_subject, 1),
            ttl=config.max_age / 1e9,
            limit_marker_ttl=config.subject_delete_marker_ttl / 1e9,
            is_compressed=config.compression != "none",
            storage=config.storage,
            replicas=config.num_replicas,
        )

    def _decoded(self, subject: str, seq: int, time_ns: int, block: bytes | None, data: bytes | None) -> Entry[T]:
        """Return the entry that a delivered message is; ``data`` None where values were left out."""
        operation = operation_of(block)
        return Entry(
            bucket=self.name,
            key=subject.removeprefix(self._prefix),
            value=None if data is None or operation != "put" else self._decode(data),
            revision=seq,
            time_ns=time_ns,
            operation=operation,
        )


def _same(data: bytes) -> bytes:
    return data
