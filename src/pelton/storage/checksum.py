"""The checksum of a message row.

A CRC-32 over subject, header block, payload, sequence and time finds every single flipped bit of a row,
whichever column it is in, and any burst up to 32 bits. ``-1`` stands for an absent header block so that an
empty one differs.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

_POSITION = Struct("<qqi")


def row_checksum(seq: int, ts: int, subject: str, hdr: bytes | None, data: bytes) -> int:
    """Return the checksum that belongs to a row with these columns."""
    crc = crc32(data, crc32(subject.encode()))
    if hdr is None:
        return crc32(_POSITION.pack(seq, ts, -1), crc)
    return crc32(_POSITION.pack(seq, ts, len(hdr)), crc32(hdr, crc))
