"""The archive format of nats-server 2.15: entries in a compressed stream of chunks with checksums.

**The S2 stream format: chunks with checksums.** S2 is Snappy with larger blocks, and with a copy that repeats the
offset of the last one. What is written here uses no such copies, so Snappy's compressor writes it; what nats-server
writes needs :func:`decompressed`.

**The entries of an archive: its state, its consumers, its messages, and a last one without a name.** After eight bytes
that name the format, an entry is: length of its name, time (ns), sequence, length of the header block, length of the
payload, as varints; then name, header block and payload. Only messages have a sequence; the name of a message is its
subject.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_SNAPPY: Final = b"sNaPpY"
_S2: Final = b"S2sTwO"
_COMPRESSED, _PLAIN, _NAMED = 0x00, 0x01, 0xFF
_SKIPPABLE: Final = 0x80
_HEAD: Final = 4
_SUM: Final = 4
_LARGEST_CHUNK: Final = 4 << 20
_LONGEST_LENGTH: Final = 5
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
            if kind in (_COMPRESSED, _PLAIN) and size > _LARGEST_CHUNK + _LARGEST_CHUNK // 6 + 64:
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
        size, position = _length(block)
        if size > _LARGEST_CHUNK:
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


def _length(block: bytes) -> tuple[int, int]:
    value = 0
    for position, byte in enumerate(block[:_LONGEST_LENGTH]):
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


MAGIC: Final = b"NATSARC1"
STATE: Final = "state.json"
CONSUMERS: Final = "consumers/"
_LONGEST_NAME: Final = 1 << 16
_LARGEST_ENTRY: Final = 64 << 20
_TIMES: Final = range(-(1 << 63), 1 << 63)
_FIELDS: Final = 5
_LONGEST_NUMBER: Final = 10


class ArchiveEntryError(Exception):
    """The archive's content is not as it has to be."""


class ArchiveEntry(NamedTuple):
    """One entry; the last one is empty."""

    name: str
    ts: int = 0
    seq: int = 0
    hdr: bytes = b""
    data: bytes = b""


END: Final = ArchiveEntry("")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_entry(entry: ArchiveEntry) -> bytes:
    """Return an entry as bytes."""
    name, ts, seq, hdr, data = entry
    raw = name.encode()
    zigzag = ts << 1 if ts >= 0 else (-ts << 1) - 1
    numbers = b"".join(map(_varint, (len(raw), zigzag, seq, len(hdr), len(data))))
    return b"".join((numbers, raw, hdr, data))


class EntryReader:
    """Reads entries from bytes that come in any portions."""

    has_ended: bool

    def __init__(self) -> None:
        self._held = bytearray()
        # How many bytes there must be before it is worth to look: what comes in many portions is read once.
        self._needed = len(MAGIC)
        self._begun = False
        self.has_ended = False

    def feed(self, data: bytes) -> Iterator[ArchiveEntry]:
        """Yield the entries that are complete with these bytes. Raises ArchiveEntryError."""
        held, position = self._held, 0
        held += data
        if len(held) < self._needed:
            return
        if not self._begun:
            if not held.startswith(MAGIC):
                raise ArchiveEntryError("it is no archive of nats-server 2.15 or later")
            self._begun, position = True, len(MAGIC)
        while not self.has_ended:
            entry, end = _entry(held, position)
            if entry is None:
                self._needed = end - position
                break
            position = end
            self.has_ended = entry == END
            yield entry
        del held[:position]
        if self.has_ended and held:
            raise ArchiveEntryError("there is more after its end")


def _entry(data: bytearray, position: int) -> tuple[ArchiveEntry | None, int]:
    """Return the entry at a position and where it ends; no entry, and where it may end, if it is not complete."""
    numbers = []
    for _ in range(_FIELDS):
        value, position = _number(data, position)
        if position < 0:
            return None, len(data) + 1
        numbers.append(value)
    name, zigzag, seq, hdr, size = numbers
    if name > _LONGEST_NAME or hdr + size > _LARGEST_ENTRY or seq >= 1 << 63:
        raise ArchiveEntryError("an entry is too large")
    begin = position + name
    end = begin + hdr + size
    if end > len(data):
        return None, end
    try:
        text = data[position:begin].decode()
    except UnicodeDecodeError:
        raise ArchiveEntryError("a name is no text") from None
    ts = (zigzag >> 1) ^ -(zigzag & 1)
    if ts not in _TIMES:
        raise ArchiveEntryError("a time is too large")
    return ArchiveEntry(text, ts, seq, bytes(data[begin : begin + hdr]), bytes(data[begin + hdr : end])), end


def _number(data: bytearray, position: int) -> tuple[int, int]:
    """Return a varint and where it ends, -1 if it is not complete."""
    value = shift = 0
    for byte in data[position : position + _LONGEST_NUMBER]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    if shift >= 7 * _LONGEST_NUMBER:
        raise ArchiveEntryError("a number is too large")
    return 0, -1
