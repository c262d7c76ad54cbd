"""Gets an object: its chunks in order, a batch ahead, digested on a thread, and verified against its description."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable

from pelton.api import ObjectDamagedError
from pelton.buckets.objects.chunks import ChunkReader, ObjectChunk
from pelton.buckets.objects.info import ObjectInfo, is_digest
from pelton.buckets.objects.records import Records


class Download:
    """The download of one object. ``take`` is called with the chunks of each batch, on a thread."""

    def __init__(self, records: Records, info: ObjectInfo, take: Callable[[list[bytes]], object] | None = None) -> None:
        self._chunks = ChunkReader(records, info)
        self._info = info
        self._take = take
        self._digest = hashlib.sha256()
        self._done = 0

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the chunks; they are verified only after the last one.

        Raises ObjectDamagedError, ObjectChangedError, CorruptMessageError.
        """
        size = self._info.size
        found = await self._chunks.fetch(1) if size else []
        while found:
            chunks = [chunk.data for chunk in found]
            self._done += sum(map(len, chunks))
            # Start the thread first: an embedded store reads on this one.
            digesting = asyncio.to_thread(self._digested, chunks)
            following = self._chunks.fetch(found[-1].seq + 1) if self._done < size else _nothing()
            _, found = await asyncio.gather(digesting, following)
            yield chunks
        if self._done != size or (size and not is_digest(self._info.digest, self._digest)):
            text = "its content is not what was put (the digest differs): put it again"
            raise ObjectDamagedError(self._info.bucket, self._info.name, text)

    def _digested(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._digest.update(chunk)
        if self._take is not None:
            self._take(chunks)


async def _nothing() -> list[ObjectChunk]:
    return []
