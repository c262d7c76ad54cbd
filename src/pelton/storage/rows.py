"""Rows: the types of what SQLite returns, and the checksum of a message's row.

SQLite stores a type with each value and not with the column, so its rows have no static types, and a damaged file may
contain anything. Every reader uses these functions, so this is the only place where rows get their types.

A CRC-32 over subject, header block, payload, sequence and time detects every single flipped bit of a row, in any
column, and any burst up to 32 bits. ``-1`` stands for an absent header block so that an empty one differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat, starmap
from struct import Struct, pack
from typing import TypeVar
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


_POSITION = Struct("<qqi")

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
    return pack(f"{len(begun)}I", *map(crc32, positions, begun))


def sums_of_columns(seqs: bytes, times: bytes, header_lengths: bytes, contents: bytes) -> bytes:
    """Return the checksums of rows from columns: int64, int64, int32 (-1: no headers), uint32, in native byte order.

    ``contents`` are checksums over subject, payload and header block: all except sequence and time.
    """
    columns = memoryview(seqs).cast("q"), memoryview(times).cast("q"), memoryview(header_lengths).cast("i")
    sums = map(crc32, map(_POSITION.pack, *columns), memoryview(contents).cast("I"))
    return pack(f"{len(contents) // 4}I", *sums)
