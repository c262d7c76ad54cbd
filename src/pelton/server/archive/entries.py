"""The entries of an archive: its state, its consumers, its messages, and a last one without a name.

After eight bytes that name the format, an entry is: length of its name, time (ns), sequence, length of the header
block, length of the payload, as varints; then name, header block and payload. Only messages have a sequence; the name
of a message is its subject.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

MAGIC: Final = b"NATSARC1"
STATE: Final = "state.json"
CONSUMERS: Final = "consumers/"
_LONGEST_NAME: Final = 1 << 16
_LARGEST: Final = 64 << 20
_TIMES: Final = range(-(1 << 63), 1 << 63)
_FIELDS: Final = 5
_MOST_VARINT: Final = 10


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
    if name > _LONGEST_NAME or hdr + size > _LARGEST or seq >= 1 << 63:
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
    for byte in data[position : position + _MOST_VARINT]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    if shift >= 7 * _MOST_VARINT:
        raise ArchiveEntryError("a number is too large")
    return 0, -1
