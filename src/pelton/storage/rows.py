"""Rows: the types of what SQLite returns, and the checksum of a message's row.

SQLite stores a type with each value and not with the column, so its rows have no static types, and a damaged file may
contain anything. Every reader uses these functions, so this is the only place where rows get their types.

A CRC-32 over subject, header block, payload, sequence and time detects every single flipped bit of a row, in any
column, and any burst up to 32 bits. ``-1`` stands for an absent header block so that an empty one differs.

**Compressed payloads: how a row marks them, and how they are read back.**

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat, starmap
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

R = TypeVar("R")


class DamagedRowError(ValueError):
    """A row holds what nothing has written there: the file is damaged."""


def integer(value: object) -> int:
    """Return the value of an integer column. Raises DamagedRowError for anything else."""
    if isinstance(value, int):
        return value
    raise DamagedRowError(f"a row has {value!r} instead of an integer")


def integers(row: Iterable[object]) -> list[int]:
    """Return a row of integer columns. Raises DamagedRowError."""
    return [integer(value) for value in row]


def column(rows: Iterable[tuple[object, ...]]) -> list[int]:
    """Return the integers of rows with one column. Raises DamagedRowError."""
    return [integer(value) for (value,) in rows]


def text(value: object) -> str:
    """Return the value of a text column, even if it was read as a blob because it may be damaged."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def blob(value: object) -> bytes:
    """Return the value of a blob column. Raises DamagedRowError for anything else."""
    if isinstance(value, bytes):
        return value
    raise DamagedRowError(f"a row has {value!r} instead of a blob")


def decoded(kind: Callable[..., R], rows: Iterable[tuple[object, ...]]) -> list[R]:
    """Return rows as objects of a class whose fields are their columns, in this order.

    The values are not checked: this is for tables that only the engine writes, and where the time per row matters.
    """
    return [kind(*row) for row in rows]


_POSITION = struct.Struct("<qqi")

PlacedSums = Callable[[int, int, memoryview], bytes]
"""A function like :func:`placed_sums`, which may be faster."""

SumsOfColumns = Callable[[bytes, bytes, bytes, bytes], bytes]
"""A function like :func:`sums_of_columns`, which may be faster for many rows at a time: a CRC is linear."""


def row_checksum(seq: int, ts: int, subject: str, hdr: bytes | None, data: bytes) -> int:
    """Return the checksum of a row with these columns."""
    crc = crc32(data, crc32(subject.encode()))
    if hdr is None:
        return crc32(_POSITION.pack(seq, ts, -1), crc)
    return crc32(_POSITION.pack(seq, ts, len(hdr)), crc32(hdr, crc))


def row_checksums(
    sequences: Sequence[int],
    times: Sequence[int],
    subjects: Sequence[str],
    blocks: Sequence[bytes | None],
    payloads: Sequence[bytes],
) -> Iterator[int]:
    """Return the checksums of rows, given by columns."""
    if any(blocks) or b"" in blocks:
        return starmap(row_checksum, zip(sequences, times, subjects, blocks, payloads, strict=True))
    if subjects.count(subjects[0]) == len(subjects):
        begun: Iterable[int] = repeat(crc32(subjects[0].encode()))
    else:
        begun = map(crc32, map(str.encode, subjects))
    contents = map(crc32, payloads, begun)
    return map(crc32, map(_POSITION.pack, sequences, times, repeat(-1)), contents)


def rows_with_checksums(
    first: int, ts: int, subjects: Sequence[str], blocks: Sequence[bytes | None], payloads: Sequence[bytes]
) -> Iterable[tuple[int, int, str, bytes | None, bytes, int]]:
    """Return rows with consecutive sequences from ``first``, all stored at ``ts``: columns as in the table."""
    seqs, times = range(first, first + len(subjects)), [ts] * len(subjects)
    sums = row_checksums(seqs, times, subjects, blocks, payloads)
    return zip(seqs, times, subjects, blocks, payloads, sums, strict=True)


def placed_sums(first: int, ts: int, contents: memoryview) -> bytes:
    """Return the checksums of rows without headers, with consecutive sequences from ``first``, all stored at ``ts``.

    ``contents`` are checksums over subject and payload: uint32 in native byte order, like the result.
    """
    begun = contents.cast("I")
    positions = map(_POSITION.pack, range(first, first + len(begun)), repeat(ts), repeat(-1))
    return struct.pack(f"{len(begun)}I", *map(crc32, positions, begun))


def sums_of_columns(seqs: bytes, times: bytes, header_lengths: bytes, contents: bytes) -> bytes:
    """Return the checksums of rows from columns: int64, int64, int32 (-1: no headers), uint32, in native byte order.

    ``contents`` are checksums over subject, payload and header block: all except sequence and time.
    """
    columns = memoryview(seqs).cast("q"), memoryview(times).cast("q"), memoryview(header_lengths).cast("i")
    sums = map(crc32, map(_POSITION.pack, *columns), memoryview(contents).cast("I"))
    return struct.pack(f"{len(contents) // 4}I", *sums)


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
