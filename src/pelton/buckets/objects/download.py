"""Gets an object: its chunks in order, a batch ahead, digested on a thread, and verified against its description.

If an object is replaced or deleted while it is read, its chunks are gone: chunks belong to one object
for ever, so there is never a mix.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from typing import Final, NamedTuple

from pelton.api import (
    DirectGetDisabledError,
    MessageNotFoundError,
    MsgGet,
    ObjectChangedError,
    ObjectDamagedError,
)
from pelton.buckets.objects.info import ObjectInfo, is_digest
from pelton.buckets.objects.naming import chunk_subject
from pelton.buckets.objects.records import Records

_AT_ONCE: Final = 1024
BATCH_BYTES: Final = 4 * 1024 * 1024


class _Chunk(NamedTuple):
    seq: int
    data: bytes


class Download:
    """The download of one object. ``take`` is called with the chunks of each batch, on a thread."""

    def __init__(self, records: Records, info: ObjectInfo, take: Callable[[list[bytes]], object] | None = None) -> None:
        self._records = records
        self._info = info
        self._take = take
        self._subject = chunk_subject(records.bucket, info.nuid)
        self._digest = hashlib.sha256()
        self._done = 0

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the chunks; they are verified only after the last one.

        Raises ObjectDamagedError, ObjectChangedError, CorruptMessageError.
        """
        size = self._info.size
        found = await self._fetch(1) if size else []
        while found:
            chunks = [chunk.data for chunk in found]
            self._done += sum(map(len, chunks))
            # Start the thread first: an embedded store reads on this one.
            digesting = asyncio.to_thread(self._digested, chunks)
            following = self._fetch(found[-1].seq + 1) if self._done < size else _nothing()
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

    async def _fetch(self, seq: int) -> list[_Chunk]:
        """Return the next chunks, at least one."""
        stream = self._records.stream
        try:
            read = await stream.get_messages(_AT_ONCE, seq=seq, subject=self._subject, max_bytes=BATCH_BYTES)
        except DirectGetDisabledError:
            read = []
        return [_Chunk(one.seq, one.data) for one in read] or await self._asked(seq)

    async def _asked(self, seq: int) -> list[_Chunk]:
        """Ask the stream's leader for a chunk that a replica does not have, or not yet."""
        request = MsgGet(stream=self._records.stream.name, seq=seq, next_by_subj=self._subject)
        try:
            message = (await self._records.jet.backend.call(request)).message
        except MessageNotFoundError:
            raise await self._missing() from None
        return [_Chunk(message.seq, message.data)]

    async def _missing(self) -> Exception:
        info = self._info
        latest = await self._records.find(info.name, latest=True)
        if latest is None or latest.deleted or latest.nuid != info.nuid:
            text = "it was replaced or deleted while it was read: read it again"
            return ObjectChangedError(info.bucket, info.name, text)
        text = f"only {self._done} of its {info.size} bytes exist: the rest has expired or was removed"
        return ObjectDamagedError(info.bucket, info.name, text)


async def _nothing() -> list[_Chunk]:
    return []
