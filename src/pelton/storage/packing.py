"""Compressed payloads: how a row marks them, and how they are read back.

The ``crc`` column of a row has the checksum in its low 32 bits. The high bits are 0 for an uncompressed payload, else
the original length, and ``data`` is a raw deflate stream. The checksum covers the stored bytes and that length, so a
flipped bit is detected before anything is decompressed.

Rows are packed when they are written and unpacked when they are read, both inside this room: above it a row is as it
was published, with the checksum of that. A damaged packed row gets a checksum that nothing matches, so that
:func:`~pelton.storage.messages.intact` refuses it like any other.

Measured in ADR 0007: a payload is packed from 128 bytes on, and only if that saves at least an eighth of it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from pelton.storage.rows import row_checksum

RowValues = tuple[int, int, str, bytes | None, bytes, int]
"""The columns of a row as SQLite takes and returns them: rows in bulk keep this form."""


class MessageRow(NamedTuple):
    """A row of a message table."""

    seq: int
    ts: int
    subject: str
    hdr: bytes | None
    data: bytes
    crc: int


ORIGINAL_LENGTH: Final = "iif(crc > 4294967295, crc >> 32, length(data))"
"""SQL: the payload bytes of a row as they were published."""

_LEAST: Final = 128
_KEPT: Final = 7 / 8
_SUM: Final = 0xFFFF_FFFF
_DAMAGED: Final = -1
# Level 1, no header; a state of 64 KiB, which the allocator returns without a system call each time.
_LEVEL: Final = 1
_WINDOW: Final = -13
_MEMORY: Final = 6
_length = struct.Struct("<Q").pack


def pack(row: RowValues) -> RowValues:
    """Return a row with its payload compressed, or the row itself if that does not save enough."""
    seq, ts, subject, hdr, data, _ = row
    if len(data) < _LEAST:
        return row
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    small = deflate.compress(data) + deflate.flush()
    if len(small) > len(data) * _KEPT:
        return row
    return seq, ts, subject, hdr, small, len(data) << 32 | _packed_checksum(row, small, len(data))


def unpack(row: RowValues) -> RowValues:
    """Return a row with its payload as it was published."""
    _, _, _, _, _, crc = row
    # A flipped bit can change the type of a column; if this is not an integer, the checksum refuses the row.
    if crc.__class__ is not int or crc <= _SUM:
        return row
    return _unpacked(row)


def unpack_all(rows: list[RowValues]) -> list[RowValues]:
    """Return rows with their payloads as they were published; the same list if none is packed."""
    for _, _, _, _, _, crc in rows:
        if crc.__class__ is int and crc > _SUM:
            return [unpack(each) for each in rows]
    return rows


def _packed_checksum(row: RowValues, stored: bytes, length: int) -> int:
    seq, ts, subject, hdr, _, _ = row
    return zlib.crc32(_length(length), row_checksum(seq, ts, subject, hdr, stored))


def _unpacked(row: RowValues) -> RowValues:
    seq, ts, subject, hdr, stored, crc = row
    try:
        length = crc >> 32
        if _packed_checksum(row, stored, length) == crc & _SUM:
            data = zlib.decompress(stored, _WINDOW, length)
            if len(data) == length:
                return seq, ts, subject, hdr, data, row_checksum(seq, ts, subject, hdr, data)
    except (TypeError, ValueError, AttributeError, struct.error, zlib.error):
        pass
    return seq, ts, subject, hdr, stored, _DAMAGED
