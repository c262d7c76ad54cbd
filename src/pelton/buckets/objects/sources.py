"""The content of an object: bytes, files, iterators and streams, cut into chunks and digested, a batch at a time.

Blocking work (files, plain iterators, digests) runs on a thread, so the next batch is read while the last one is
stored. At most one batch is held here.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from pelton.api import ConfigError

BATCH_BYTES: Final = 2 * 1024 * 1024
# Up to this size, digesting is faster than waking a thread.
_INLINE_BYTES: Final = 256 * 1024

Piece = bytes | bytearray | memoryview


class AsyncReadable(Protocol):
    """A source that is read with ``await``, such as an ``asyncio.StreamReader``."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return at most ``n`` bytes; empty at the end."""
        ...


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
        ...

    async def close(self) -> None:
        """Close what was opened."""
        ...


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
