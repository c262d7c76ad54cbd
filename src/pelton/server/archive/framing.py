"""The S2 stream format: chunks with checksums.

S2 is Snappy with larger blocks, and with a copy that repeats the offset of the last one. What is written here uses no
such copies, so Snappy's compressor writes it; what nats-server writes needs :func:`decompressed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import cramjam
from crc32c import crc32c

_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_SNAPPY: Final = b"sNaPpY"
_S2: Final = b"S2sTwO"
_COMPRESSED, _PLAIN, _NAMED = 0x00, 0x01, 0xFF
_SKIPPABLE: Final = 0x80
_HEAD: Final = 4
_SUM: Final = 4
_LARGEST: Final = 4 << 20
_MOST_VARINT: Final = 5
_LITERAL, _COPY_1, _COPY_2, _COPY_4 = range(4)
_SHORT_LITERAL: Final = 60


class ArchiveFramingError(Exception):
    """The data is no such stream, or was damaged."""


def _masked(data: bytes) -> bytes:
    """Return the checksum of a chunk as it is written."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


class FrameWriter:
    """Compresses; what it returns, joined, is the stream."""

    def __init__(self) -> None:
        self._begun = False

    def frame(self, data: bytes) -> bytes:
        """Return data as a chunk: at most 4 MiB."""
        opening, self._begun = b"" if self._begun else _IDENTIFIER, True
        packed, kind = bytes(cramjam.snappy.compress_raw(data)), _COMPRESSED
        if len(packed) >= len(data):
            packed, kind = data, _PLAIN
        return b"%b%c%b%b%b" % (opening, kind, (len(packed) + _SUM).to_bytes(3, "little"), _masked(data), packed)


class FrameReader:
    """Decompresses a stream that comes in any portions."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the chunks that are complete with these bytes, at most 4 MiB each. Raises ArchiveFramingError.

        One at a time: a few bytes may stand for a whole chunk.
        """
        held, position = self._held, 0
        held += data
        while len(held) - position >= _HEAD:
            kind, size = held[position], int.from_bytes(held[position + 1 : position + _HEAD], "little")
            end = position + _HEAD + size
            if not self._begun and kind != _NAMED:
                raise ArchiveFramingError("it does not begin as an archive does")
            if kind in (_COMPRESSED, _PLAIN) and size > _LARGEST + _LARGEST // 6 + 64:
                raise ArchiveFramingError("a chunk is too large")
            if end > len(held):
                break
            yield self._chunk(kind, bytes(held[position + _HEAD : end]))
            position = end
        del held[:position]

    def _chunk(self, kind: int, body: bytes) -> bytes:
        if kind == _NAMED:
            if body not in (_S2, _SNAPPY):
                raise ArchiveFramingError("it does not begin as an archive does")
            self._begun = True
            return b""
        if kind >= _SKIPPABLE:
            return b""
        if kind not in (_COMPRESSED, _PLAIN) or len(body) < _SUM:
            raise ArchiveFramingError(f"it has a chunk of the unknown kind {kind}")
        data = decompressed(body[_SUM:]) if kind == _COMPRESSED else body[_SUM:]
        if _masked(data) != body[:_SUM]:
            raise ArchiveFramingError("a chunk does not match its checksum")
        return data

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        return self._begun and not self._held


def decompressed(block: bytes) -> bytes:
    """Return the content of an S2 block. Raises ArchiveFramingError."""
    try:
        size, position = _varint(block)
        if size > _LARGEST:
            raise ArchiveFramingError("a chunk is too large")
        try:
            # Without repeated offsets, it is a block of Snappy.
            return bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError:
            data = _copied(block, position, size)
    except IndexError:
        raise ArchiveFramingError("a chunk is cut off") from None
    if len(data) != size:
        raise ArchiveFramingError("a chunk has another size than it says")
    return data


def _varint(block: bytes) -> tuple[int, int]:
    value = 0
    for position, byte in enumerate(block[:_MOST_VARINT]):
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, position + 1
    raise ArchiveFramingError("a chunk does not say its size")


def _copied(block: bytes, position: int, size: int) -> bytes:
    """Return the content of a block, whose elements begin at ``position``."""
    out, end, offset = bytearray(), len(block), 0
    while position < end:
        tag = block[position]
        kind, position = tag & 3, position + 1
        if kind == _LITERAL:
            length = tag >> 2
            if length >= _SHORT_LITERAL:
                width = length - _SHORT_LITERAL + 1
                length, position = int.from_bytes(block[position : position + width], "little"), position + width
            out += block[position : position + length + 1]
            position += length + 1
            continue
        length = (tag >> 2) + 1
        if kind == _COPY_1:
            near = (tag >> 5) << 8 | block[position]
            position += 1
            length = (tag >> 2 & 7) + 4
            if near:
                offset = near
            else:
                length, position = _repeated(block, position, tag >> 2 & 7)
        else:
            width = 2 if kind == _COPY_2 else 4
            offset, position = int.from_bytes(block[position : position + width], "little"), position + width
        _copy(out, offset, length, size)
    return bytes(out)


def _repeated(block: bytes, position: int, code: int) -> tuple[int, int]:
    """Return the length of a copy that repeats the last offset, and where the next element begins."""
    if code < 5:
        return code + 4, position
    width, least = {5: (1, 4), 6: (2, 1 << 8), 7: (3, 1 << 16)}[code]
    return int.from_bytes(block[position : position + width], "little") + least + 4, position + width


def _copy(out: bytearray, offset: int, length: int, size: int) -> None:
    start = len(out) - offset
    if not offset or start < 0 or len(out) + length > size:
        raise ArchiveFramingError("a chunk is damaged")
    if offset >= length:
        out += out[start : start + length]
    else:
        # It overlaps what it writes: a pattern that repeats.
        pattern = bytes(out[start:])
        out += (pattern * (length // offset + 1))[:length]
