"""Reads the chunks of an object, in order.

If an object is replaced or deleted while it is read, its chunks are gone: chunks belong to one object
for ever, so there is never a mix.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pelton.api import (
    DirectGet,
    DirectGetDisabledError,
    MessageNotFoundError,
    ObjectChangedError,
    ObjectDamagedError,
)
from pelton.buckets.objects.info import ObjectInfo
from pelton.buckets.objects.naming import chunk_subject
from pelton.buckets.objects.records import Records
from pelton.jet.readable import at_leader

_AT_ONCE: Final = 1024
BATCH_BYTES: Final = 4 * 1024 * 1024


class ObjectChunk(NamedTuple):
    """A chunk, and its sequence."""

    seq: int
    data: bytes


class ChunkPlace(NamedTuple):
    """Where a chunk is: its sequence, and its number, 0 for the first."""

    seq: int
    number: int


class ChunkReader:
    """The chunks of one object."""

    def __init__(self, records: Records, info: ObjectInfo) -> None:
        self.info = info
        self._records = records
        self._subject = chunk_subject(records.bucket, info.nuid)

    @property
    def counts_exactly(self) -> bool:
        """Whether a read can tell how many chunks follow: a replica may be behind, and count too few."""
        config = self._records.stream.config
        return config.allow_direct and config.num_replicas == 1

    async def fetch(self, seq: int, max_bytes: int = BATCH_BYTES) -> list[ObjectChunk]:
        """Return the next chunks from a sequence on, at least one, until they have so many bytes.

        Raises ObjectDamagedError, ObjectChangedError, CorruptMessageError.
        """
        stream = self._records.stream
        try:
            read = await stream.get_messages(_AT_ONCE, seq=seq, subject=self._subject, max_bytes=max_bytes)
        except DirectGetDisabledError:
            read = []
        return [ObjectChunk(one.seq, one.data) for one in read] or await self._asked(seq)

    async def _asked(self, seq: int) -> list[ObjectChunk]:
        """Ask the stream's leader for a chunk that a replica does not have, or not yet."""
        backend, stream = self._records.jet.backend, self._records.stream.name
        message = await at_leader(backend, stream, seq=seq, next_by_subj=self._subject)
        if message is None:
            raise await self.missing()
        return [ObjectChunk(message.seq, message.data)]

    async def counted(self, seq: int, max_bytes: int, *, at_most: int = _AT_ONCE) -> tuple[list[ObjectChunk], int]:
        """Return the next chunks, as :meth:`fetch` does, and the number of the last of them."""
        request = DirectGet(seq=seq, next_by_subj=self._subject, batch=at_most, max_bytes=max_bytes)
        try:
            reply = await self._records.jet.backend.direct_get(self._records.stream.name, request)
        except MessageNotFoundError:
            raise await self.missing() from None
        return [ObjectChunk(one.seq, one.data) for one in reply.messages], self.info.chunks - 1 - reply.num_pending

    async def place(self, seq: int) -> ChunkPlace:
        """Return where the next chunk from a sequence on is. Raises as :meth:`fetch`."""
        (chunk,), number = await self.counted(seq, BATCH_BYTES, at_most=1)
        return ChunkPlace(chunk.seq, number)

    async def last(self) -> ChunkPlace:
        """Return where the last chunk is. Raises as :meth:`fetch`."""
        try:
            return ChunkPlace((await self._records.stream.get_last_message(self._subject)).seq, self.info.chunks - 1)
        except MessageNotFoundError:
            raise await self.missing() from None

    async def missing(self) -> Exception:
        """Return the error for an object some of whose chunks are not there."""
        info = self.info
        latest = await self._records.find(info.name, latest=True)
        if latest is None or latest.deleted or latest.nuid != info.nuid:
            text = "it was replaced or deleted while it was read: read it again"
            return ObjectChangedError(info.bucket, info.name, text)
        text = f"not all of its {info.size} bytes exist: the rest has expired or was removed"
        return ObjectDamagedError(info.bucket, info.name, text)
