"""The compressed stream: against Snappy's own writer, blocks by hand, and damage at every byte."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server.archive import ArchiveFramingError, FrameReader, FrameWriter, decompress

TEXT = b'{"messages":3,"bytes":142}' * 400


def test_what_is_written_is_read_in_any_portions() -> None:
    writer = FrameWriter()
    parts = [TEXT, b"x", bytes(range(256)) * 9, TEXT]
    stream = b"".join(map(writer.frame, parts))
    for step in (1, 7, 1000, len(stream)):
        reader = FrameReader()
        found = b"".join(part for at in range(0, len(stream), step) for part in reader.feed(stream[at : at + step]))
        assert found == b"".join(parts)
        assert reader.is_complete


def test_another_writer_agrees() -> None:
    """Snappy's stream is read, too; its checksums are those of ours."""
    reader = FrameReader()
    assert b"".join(reader.feed(bytes(cramjam.snappy.compress(TEXT)))) == TEXT
    ours = FrameWriter().frame(TEXT[:60_000]).replace(b"S2sTwO", b"sNaPpY")
    assert bytes(cramjam.snappy.decompress(ours)) == TEXT[:60_000]


def test_a_block_says_its_size_in_a_few_bytes() -> None:
    with pytest.raises(ArchiveFramingError, match="does not say its size"):
        decompress(b"\x80" * 100_000)


def test_a_chunk_is_unpacked_when_it_is_asked_for() -> None:
    stream = FrameWriter().frame(TEXT)
    damaged = bytearray(FrameWriter().frame(TEXT)[10:])
    damaged[-1] ^= 1
    found = FrameReader().feed(stream[:10] + stream[10:] + damaged)
    assert next(found) == b""
    assert next(found) == TEXT
    with pytest.raises(ArchiveFramingError):
        next(found)


@pytest.mark.parametrize(
    ("block", "content"),
    [
        # A copy, then its offset again: with each way to say how often.
        (b"\x0d" + b"\x0cabcd" + b"\x01\x04" + b"\x05\x00", b"abcd" + b"abcd" + b"abcda"),
        (b"\x12" + b"\x04ab" + b"\x01\x02" + b"\x15\x00\x04", b"ab" * 9),
        (b"\x8b\x02" + b"\x00a" + b"\x09\x01" + b"\x19\x00\x00\x00", b"a" * (1 + 6 + 260)),
        (b"\x89\x80\x04" + b"\x00a" + b"\x01\x01" + b"\x1d\x00\x00\x00\x00", b"a" * (1 + 4 + 65_540)),
        # A literal with its length in a byte, and copies with offsets of two and of four bytes.
        (b"\x45" + b"\xf0\x3f" + b"z" * 64 + b"\x12\x40\x00", b"z" * 69),
        (b"\x09" + b"\x0cabcd" + b"\x13\x04\x00\x00\x00", b"abcdabcda"),
    ],
)
def test_blocks_by_hand(block: bytes, content: bytes) -> None:
    assert decompress(block) == content


def test_a_changed_byte_is_reported() -> None:
    stream = FrameWriter().frame(TEXT[:300])
    for at in range(len(stream)):
        changed = stream[:at] + bytes([stream[at] ^ 0x20]) + stream[at + 1 :]
        reader = FrameReader()
        try:
            found = b"".join(reader.feed(changed))
        except ArchiveFramingError:
            continue
        # What is not complete is no stream; a reader of the archive refuses it.
        assert found != TEXT[:300]
        assert not (reader.is_complete and found)


@given(st.binary(max_size=60))
def test_no_bytes_break_it(data: bytes) -> None:
    for block in (data, b"\x40" + data):
        try:
            decompress(block)
        except ArchiveFramingError:
            continue
    reader = FrameReader()
    try:
        list(reader.feed(b"\xff\x06\x00\x00S2sTwO" + data))
    except ArchiveFramingError:
        return
