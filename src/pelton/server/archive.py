"""The archive format of nats-server 2.15: entries in a compressed stream of chunks with checksums, read and written.

**The S2 stream format: chunks with checksums.** S2 is Snappy with larger blocks, and with a copy that repeats the
offset of the last one. What is written here uses no such copies, so Snappy's compressor writes it; what nats-server
writes needs :func:`decompress`.

**The entries of an archive: its state, its consumers, its messages, and a last one without a name.** After eight bytes
that name the format, an entry is: length of its name, time (ns), sequence, length of the header block, length of the
payload, as varints; then name, header block and payload. Only messages have a sequence; the name of a message is its
subject.

**Reads an archive from a file: state and consumers at once, messages as they are asked for. Blocks.** An archive comes
from a client, and a few bytes of it may stand for millions. So it is read chunk by chunk, what is unpacked is counted,
and of consumers only the text is kept, which is decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Final, NamedTuple

import cramjam
import msgspec
from crc32c import crc32c

from pelton.api import ApiError, StreamState, api_error
from pelton.api.codec import ArchivedConsumer, ArchivedMessage, decode_archived, decode_archived_state, encode_archived
from pelton.api.json_values import UNREADABLE

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


def _checksum(data: bytes) -> bytes:
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
        return b"%b%c%b%b%b" % (opening, kind, (len(packed) + _SUM).to_bytes(3, "little"), _checksum(data), packed)


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
        data = decompress(body[_SUM:]) if kind == _COMPRESSED else body[_SUM:]
        if _checksum(data) != body[:_SUM]:
            raise ArchiveFramingError("a chunk does not match its checksum")
        return data

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        return self._begun and not self._held


def decompress(block: bytes) -> bytes:
    """Return the content of an S2 block. Raises ArchiveFramingError."""
    try:
        size, position = _length(block)
        if size > _LARGEST_CHUNK:
            raise ArchiveFramingError("a chunk is too large")
        try:
            # Without repeated offsets, it is a block of Snappy.
            return bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError:
            data = _copies_of(block, position, size)
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


def _copies_of(block: bytes, position: int, size: int) -> bytes:
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
                length, position = _repeat_length(block, position, tag >> 2 & 7)
        else:
            width = 2 if kind == _COPY_2 else 4
            offset, position = int.from_bytes(block[position : position + width], "little"), position + width
        _copy(out, offset, length, size)
    return bytes(out)


def _repeat_length(block: bytes, position: int, code: int) -> tuple[int, int]:
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


_PORTION: Final = 1 << 18
_MOST: Final = 1024
_LARGEST_TEXT: Final = 16 << 20
_ALL_TEXTS: Final = 64 << 20


class ArchiveSource:
    """An archive in an open file, of which ``most`` bytes are unpacked (-1: any number).

    Raises ApiError 10062 if it is not valid, 10002 if it is larger, as do its methods. ``check`` is called again and
    again; what it raises ends the reading.
    """

    def __init__(self, file: IO[bytes], stream: str, most: int, check: Callable[[], None]) -> None:
        self._stream = stream
        self._most = most
        self._check = check
        self._entries = self._read(file)
        self.state: StreamState = self._first()
        self._consumers: list[ArchiveEntry] = self._next_consumers()

    def _invalid(self, why: object) -> ApiError:
        return api_error("JSStreamRestoreErrF", stream=self._stream, err=why)

    def _read(self, file: IO[bytes]) -> Iterator[ArchiveEntry]:
        frames, entries = FrameReader(), EntryReader()
        try:
            unpacked = 0
            while data := file.read(_PORTION):
                self._check()
                for chunk in frames.feed(data):
                    self._check()
                    unpacked += len(chunk)
                    if 0 <= self._most < unpacked:
                        raise api_error("JSAccountResourcesExceededErr", stream=self._stream)
                    yield from entries.feed(chunk)
        except (ArchiveFramingError, ArchiveEntryError) as error:
            raise self._invalid(error) from None
        if not (entries.has_ended and frames.is_complete):
            raise self._invalid("unexpected EOF")

    def _first(self) -> StreamState:
        entry = next(self._entries, END)
        if entry.name != STATE or entry.seq:
            raise self._invalid("it does not begin with the state of a stream")
        try:
            return decode_archived_state(self._text(entry))
        except UNREADABLE as error:
            raise self._invalid(error) from None

    def _text(self, entry: ArchiveEntry) -> bytes:
        if len(entry.data) > _LARGEST_TEXT:
            raise self._invalid(f"{entry.name!r} is too large")
        return entry.data

    def _next_consumers(self) -> list[ArchiveEntry]:
        consumers: list[ArchiveEntry] = []
        left = _ALL_TEXTS
        for entry in self._entries:
            if entry.seq or entry == END:
                self._entries = chain((entry,), self._entries)
                break
            if not entry.name.startswith(CONSUMERS):
                raise self._invalid(f"it has an entry of the unknown name {entry.name!r}")
            left -= len(self._text(entry))
            if left < 0 or len(consumers) >= self.state.consumer_count:
                raise self._invalid("it has more consumers than it names, or they are too large")
            consumers.append(entry)
        if len(consumers) != self.state.consumer_count:
            raise self._invalid(f"it has {len(consumers)} consumers, and names {self.state.consumer_count}")
        return consumers

    def consumers(self) -> Iterable[ArchivedConsumer]:
        """Yield the consumers, each decoded when it is asked for."""
        for entry in self._consumers:
            try:
                yield decode_archived(entry.data)
            except UNREADABLE as error:
                raise self._invalid(f"consumer {entry.name[len(CONSUMERS) :]!r}: {error}") from None

    def messages(self) -> Iterator[list[ArchivedMessage]]:
        """Yield the messages, in portions."""
        portion: list[ArchivedMessage] = []
        size = 0
        for name, ts, seq, hdr, data in self._entries:
            if not seq:
                # The last entry; another one without a sequence has no place among messages.
                if name:
                    raise self._invalid(f"it has an entry of the unknown name {name!r}")
                continue
            portion.append(ArchivedMessage(seq, ts, name, hdr or None, data))
            size += len(data)
            if size >= _PORTION or len(portion) >= _MOST:
                yield portion
                portion, size = [], 0
        yield portion


_FRAME: Final = 1 << 20


class ArchiveWriter:
    """Makes the bytes of one archive, in order: what its methods return, joined, is the archive."""

    def __init__(self) -> None:
        self._frames = FrameWriter()

    def opening(self, state: StreamState, consumers: Sequence[ArchivedConsumer]) -> bytes:
        entries = [encode_entry(ArchiveEntry(STATE, data=msgspec.json.encode(state)))]
        entries += [
            encode_entry(ArchiveEntry(f"{CONSUMERS}{one.config.name}", data=encode_archived(one))) for one in consumers
        ]
        return self._frame_of([MAGIC, *entries])

    def messages(self, messages: Iterable[ArchivedMessage]) -> bytes:
        return self._frame_of(
            encode_entry(ArchiveEntry(subject, ts, seq, hdr or b"", data)) for seq, ts, subject, hdr, data in messages
        )

    def end(self) -> bytes:
        return self._frame_of([encode_entry(END)])

    def _frame_of(self, parts: Iterable[bytes]) -> bytes:
        data = b"".join(parts)
        return b"".join(self._frames.frame(data[at : at + _FRAME]) for at in range(0, len(data), _FRAME))
