"""Splitting a source into chunks."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.buckets import upload
from pelton.buckets.upload import Chunker, ChunkSource, source_of


async def _all(source: ChunkSource) -> list[bytes]:
    found: list[bytes] = []
    while True:
        batch = await source.read()
        found += batch.chunks
        if batch.is_last or not batch.chunks:
            await source.close()
            return found


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=1, max_value=20))
def test_chunks_have_their_size_whatever_the_pieces(pieces: list[bytes], size: int) -> None:
    chunker = Chunker(size)
    for piece in pieces:
        chunker.feed(piece)
    chunker.end()
    chunks = chunker.take().chunks
    content = b"".join(pieces)
    assert b"".join(chunks) == content
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= size for chunk in chunks[-1:])
    assert (chunker.bytes, chunker.chunks) == (len(content), len(chunks))
    assert chunker.digest.digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 400, 1000])
async def test_batches_are_bounded(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "BATCH_BYTES", 400)
    content = bytes(number % 256 for number in range(length))
    for given_as in (content, [content], iter([content[:7], content[7:]])):
        source = source_of(given_as, 100)
        sizes = []
        while True:
            batch = await source.read()
            sizes.append(len(batch.chunks))
            if batch.is_last or not batch.chunks:
                break
        assert max(sizes) <= 4
        assert sum(sizes) == -(-length // 100)


async def test_memory_of_any_shape() -> None:
    numbers = array("I", range(100))
    assert b"".join(await _all(source_of(memoryview(numbers), 30))) == numbers.tobytes()
    assert b"".join(await _all(source_of([memoryview(numbers)], 30))) == numbers.tobytes()


async def test_an_async_generator_is_closed() -> None:
    closed = []

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            yield b"b"
        finally:
            closed.append(True)

    source = source_of(pieces(), 1)
    await source.read()
    await source.close()
    assert closed == [True]


async def test_a_source_that_fails_is_heard() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await _all(source_of(pieces(), 1))
