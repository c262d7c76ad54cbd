"""Gets a part of an object: only the chunks that have it.

Design: All chunks but the last have the same size, so the number of the first one that is needed is known, and its
sequence has to be found. If nothing else was stored meanwhile, the sequences of an object follow each other. If not, a
chunk that is read tells how many chunks follow, and so its number: the search goes on between two chunks whose numbers
are known. All of that holds if no chunk is missing: there are as many from the first on as there should be, and the
part has those that it should have.

A replica may be behind, and count too few. So on replicas only sequences that follow each other are relied on.
Otherwise, and if another client has made chunks of various sizes, the object has to be read as a whole.
"""

from __future__ import annotations

from pelton.api import ObjectDamagedError
from pelton.buckets.objects.chunks import BATCH_BYTES, ChunkPlace, ChunkReader, ObjectChunk
from pelton.buckets.objects.info import ObjectInfo


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
        found = await _fetch(chunks, place, min((wanted - len(parts)) * size, BATCH_BYTES))
        _check_sizes(chunks.info, place.number, found)
        parts += [chunk.data for chunk in found]
        place = ChunkPlace(found[-1].seq + 1, place.number + len(found))
    return b"".join(parts)[start - begin : end - begin]


async def _fetch(chunks: ChunkReader, place: ChunkPlace, max_bytes: int) -> list[ObjectChunk]:
    """Return the chunks from a place on, of which none is missing."""
    if chunks.counts_exactly:
        found, last = await chunks.counted(place.seq, max_bytes)
        is_whole = last == place.number + len(found) - 1
    else:
        found = await chunks.fetch(place.seq, max_bytes)
        is_whole = found[-1].seq == place.seq + len(found) - 1
    if not is_whole:
        raise await chunks.missing()
    return found


def _check_sizes(info: ObjectInfo, number: int, found: list[ObjectChunk]) -> None:
    for index, chunk in enumerate(found, number):
        if len(chunk.data) != min(info.max_chunk_size, info.size - index * info.max_chunk_size):
            raise ObjectDamagedError(info.bucket, info.name, "its content is not what was put (a chunk's size differs)")


async def _place(chunks: ChunkReader, wanted: int) -> ChunkPlace | None:
    """Return where a chunk is; None if that can only be found by reading all of them."""
    if chunks.counts_exactly:
        return await _searched(chunks, wanted)
    ((first, _), *_) = await chunks.fetch(1, 1)
    last = await chunks.last()
    return ChunkPlace(first + wanted, wanted) if last.seq - first == last.number else None


async def _searched(chunks: ChunkReader, wanted: int) -> ChunkPlace:
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
        found = await chunks.place(seq)
        if found.number <= wanted:
            low = found
        else:
            # The sequence may be another message's: its number is that of the next chunk.
            high = ChunkPlace(seq, found.number)
        in_middle = not in_middle
    if low.number == wanted:
        return low
    raise await chunks.missing()
