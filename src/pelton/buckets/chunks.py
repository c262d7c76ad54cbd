"""Reads objects: their chunks in order, parts of them, and what changes.

If an object is replaced or deleted while it is read, its chunks are gone: chunks belong to one object for ever, so
there is never a mix.

**A part of an object** is read from the chunks that have it. All chunks but the last have the same size, so the number
of the first one that is needed is known, and its sequence has to be found. If nothing else was stored meanwhile, the
sequences of an object follow each other. If not, a chunk that is read tells how many chunks follow, and so its number:
the search goes on between two chunks whose numbers are known. All of that holds if no chunk is missing: there are as
many from the first on as there should be, and the part has those that it should have.

A replica may be behind, and count too few. So on replicas only sequences that follow each other are relied on.
Otherwise, and if another client has made chunks of various sizes, the object has to be read as a whole.

**The remains of puts whose process died** are chunks that no description names. Chunks without a description may belong
to a put in progress. So only those are removed whose last one is older than the given age; and first a mark is stored
after that last one, on the condition that it still is the last. A put that resumes counts its chunks and describes them
on the same condition (:mod:`upload`): either it was faster and the mark is refused, or it fails. A put of another
client does not check this: for it only the age protects.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from pelton.api import (
    DirectGet,
    DirectGetDisabledError,
    LimitError,
    MessageNotFoundError,
    ObjectChangedError,
    ObjectDamagedError,
    WrongLastSequenceError,
    parse_rfc3339,
)
from pelton.buckets.bucket import follow
from pelton.buckets.object_info import ObjectInfo, Records, all_metas, chunk_subject, decode_info, is_digest
from pelton.jet.stream import at_leader, subjects_of

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
        """Return the next chunks from a sequence on: at least one, and no more than ``max_bytes`` hold.

        Raises ObjectDamagedError, ObjectChangedError, CorruptMessageError.
        """
        stream = self._records.stream
        try:
            read = await stream.get_messages(_AT_ONCE, seq=seq, subject=self._subject, max_bytes=max_bytes)
        except DirectGetDisabledError:
            read = []
        return [ObjectChunk(one.seq, one.data) for one in read] or await self._ask_leader(seq)

    async def _ask_leader(self, seq: int) -> list[ObjectChunk]:
        """Ask the stream's leader for a chunk that a replica does not have, or not yet."""
        backend, stream = self._records.jet.backend, self._records.stream.name
        message = await at_leader(backend, stream, seq=seq, next_by_subj=self._subject)
        if message is None:
            raise await self.missing()
        return [ObjectChunk(message.seq, message.data)]

    async def fetch_count(self, seq: int, max_bytes: int, *, at_most: int = _AT_ONCE) -> tuple[list[ObjectChunk], int]:
        """Return the next chunks, as :meth:`fetch` does, and the number of the last of them."""
        request = DirectGet(seq=seq, next_by_subj=self._subject, batch=at_most, max_bytes=max_bytes)
        try:
            reply = await self._records.jet.backend.direct_get(self._records.stream.name, request)
        except MessageNotFoundError:
            raise await self.missing() from None
        return [ObjectChunk(one.seq, one.data) for one in reply.messages], self.info.chunks - 1 - reply.num_pending

    async def place(self, seq: int) -> ChunkPlace:
        """Return where the next chunk from a sequence on is. Raises as :meth:`fetch`."""
        (chunk,), number = await self.fetch_count(seq, BATCH_BYTES, at_most=1)
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


def has_places(info: ObjectInfo) -> bool:
    """Whether the number of the chunk at any position is known."""
    return info.max_chunk_size > 0 and info.chunks == -(-info.size // info.max_chunk_size)


async def read_range(chunks: ChunkReader, start: int, end: int) -> bytes | None:
    """Return the bytes of an object from ``start`` to ``end``, which are within it; None: read it as a whole.

    Raises ObjectDamagedError, ObjectChangedError, CorruptMessageError.
    """
    if start >= end:
        return b""
    size = chunks.info.max_chunk_size
    place = await _place(chunks, start // size) if has_places(chunks.info) else None
    if place is None:
        return None
    begin, parts = place.number * size, list[bytes]()
    wanted = -(-end // size) - place.number
    while len(parts) < wanted:
        read = await _fetch(chunks, place, min((wanted - len(parts)) * size, BATCH_BYTES))
        _check_sizes(chunks.info, place.number, read)
        parts += [chunk.data for chunk in read]
        place = ChunkPlace(read[-1].seq + 1, place.number + len(read))
    return b"".join(parts)[start - begin : end - begin]


async def _fetch(chunks: ChunkReader, place: ChunkPlace, max_bytes: int) -> list[ObjectChunk]:
    if chunks.counts_exactly:
        read, last = await chunks.fetch_count(place.seq, max_bytes)
        is_whole = last == place.number + len(read) - 1
    else:
        read = await chunks.fetch(place.seq, max_bytes)
        is_whole = read[-1].seq == place.seq + len(read) - 1
    if not is_whole:
        raise await chunks.missing()
    return read


def _check_sizes(info: ObjectInfo, number: int, found: list[ObjectChunk]) -> None:
    for index, chunk in enumerate(found, number):
        if len(chunk.data) != min(info.max_chunk_size, info.size - index * info.max_chunk_size):
            raise ObjectDamagedError(info.bucket, info.name, "its content is not what was put (a chunk's size differs)")


async def _place(chunks: ChunkReader, wanted: int) -> ChunkPlace | None:
    """Return where a chunk is; None if that can only be found by reading all of them."""
    if chunks.counts_exactly:
        return await _search(chunks, wanted)
    ((first, _), *_) = await chunks.fetch(1, 1)
    last = await chunks.last()
    return ChunkPlace(first + wanted, wanted) if last.seq - first == last.number else None


async def _search(chunks: ChunkReader, wanted: int) -> ChunkPlace:
    low = await chunks.place(1)
    if low.number:
        raise await chunks.missing()
    if low.number < wanted:
        # Right if the sequences follow each other, and never beyond the chunk.
        low = await chunks.place(low.seq + wanted - low.number)
    high, in_middle = low, False
    while low.number < wanted:
        high = high if high.number >= wanted else await chunks.last()
        span = high.seq - low.seq
        if high.number == wanted:
            return high
        if span <= 1:
            break
        step = span // 2 if in_middle else span * (wanted - low.number) // (high.number - low.number)
        seq = low.seq + max(step, 1)
        place = await chunks.place(seq)
        if place.number <= wanted:
            low = place
        else:
            # The sequence may have become another message's: the number says whether it is the next chunk.
            high = ChunkPlace(seq, place.number)
        in_middle = not in_middle
    if low.number == wanted:
        return low
    raise await chunks.missing()


async def watch_infos(
    records: Records, *, updates_only: bool = False, is_strict: bool = False
) -> AsyncGenerator[ObjectInfo | None, None]:
    """Yield descriptions in order, and None once after all that existed at the start.

    Unreadable ones are skipped, as other clients do; if ``is_strict``, they raise ObjectDamagedError.
    """
    policy = "new" if updates_only else "last_per_subject"
    async with aclosing(
        follow(records.jet, records.stream.name, [all_metas(records.bucket)], deliver_policy=policy)
    ) as following:
        async for one in following:
            if one is None:
                yield None
                continue
            try:
                info = decode_info(records.bucket, one.subject, one.data, revision=one.seq, time_ns=one.time_ns)
            except ObjectDamagedError:
                if is_strict:
                    raise
                continue
            yield info


# --- gets an object: its chunks in order, a batch ahead, digested on a thread, and verified against its description


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
        read = await self._chunks.fetch(1) if size else []
        while read:
            chunks = [chunk.data for chunk in read]
            self._done += sum(map(len, chunks))
            # Start the thread first: an embedded store reads on this one.
            digesting = asyncio.to_thread(self._digest_all, chunks)
            following = self._chunks.fetch(read[-1].seq + 1) if self._done < size else _nothing()
            _, read = await asyncio.gather(digesting, following)
            yield chunks
        if self._done != size or (size and not is_digest(self._info.digest, self._digest)):
            text = "its content is not what was put (the digest differs): put it again"
            raise ObjectDamagedError(self._info.bucket, self._info.name, text)

    def _digest_all(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._digest.update(chunk)
        if self._take is not None:
            self._take(chunks)


async def _nothing() -> list[ObjectChunk]:
    return []


# --- removes the remains of puts whose process died


async def remove_remains(records: Records, older_than_ns: int) -> int:
    """Remove orphaned chunks, and return of how many objects."""
    info = await records.stream.info()
    # Before the descriptions are read: objects described in between are then found there.
    listed = await subjects_of(records.stream, chunk_subject(records.bucket, ">"))
    subjects = set(listed)
    if not subjects:
        return 0
    subjects -= await _described_ids(records)
    # By the server's clock, which also dates the chunks.
    limit = (parse_rfc3339(info.ts) if info.ts else records.jet.runtime.clock.now()) - older_than_ns
    return sum([await _remove_orphans(records, subject, limit) for subject in sorted(subjects)])


async def _described_ids(records: Records) -> set[str]:
    described: set[str] = set()
    async with aclosing(watch_infos(records, is_strict=True)) as metas:
        async for meta in metas:
            if meta is None:
                break
            if not meta.deleted:
                described.add(chunk_subject(records.bucket, meta.nuid))
    return described


async def _remove_orphans(records: Records, subject: str, limit: int) -> bool:
    # A replica may not know how far a put has come.
    last = await at_leader(records.jet.backend, records.stream.name, last_by_subj=subject)
    if last is None or last.time_ns > limit:
        return False
    try:
        await records.jet.publish(subject, expected_last_subject_seq=last.seq)
    except WrongLastSequenceError:
        return False
    except LimitError:
        # A full store cannot be marked, but needs cleaning most.
        pass
    await records.purge_chunks(subject.rpartition(".")[2])
    return True
