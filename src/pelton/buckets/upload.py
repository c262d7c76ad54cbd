"""Puts an object atomically: its content, cut into chunks and digested, then its metadata.

The content may be bytes, files, iterators and streams. Blocking work (files, plain iterators, digests) runs on a
thread, so the next batch is read while the last one is stored. At most one batch is held here.

Chunks are stored under a unique subject (a fresh ``nuid``), a batch at a time, while the next batch is read. The
description comes last and names that subject: until then readers see the old object, from then on the new one, and no
mix. If the put fails before that, it removes the chunks; if its process dies, they stay as orphans (:mod:`chunks`).

Invariants:
- An object is described only if all its chunks exist, and on the condition that its last chunk still is the last of
  its subject: if a cleanup took the chunks for a dead process's, the put fails.
- An object of one batch is stored in one transaction of an embedded store, with its description.
- Two puts of one name: the later description wins. Both remove orphaned chunks afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from inspect import iscoroutinefunction
from itertools import pairwise
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeVar

import msgspec

from pelton.api import (
    ConfigError,
    ObjectChangedError,
    ObjectDamagedError,
    PeltonError,
    PubAck,
    WrongLastSequenceError,
    headers,
)
from pelton.buckets.object_info import (
    ROLLED_UP,
    ObjectInfo,
    Records,
    chunk_subject,
    digest_text,
    encode_info,
    meta_subject,
)
from pelton.jet import AnyMessage
from pelton.runtime import until_ended

BATCH_BYTES: Final = 2 * 1024 * 1024
# Up to this size, digesting is faster than waking a thread.
_INLINE_BYTES: Final = 256 * 1024

Piece = bytes | bytearray | memoryview


class AsyncReadable(Protocol):
    """A source that is read with ``await``, such as an ``asyncio.StreamReader``."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return at most ``n`` bytes; empty at the end."""


Content = Piece | os.PathLike[str] | BinaryIO | Iterable[Piece] | AsyncIterable[Piece] | AsyncReadable
"""Content that can be put: bytes, a path, an open binary file, pieces of any size, or a stream of them."""


class Batch(NamedTuple):
    """Chunks that are stored together. ``is_last``: nothing is known to follow them."""

    chunks: list[bytes]
    is_last: bool


class Chunker:
    """Cuts pieces of any size into chunks of ``size`` bytes, and digests them as they are taken."""

    chunks: int
    bytes: int

    def __init__(self, size: int) -> None:
        self._size = size
        self._limit = max(1, BATCH_BYTES // size)
        self._ready: deque[bytes] = deque()
        self._rest = bytearray()
        self._ended = False
        self.digest: hashlib._Hash = hashlib.sha256()
        self.chunks = self.bytes = 0

    @property
    def has_batch(self) -> bool:
        """Whether a full batch, or the last one, can be taken."""
        return self._ended or len(self._ready) >= self._limit

    def feed(self, piece: Any) -> None:
        """Add a piece. Raises ConfigError if it is not bytes."""
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise ConfigError(f"an object is made of bytes, and its source gave {type(piece).__name__}")
        if isinstance(piece, memoryview):
            piece = piece.cast("B")
        size, rest = self._size, self._rest
        if not rest and len(piece) == size:
            self._ready.append(bytes(piece))
            return
        rest += piece
        whole = len(rest) // size * size
        if whole:
            with memoryview(rest) as view:
                self._ready.extend(bytes(view[start : start + size]) for start in range(0, whole, size))
            del rest[:whole]

    def end(self) -> None:
        """Note that nothing follows."""
        self._ended = True
        if self._rest:
            self._ready.append(bytes(self._rest))
            self._rest.clear()

    def take(self) -> Batch:
        """Return the next chunks, digested."""
        chunks = [self._ready.popleft() for _ in range(min(self._limit, len(self._ready)))]
        for chunk in chunks:
            self.digest.update(chunk)
            self.bytes += len(chunk)
        self.chunks += len(chunks)
        return Batch(chunks, self._ended and not self._ready)


class ChunkSource(Protocol):
    """Batches of one object, read one after another."""

    chunker: Chunker

    async def read(self) -> Batch:
        """Return the next batch; empty only as the last one."""

    async def close(self) -> None:
        """Close what was opened."""


def source_of(content: Content, size: int) -> ChunkSource:
    """Return the source of an object's chunks. Raises ConfigError for content that cannot be put, OSError."""
    if isinstance(content, bytes | bytearray | memoryview):
        view = memoryview(content).cast("B")
        pieces = (view[start : start + size] for start in range(0, len(view), size))
        return _Blocking(pieces, size, inline=len(view) <= _INLINE_BYTES)
    if isinstance(content, str):
        raise ConfigError("text could be a path or the object itself: give pathlib.Path(text) or text.encode()")
    if isinstance(content, os.PathLike):
        file = open(content, "rb")  # noqa: SIM115  # a moment; closed with the source
        return _Blocking(_blocks(file, size), size, close=file.close)
    reading = getattr(content, "read", None)
    if reading is not None:
        awaited = iscoroutinefunction(reading)
        return _Awaited(_awaited_blocks(reading, size), size) if awaited else _Blocking(_blocks(content, size), size)
    if isinstance(content, AsyncIterable):
        return _Awaited(aiter(content), size)
    if isinstance(content, Iterable):
        return _Blocking(iter(content), size)
    raise ConfigError(f"{type(content).__name__} cannot be put: give bytes, a path, a binary file or an iterator")


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


async def _awaited_blocks(read: Any, size: int) -> AsyncGenerator[bytes, None]:
    while piece := await read(size):
        yield piece


class _Blocking:
    """Pieces from a plain iterator, taken on a thread unless it is ``inline``."""

    def __init__(
        self, pieces: Iterator[Any], size: int, *, inline: bool = False, close: Callable[[], None] | None = None
    ) -> None:
        self.chunker = Chunker(size)
        self._pieces = pieces
        self._inline = inline
        self._close = close

    async def read(self) -> Batch:
        return self._read() if self._inline else await asyncio.to_thread(self._read)

    def _read(self) -> Batch:
        chunker = self.chunker
        while not chunker.has_batch:
            try:
                piece = next(self._pieces)
            except StopIteration:
                chunker.end()
                break
            chunker.feed(piece)
        return chunker.take()

    async def close(self) -> None:
        if self._close is not None:
            await asyncio.to_thread(self._close)


class _Awaited:
    """Pieces from an async iterator; they are digested on a thread."""

    def __init__(self, pieces: AsyncIterator[Any], size: int) -> None:
        self.chunker = Chunker(size)
        self._pieces = pieces

    async def read(self) -> Batch:
        chunker = self.chunker
        while not chunker.has_batch:
            try:
                piece = await anext(self._pieces)
            except StopAsyncIteration:
                chunker.end()
                break
            chunker.feed(piece)
        return await asyncio.to_thread(chunker.take)

    async def close(self) -> None:
        if isinstance(self._pieces, AsyncGenerator):
            with suppress(RuntimeError):  # a cancelled step may still be running
                await self._pieces.aclose()


T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Called with the bytes done and the total; 0 if the total is unknown."""
_EXPECTED: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE
_EXPECTED_OF: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT


class Upload:
    """The upload of one object; ``total`` bytes, 0 if unknown."""

    def __init__(
        self, records: Records, info: ObjectInfo, source: ChunkSource, *, total: int, progress: Progress | None
    ) -> None:
        self._records = records
        self._info = info
        self._source = source
        self._total = total
        self._progress = progress
        self._subject = chunk_subject(records.bucket, info.nuid)
        self._last_seq = 0
        self._done = 0
        self._is_described = False
        self._held = Batch([], True)
        self._storing: list[asyncio.Task[Any]] = []
        self._task_name = f"pelton puts {info.name!r}"

    async def run(self) -> ObjectInfo:
        """Store the object; on failure its chunks are removed."""
        try:
            await self._store_all()
            return await self._to_its_end(self._finish())
        except BaseException:
            await self._to_its_end(self._undo())
            raise
        finally:
            await self._source.close()

    async def _store_all(self) -> None:
        """Store all batches except the last, which is known when nothing follows."""
        self._held = await self._source.read()
        while not self._held.is_last:
            following = await self._source.read()
            if not following.chunks:
                break
            while len(self._storing) >= self._records.puts_in_flight:
                await self._await_oldest()
            work = _try(self._store(self._held.chunks))
            self._storing.append(self._records.jet.runtime.spawn(work, self._task_name))
            self._held = following
        while self._storing:
            await self._await_oldest()

    async def _await_oldest(self) -> None:
        await asyncio.wait(self._storing[:1])
        error = self._storing.pop(0).result()
        if isinstance(error, Exception):
            raise error

    async def _undo(self) -> None:
        # Messages in flight must have arrived before they can be removed.
        if self._storing:
            await asyncio.wait(self._storing)
        if self._is_described:
            return
        # What made the put fail may make this fail too; then the chunks are left for a cleanup.
        with suppress(PeltonError):
            # The answer may have been lost, but not the description.
            latest = await self._latest()
            if latest is None or latest.nuid != self._info.nuid:
                await self._records.purge_chunks(self._info.nuid)

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish the work, however often the caller is cancelled during it: what follows relies on its end."""
        task = self._records.jet.runtime.spawn(_try(work), self._task_name)
        try:
            outcome = await asyncio.shield(task)
        finally:
            await until_ended(task)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _store(self, chunks: Sequence[bytes]) -> None:
        if not chunks:
            return
        messages: list[AnyMessage] = [(self._subject, chunk) for chunk in chunks]
        acks = await self._records.jet.publish_batch(messages)
        while any(later.seq <= earlier.seq for earlier, later in pairwise(acks)):
            # A connection was lost, and retried messages were stored after later ones.
            for ack in acks:
                await self._records.stream.delete_message(ack.seq)
            acks = await self._records.jet.publish_batch(messages)
        self._stored_up_to(acks[-1], chunks)

    def _stored_up_to(self, ack: PubAck, chunks: Sequence[bytes]) -> None:
        self._last_seq = ack.seq
        self._done += sum(map(len, chunks))
        if self._progress is not None:
            self._progress(self._done, self._total)

    async def _finish(self) -> ObjectInfo:
        """Store the last chunks and the description, and remove what it replaces."""
        records, chunker, chunks = self._records, self._source.chunker, self._held.chunks
        info = msgspec.structs.replace(
            self._info, size=chunker.bytes, chunks=chunker.chunks, digest=digest_text(chunker.digest)
        )
        is_long = self._last_seq > 0
        if is_long or not records.ends_together:
            await self._store(chunks)
            chunks = []
        if is_long:
            await self._check_all_there(info)
        old = await self._latest()
        info = await self._store_description(info, chunks)
        if old is not None and not old.deleted and old.link is None:
            await records.purge_chunks(old.nuid)
        latest = await self._latest()
        if latest is not None and latest.revision > info.revision and latest.nuid != info.nuid:
            await records.purge_chunks(info.nuid)
        return info

    async def _check_all_there(self, info: ObjectInfo) -> None:
        state = (await self._records.stream.info(subjects_filter=self._subject)).state
        if sum((state.subjects or {}).values()) != info.chunks:
            raise self._cleaned_away()

    async def _store_description(self, info: ObjectInfo, chunks: Sequence[bytes]) -> ObjectInfo:
        """Store the description, with chunks before it, on the condition that nothing was stored in between."""
        asked = dict(ROLLED_UP)
        if self._last_seq:
            asked |= {_EXPECTED: str(self._last_seq), _EXPECTED_OF: self._subject}
        messages: list[AnyMessage] = [(self._subject, chunk) for chunk in chunks]
        messages.append((meta_subject(info.bucket, info.name), encode_info(info), asked))
        try:
            acks = await self._records.jet.publish_batch(messages)
        except WrongLastSequenceError:
            raise self._cleaned_away() from None
        self._is_described = True
        if chunks:
            self._stored_up_to(acks[-2], chunks)
        return self._records.with_revision(info, acks[-1])

    def _cleaned_away(self) -> ObjectChangedError:
        text = "its chunks were cleaned up while it was put: put it again, or let cleanup spare them for longer"
        return ObjectChangedError(self._info.bucket, self._info.name, text)

    async def _latest(self) -> ObjectInfo | None:
        try:
            return await self._records.find(self._info.name, latest=True)
        except ObjectDamagedError:
            return None


async def _try(work: Coroutine[Any, Any, T]) -> T | Exception:
    try:
        return await work
    except Exception as error:  # whatever it is: the awaited put raises it
        return error
