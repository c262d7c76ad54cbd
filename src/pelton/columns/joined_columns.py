"""Splits the columns that SQLite joined and verifies them: ``pelton.storage.SplitColumns`` with numpy and Arrow.

**Verifies the CRC-32 of thousands of rows with one CRC over all payloads, because a CRC is linear.** The CRC of a
content followed by N bytes is the XOR of the CRC of those bytes and of the content's CRC shifted by N bytes. So the CRC
of all payloads, concatenated, follows from the CRCs of each; if it differs from what the rows' stored checksums give, a
row is corrupted. Each row has its own position among the payloads, so errors in two rows do not cancel out (except for
the chance of one in 2^32 that any CRC-32 leaves).

**CRC-32 of thousands of rows at once, with numpy: the functions of the same names in :mod:`pelton.storage`.** A CRC is
linear: the checksum of a content followed by a row's sequence and time is the XOR of what each 16 bits contribute.
Tables of 256 KiB hold the contribution of each value of each 16 bits.
"""

from __future__ import annotations

from functools import cache
from struct import pack
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from pelton.columns.arrow_batches import array_of
from pelton.storage.bulk import SUM_DIGITS, Joined, Split

Sums = np.ndarray[Any, np.dtype[np.uint32]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

_NO_POSITION: Final = bytes(20)
_BITS: Final = 16
_SEQ_WORDS: Final = 4
_NONE: Final = crc32(_NO_POSITION)


def sums_of_columns(seqs: bytes, times: bytes, header_lengths: bytes, contents: bytes) -> bytes:
    """Return the checksums of rows, as the storage's function of this name does."""
    sums = np.full(len(contents) // 4, _NONE, np.uint32)
    tables = iter(_tables())
    for column, kind in ((seqs, "i8"), (times, "i8"), (header_lengths, "i4"), (contents, "u4")):
        values = _words(column, kind)
        words = int(kind[1]) // 2
        for word in range(words):
            sums ^= next(tables)[values[word::words]]
    return sums.tobytes()


def placed_sums(first: int, ts: int, contents: memoryview) -> bytes:
    """Return the checksums of consecutive rows, as the storage's function of this name does."""
    seqs, begun = np.arange(first, first + len(contents) // 4, dtype="<i8").view("<u2"), _words(contents, "u4")
    # What all rows have in common is computed once.
    sums = np.full(len(contents) // 4, crc32(_NO_POSITION[:8] + pack("<qi", ts, -1)), np.uint32)
    tables = _tables()
    for word in range(_SEQ_WORDS):
        sums ^= tables[word][seqs[word::_SEQ_WORDS]]
    for word, contributions in enumerate(tables[-2:]):
        sums ^= contributions[begun[word::2]]
    return sums.tobytes()


def positions(seqs: Numbers, times: Numbers) -> Sums:
    """Return the checksums of the sequences and times of rows without headers; there must be at least one row."""
    sums = np.full(len(seqs), crc32(pack("<qqi", seqs[0], times[0], -1)), np.uint32)
    for values, first in ((seqs, 0), (times, _SEQ_WORDS)):
        varied = int(np.bitwise_or.reduce(values ^ values[0]))
        words = _words(values, "i8").reshape(-1, _SEQ_WORDS)
        for word, contributions in enumerate(_tables()[first : first + _SEQ_WORDS]):
            if varied >> _BITS * word & 0xFFFF:
                sums ^= contributions[words[:, word]] ^ contributions[words[0, word]]
    return sums


def _words(column: memoryview | bytes | Numbers, kind: str) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return np.frombuffer(column, kind).astype(f"<{kind}", copy=False).view("<u2")


@cache
def _tables() -> list[Sums]:
    """Return the tables of each 16 bits of a row: first of sequence and time, then of the content's checksum."""
    positions = [
        table([crc32((1 << first + bit).to_bytes(20, "little")) ^ _NONE for bit in range(_BITS)])
        for first in range(0, 8 * len(_NO_POSITION), _BITS)
    ]
    contents = [
        table([crc32(_NO_POSITION, 1 << first + bit) ^ _NONE for bit in range(_BITS)]) for first in range(0, 32, _BITS)
    ]
    return positions + contents


def table(contributions: list[int]) -> Sums:
    """Return the contribution of every value of some bits, given the contribution of each bit."""
    found = np.zeros(1, np.uint32)
    for contribution in contributions:
        found = np.concatenate([found, found ^ np.uint32(contribution)])
    return found


_POSITION_BYTES: Final = 20
"""Bytes of a row's sequence and time, which follow its content."""
_OCTETS: Final = range(0, 32, 8)


class Repeated(NamedTuple):
    """Checksums that repeat: the distinct ones, and the index of each row's."""

    different: Sums
    indices: np.ndarray[Any, np.dtype[np.int32]]


def crcs_match(positions: Sums, sums: Sums, subjects: Repeated, lengths: Numbers, payloads: bytes) -> bool:
    """Return whether rows without headers match their stored ``sums``.

    ``positions`` are the checksums of each row's sequence and time, ``subjects`` those of its subject. ``payloads`` are
    concatenated, with ``lengths``.
    """
    ends = np.cumsum(lengths)
    # What remains of a row's checksum is its payload's checksum, shifted by the bytes that follow it.
    found = sums ^ positions ^ _before_content(subjects, lengths)
    # The CRC of all payloads does not cover an empty one.
    if not lengths.all() and found[lengths == 0].any():
        return False
    wanted = _shift(np.array([crc32(payloads)], np.uint32), np.array([_POSITION_BYTES]))
    return _sum_of_contents(found, ends[-1] - ends) == int(wanted[0])


def _before_content(subjects: Repeated, lengths: Numbers) -> Sums:
    """Return the checksums of subjects, shifted by payload, sequence and time."""
    if (lengths == lengths[0]).all():
        different = _shift(subjects.different, np.full(len(subjects.different), lengths[0] + _POSITION_BYTES))
        shifted: Sums = different[subjects.indices]
        return shifted
    return _shift(subjects.different[subjects.indices], lengths + _POSITION_BYTES)


def _sum_of_contents(sums: Sums, distances: Numbers) -> int:
    """Return the CRC of concatenated contents from their CRCs and distances from the end, which never increase."""
    for tables in _shift_tables():
        sums = _looked_up(tables, (distances & 0xFF) << 10, sums)
        distances = distances >> 8
        # Contents with the same remaining distance are shifted together.
        starts = np.flatnonzero(np.diff(distances, prepend=-1))
        sums, distances = np.bitwise_xor.reduceat(sums, starts), distances[starts]
    return int(np.bitwise_xor.reduce(sums))


def _shift(sums: Sums, distances: Numbers) -> Sums:
    for place, tables in enumerate(_shift_tables()):
        digits = (distances >> 8 * place) & 0xFF
        if digits.any():
            sums = _looked_up(tables, digits << 10, sums)
    return sums


def _looked_up(tables: Sums, rows: Numbers | int, sums: Sums) -> Sums:
    """Return the XOR of what the four bytes of each checksum contribute, by the tables that begin at ``rows``."""
    octets = sums.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
    found: Sums = tables[rows + octets[:, 0].astype(np.int64)]
    for place in range(1, 4):
        found ^= tables[rows + (octets[:, place] + np.int64(place << 8))]
    return found


@cache
def _shift_tables() -> list[Sums]:
    """Return tables that shift a checksum by 0 to 255 bytes, times 1, 256 and 65,536: 4 x 256 values each."""
    still = np.concatenate([np.arange(256, dtype=np.uint32) << np.uint32(8 * place) for place in range(4)])
    one = [crc32(b"\0", 1 << bit) ^ crc32(b"\0") for bit in range(32)]
    step = np.concatenate([table(one[first : first + 8]) for first in _OCTETS])
    found = []
    for _ in _OCTETS[:3]:
        tables = [still]
        for _ in range(256):
            tables.append(_looked_up(step, 0, tables[-1]))
        step = tables.pop()
        found.append(np.concatenate(tables))
    return found


_SPACE: Final = b" "
_NOT_IN_NUMBERS: Final = b" -"
_ZERO: Final = ord("0")
# The weight of each digit, except the first.
_DIGITS: Final = np.array([0, *(10.0**exponent for exponent in reversed(range(SUM_DIGITS - 1)))])


def split_columns(joined: Joined) -> Split | None:
    """Return the rows as columns; None if any row is packed, corrupted, or otherwise not plain."""
    if not joined.rows:
        return Split(b"", b"", b"", b"", b"")
    lengths, times = (_numbers(text, joined.rows) for text in (joined.payload_lengths, joined.times))
    seqs = np.arange(joined.rows) if joined.seqs is None else _numbers(joined.seqs, joined.rows)
    sums, subject_lengths = _sums(joined.sums), _between_spaces(joined.subjects, joined.rows)
    if lengths is None or times is None or seqs is None or sums is None or subject_lengths is None:
        return None
    if lengths.min() < 0 or lengths.sum() != len(joined.payloads):
        return None
    seqs, times = seqs + joined.first, times + joined.since
    subjects = joined.subjects.translate(None, _SPACE)
    subject_sums = _sums_of(subjects, subject_lengths)
    if not crcs_match(positions(seqs, times), sums, subject_sums, lengths, joined.payloads):
        return None
    columns = (seqs, times, subject_lengths, lengths.astype(np.int32))
    seqs_, times_, subject_lengths_, lengths_ = (column.tobytes() for column in columns)
    return Split(seqs_, times_, subjects, subject_lengths_, lengths_)


def _numbers(text: bytes, rows: int) -> Numbers | None:
    """Parse numbers separated by spaces; None if they are not numbers, or not as many as rows."""
    first, _, _ = text.partition(_SPACE)
    if first.isdigit() and text == ((first + _SPACE) * rows)[:-1]:
        return np.full(rows, int(first), np.int64)
    if not text.translate(None, _NOT_IN_NUMBERS).isdigit() or text.count(_SPACE) != rows - 1:
        return None
    found = np.fromstring(text, np.int64, sep=" ")
    return found if len(found) == rows else None


def _sums(text: bytes) -> Sums | None:
    """Parse checksums; None if one is longer: a packed row's is."""
    if len(text) % SUM_DIGITS or not text.isdigit():
        return None
    digits = np.frombuffer(text, np.uint8).reshape(-1, SUM_DIGITS)
    found = digits @ _DIGITS - _ZERO * _DIGITS.sum()
    return found.astype(np.uint32) if found.max() <= 0xFFFF_FFFF and (digits[:, 0] == _ZERO + 1).all() else None


def _between_spaces(texts: bytes, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
    """Return the lengths of texts separated by spaces; None if there are not as many as rows."""
    spaces = np.flatnonzero(np.frombuffer(texts, np.uint8) == ord(_SPACE))
    if len(spaces) != rows - 1:
        return None
    return (np.diff(spaces, prepend=-1, append=len(texts)) - 1).astype(np.int32)


def _sums_of(texts: bytes, lengths: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Repeated:
    """Return the checksum of each text, computed once for each distinct text."""
    found = array_of(pa.binary(), texts, lengths.tobytes()).dictionary_encode()
    different = np.array([crc32(text) for text in found.dictionary.to_pylist()], np.uint32)
    return Repeated(different, found.indices.to_numpy())
