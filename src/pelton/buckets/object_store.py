"""Object stores: created, opened, listed and removed, and the handle of one.

An object store is a stream (ADR-20). An object is a description, the last message of a subject made from its name, and
chunks, the messages of a subject of its own. Putting it: :mod:`upload`; getting it: :mod:`chunks`.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, TypedDict, Unpack

import msgspec

from pelton.api import (
    BucketNotFoundError,
    ConfigError,
    ObjectExistsError,
    ObjectLinkError,
    Placement,
    StreamConfig,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from pelton.api.arguments import check_callback, check_instance, check_known, check_text, check_whole, texts_of
from pelton.api.build import change_fields, seconds_to_ns
from pelton.api.config import Storage
from pelton.api.headers import as_lists, encode
from pelton.api.times import Seconds, duration_of
from pelton.buckets.bucket_settings import check_bucket
from pelton.buckets.chunks import ChunkReader, Download, read_range, remove_remains, watch_infos
from pelton.buckets.object_info import (
    STREAM_PREFIX,
    ObjectInfo,
    ObjectLink,
    ObjectStatus,
    Records,
    all_metas,
    check_name,
    chunk_subject,
    meta_subject,
    records_of,
    stream_of,
)
from pelton.buckets.upload import Content, Progress, Upload, source_of
from pelton.jet import HeaderValues, Stream, Streams
from pelton.runtime import at_home

# --- files that objects are written to: under another name until they are complete

Target = str | os.PathLike[str] | BinaryIO
"""Where an object can be written: a path, or an open binary file."""


class ObjectFile:
    """A file being written; its methods block. ``unique`` distinguishes files that are written at the same time."""

    def __init__(self, target: Target, unique: str) -> None:
        """Open it. Raises ConfigError for a target that cannot be written to, OSError."""
        self._path: Path | None = None
        if isinstance(target, str | os.PathLike):
            self._path = _file(os.fspath(target))
            self._part = self._path.with_name(f".{self._path.name}.{unique}.part")
            self._file: BinaryIO = self._part.open("xb")
        elif hasattr(target, "write"):
            self._file = target
        else:
            raise ConfigError(f"{type(target).__name__} is no file: give a path, or a file opened for writing bytes")

    def write(self, chunks: list[bytes]) -> None:
        """Append chunks; an unbuffered file may take only a part of one at a time."""
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]

    def keep(self) -> None:
        """Give the complete file its name, once it is on disk."""
        if self._path is None:
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._part.replace(self._path)

    def drop(self) -> None:
        """Remove the file of the other name; what was written to an open file stays."""
        if self._path is not None:
            self._file.close()
            with suppress(FileNotFoundError):
                self._part.unlink()


def _file(target: str | bytes) -> Path:
    """Return the path of a file to write; an OSError of the file system is left to the writing."""
    path = Path(os.fsdecode(target))
    if "\0" in str(path) or not _is_encodable(str(path)):
        raise ConfigError(f"{target!r} names no file: give the path of the file to write the object to")
    # "." has no name, ".." cannot be replaced.
    if path.name in ("", "..") or path.is_dir():
        raise ConfigError(f"{target!r} is a folder: give the path of the file to write the object to")
    return path


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


CHUNK_SIZE: Final = 128 * 1024
_LARGEST_CHUNK: Final = 64 * 1024 * 1024
_LINKS: Final = 8
_AN_HOUR_S: Final = 3600.0


class ObjectStore:
    """A store of objects: byte strings of any size under names."""

    def __init__(self, jet: Streams, stream: Stream, name: str) -> None:
        self.name = name
        self._jet = jet
        self._check_loop = jet.backend.check_loop
        self._records = records_of(jet, stream, name)

    def _about(self, name: object) -> str:
        return f"object store {self.name!r}, object {name!r}"

    # --- putting

    async def put(
        self,
        name: str,
        content: Content,
        *,
        description: str = "",
        headers: HeaderValues | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int = CHUNK_SIZE,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Store an object under a name, replacing an existing one; returns when it is durable.

        ``content`` is bytes, a path, a binary file, an iterator or async iterator of bytes, or a reader to
        ``await``; whatever its size, only some batches of 2 MiB are in memory. Readers see the old object until the new
        one is complete. ``description``, ``headers`` and ``metadata`` are stored with it; it is split into chunks of
        ``chunk_size`` bytes. ``progress`` is called with the bytes done and the total (0: unknown).

        Raises ConfigError, LimitError if the store is full, ObjectChangedError if :meth:`cleanup` took this put for
        dead, and what ``content`` raises.
        """
        about = self._about(name)
        check_whole(about, "chunk_size", chunk_size, 1)
        if chunk_size > _LARGEST_CHUNK:
            raise ConfigError(f"{about}: chunk_size is {chunk_size}: it can be 1 to {_LARGEST_CHUNK} bytes")
        check_text(about, "description", description)
        check_callback(about, "progress", progress)
        info = ObjectInfo(
            name=check_name(name),
            bucket=self.name,
            nuid=self._jet.runtime.ids.new(),
            description=description,
            headers=_header_lists(headers),
            metadata=texts_of(about, "metadata", metadata),
            max_chunk_size=chunk_size,
        )
        source = source_of(content, chunk_size)
        return await Upload(self._records, info, source, total=_size_of(content), progress=progress).run()

    # --- getting

    async def get(self, name: str, *, progress: Progress | None = None) -> bytes:
        """Return an object; for a link, its target. ``progress`` is called with the bytes done and the total.

        Raises ObjectNotFoundError; ObjectDamagedError if it is not what was put; ObjectChangedError if it was
        replaced or deleted during the read; ObjectLinkError for a link to a whole store.
        """
        check_callback(self._about(name), "progress", progress)
        records, info = await self._follow_links(name)
        # Full size from the start: it is not copied when it grows.
        content = BytesIO(bytes(info.size))
        await _drain(Download(records, info, content.writelines), info, progress)
        return content.getvalue()

    async def get_file(self, name: str, target: Target, *, progress: Progress | None = None) -> ObjectInfo:
        """Write an object to ``target``, a path or an open binary file; ``progress`` is as for :meth:`get`.

        The file gets its name only once it is complete and on disk; discard what was written to an open one if this
        raises. Raises what :meth:`get` raises, and OSError.
        """
        check_callback(self._about(name), "progress", progress)
        records, info = await self._follow_links(name)
        written = await asyncio.to_thread(ObjectFile, target, self._jet.runtime.ids.new())
        try:
            await _drain(Download(records, info, written.write), info, progress)
            await asyncio.to_thread(written.keep)
        except BaseException:
            written.drop()
            raise
        return info

    @at_home
    async def get_chunks(self, name: str) -> AsyncGenerator[bytes, None]:
        """Iterate over the chunks of an object; they are verified only after the last one.

        Raises what :meth:`get` raises.
        """
        records, info = await self._follow_links(name)
        async with aclosing(Download(records, info).batches()) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    yield chunk

    async def get_range(self, name: str | ObjectInfo, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object, or of a link's target, from ``start`` to ``end`` (exclusive; None: the end).

        Only the chunks with these bytes are read, so the object's digest is not verified; in a file, each chunk has a
        checksum of its own, which is. (It is read and verified as a whole if another client made chunks of various
        sizes, or if replicas hold other objects' chunks between its own.) With what :meth:`info` returned in place of a
        name, all ranges belong to that one object. As with a slice, there are fewer bytes where the object ends.

        Raises ConfigError, and what :meth:`get` raises: ObjectChangedError also for an object that is no more.
        """
        asked = name.name if isinstance(name, ObjectInfo) else name
        about = self._about(asked)
        check_whole(about, "start", start)
        if isinstance(name, ObjectInfo) and name.link is None:
            records, info = await self._records_of(name.bucket), name
        else:
            records, info = await self._follow_links(asked)
        if end is not None:
            check_whole(about, "end", end)
        end = info.size if end is None else min(end, info.size)
        part = await read_range(ChunkReader(records, info), start, end)
        if part is not None:
            return part
        content = BytesIO(bytes(info.size))
        await _drain(Download(records, info, content.writelines), info, None)
        return content.getvalue()[start:end]

    async def _follow_links(self, name: str) -> tuple[Records, ObjectInfo]:
        records, info = self._records, await self._records.get(name)
        for _ in range(_LINKS):
            if info.link is None:
                return records, info
            if not info.link.name:
                text = f"it links to all of {info.link.bucket!r}: open that with jet.objects({info.link.bucket!r})"
                raise ObjectLinkError(self.name, name, text)
            records = await self._records_of(info.link.bucket)
            info = await records.get(info.link.name)
        raise ObjectLinkError(self.name, name, f"it is a chain of more than {_LINKS} links")

    async def _records_of(self, bucket: str) -> Records:
        if bucket == self.name:
            return self._records
        try:
            return records_of(self._jet, await self._jet.stream(stream_of(bucket)), bucket)
        except StreamNotFoundError:
            raise BucketNotFoundError(bucket, "create_objects") from None

    # --- listing and watching

    async def info(self, name: str, *, show_deleted: bool = False) -> ObjectInfo:
        """Return the metadata of an object, or of a link itself; with ``show_deleted`` also of a deleted one.

        Raises ObjectNotFoundError, ObjectDamagedError.
        """
        if show_deleted and (described := await self._records.find(name)) is not None:
            return described
        return await self._records.get(name)

    @at_home
    async def list(self, *, show_deleted: bool = False) -> AsyncIterator[ObjectInfo]:
        """Iterate over the objects, the longest unchanged first; with ``show_deleted`` also over deleted ones."""
        async with aclosing(self.watch(ignore_deletes=not show_deleted)) as entries:
            async for entry in entries:
                if entry is None:
                    return
                yield entry

    @at_home
    async def watch(
        self, *, ignore_deletes: bool = False, updates_only: bool = False
    ) -> AsyncGenerator[ObjectInfo | None, None]:
        """Watch objects for ever: yields the existing ones, then None, then every change as it happens.

        ``updates_only`` starts with the changes; ``ignore_deletes`` omits deleted objects.
        """
        async with aclosing(watch_infos(self._records, updates_only=updates_only)) as entries:
            async for entry in entries:
                if entry is None or not entry.deleted or not ignore_deletes:
                    yield entry

    async def status(self) -> ObjectStatus:
        """Return settings and size."""
        info = await self._records.stream.info()
        config = info.config
        return ObjectStatus(
            bucket=self.name,
            description=config.description,
            size=info.state.bytes,
            ttl=config.max_age.seconds,
            max_bytes=config.max_bytes,
            storage=config.storage,
            replicas=config.num_replicas,
            sealed=config.sealed,
            is_compressed=config.compression != "none",
            metadata=dict(config.metadata or {}),
        )

    # --- changing

    async def delete(self, name: str) -> None:
        """Delete an object or a link; its metadata stays, marked as deleted.

        Raises ObjectNotFoundError.
        """
        while True:
            info = await self._records.get(name, latest=True)
            gone = msgspec.structs.replace(info, deleted=True, size=0, chunks=0, digest="")
            try:
                await self._records.write(gone, expected=info.revision)
            except WrongLastSequenceError:
                continue  # It was replaced in the meantime.
            if info.link is None:
                await self._records.purge_chunks(info.nuid)
            return

    async def update(
        self,
        name: str,
        *,
        new_name: str | None = None,
        description: str | None = None,
        headers: HeaderValues | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change the metadata of an object or a link, or its name; None keeps the current value.

        ``new_name`` renames it; ``description``, ``headers`` and ``metadata`` replace what it has.

        Raises ObjectNotFoundError, ObjectExistsError for a name that is taken, WrongLastSequenceError if another
        client changed it at the same time.
        """
        about = self._about(name)
        if description is not None:
            check_text(about, "description", description)
        old = await self._records.get(name, latest=True)
        new = msgspec.structs.replace(
            old,
            name=old.name if new_name is None else check_name(new_name),
            description=old.description if description is None else description,
            headers=old.headers if headers is None else _header_lists(headers),
            metadata=old.metadata if metadata is None else texts_of(about, "metadata", metadata),
        )
        if new.name == old.name:
            return await self._records.write(new, expected=old.revision)
        return await self._rename(old, new)

    async def _rename(self, old: ObjectInfo, new: ObjectInfo) -> ObjectInfo:
        records = self._records
        taken = await records.find(new.name, latest=True)
        if taken is not None and not taken.deleted:
            raise ObjectExistsError(self.name, new.name)
        try:
            gone = msgspec.structs.replace(old, deleted=True, size=0, chunks=0, digest="")
            written = await records.move(new, 0 if taken is None else taken.revision, gone)
        except WrongLastSequenceError:
            half = await records.find(new.name, latest=True)
            if half is not None and half.nuid == old.nuid:
                await records.stream.purge(filter=meta_subject(self.name, new.name))
            raise
        await records.stream.purge(filter=meta_subject(self.name, old.name))
        return written

    async def add_link(self, name: str, target: ObjectInfo) -> ObjectInfo:
        """Create a link to an object of this or another store; it may replace another link.

        Raises ObjectLinkError if the target is deleted or a link itself, ObjectExistsError if the name is an object's.
        """
        check_instance(self._about(name), "target", target, ObjectInfo, "give what info() or put() returned")
        if target.deleted:
            raise ObjectLinkError(self.name, name, f"{target.name!r} is deleted, so no link can be created to it")
        if target.link is not None:
            raise ObjectLinkError(self.name, name, f"{target.name!r} is a link itself: link to its target")
        return await self._write_link(name, ObjectLink(target.bucket, target.name))

    async def add_bucket_link(self, name: str, target: ObjectStore | str) -> ObjectInfo:
        """Create a link to a whole object store, ``target``; it may replace another link.

        Raises ObjectExistsError, ConfigError.
        """
        check_instance(self._about(name), "target", target, (ObjectStore, str), "give an object store, or its name")
        bucket = target if isinstance(target, str) else target.name
        return await self._write_link(name, ObjectLink(check_bucket(bucket)))

    async def _write_link(self, name: str, link: ObjectLink) -> ObjectInfo:
        there = await self._records.find(name, latest=True)
        if there is not None and there.link is None and not there.deleted:
            raise ObjectExistsError(self.name, name)
        info = ObjectInfo(name=name, bucket=self.name, nuid=self._jet.runtime.ids.new(), link=link)
        return await self._records.write(info, expected=0 if there is None else there.revision)

    async def seal(self) -> None:
        """Make the store read-only, for ever."""
        await self._jet.update_stream(self._records.stream.name, sealed=True)

    async def cleanup(self, *, older_than: Seconds = _AN_HOUR_S) -> int:
        """Remove the remains of puts whose process was killed, and return how many; safe while others put.

        A put is taken for dead if it has stored nothing for ``older_than`` seconds. A Pelton put that was alive fails
        with ObjectChangedError; puts of other clients don't notice, so choose a time longer than they may pause.
        """
        return await remove_remains(
            self._records, seconds_to_ns("older_than", older_than, f"object store {self.name!r}")
        )


def _header_lists(headers: HeaderValues | None) -> dict[str, builtins.list[str]]:
    """Return headers with a list of values each. Raises ConfigError for headers that are invalid or cannot be sent."""
    if not headers:
        return {}
    encode(headers)
    return {name: [*values] for name, values in as_lists(headers).items()}


def _size_of(content: Content) -> int:
    """Return how many bytes there are to put, 0 if unknown."""
    if isinstance(content, bytes | bytearray | memoryview):
        return memoryview(content).nbytes
    return os.stat(content).st_size if isinstance(content, os.PathLike) else 0


async def _drain(download: Download, info: ObjectInfo, progress: Progress | None) -> None:
    done = 0
    async with aclosing(download.batches()) as batches:
        async for chunks in batches:
            done += sum(map(len, chunks))
            if progress is not None:
                progress(done, info.size)


# --- creates, opens, lists and removes object stores

_SAME: Final = ("max_bytes", "storage", "description")


class ObjectSettings(TypedDict, total=False):
    """Settings of an object store; durations are seconds or ``timedelta``."""

    ttl: Seconds
    """How long an object is kept, in seconds."""
    max_bytes: int
    """The largest store, in bytes."""
    storage: Storage
    """In a `file` (default) or in `memory`, on servers."""
    replicas: int
    """How many servers of a cluster keep it (default 1)."""
    description: str
    """A text for people."""
    compression: bool
    """Whether chunks are compressed."""
    placement: Placement | Mapping[str, Any] | None
    """Where a cluster keeps it."""
    metadata: Mapping[str, str] | None
    """Texts for programs."""


async def open_objects(jet: Streams, name: str) -> ObjectStore:
    """Return an existing object store. Raises BucketNotFoundError, ConfigError."""
    try:
        stream = await jet.stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name, "create_objects") from None
    return ObjectStore(jet, stream, name)


async def create_objects(jet: Streams, name: str, **settings: Unpack[ObjectSettings]) -> ObjectStore:
    """Create an object store, or return the existing one if its settings are the same. Raises ConfigError, ApiError."""
    about = f"object store {name!r}"
    check_known(about, settings, ObjectSettings.__annotations__)
    config = StreamConfig(
        name=stream_of(name),
        subjects=(chunk_subject(name, ">"), all_metas(name)),
        discard="new",
        compression="s2" if settings.get("compression") else "none",
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    replicas = settings.get("replicas", 1)
    check_whole(about, "replicas", replicas)
    fields: dict[str, Any] = {"max_age": duration_of(f"{about}: ttl", settings.get("ttl", 0)), "num_replicas": replicas}
    fields |= {field: settings[field] for field in _SAME if field in settings}
    if settings.get("placement") is not None:
        fields["placement"] = settings["placement"]
    fields["metadata"] = texts_of(about, "metadata", settings.get("metadata"))
    return ObjectStore(jet, await jet.create_stream(change_fields(config, fields, about)), name)


async def delete_objects(jet: Streams, name: str) -> None:
    """Remove an object store with all its objects. Raises BucketNotFoundError."""
    try:
        await jet.delete_stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name, "create_objects") from None


async def objects_names(jet: Streams) -> list[str]:
    return [name.removeprefix(STREAM_PREFIX) for name in await jet.stream_names() if name.startswith(STREAM_PREFIX)]
