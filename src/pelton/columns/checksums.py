"""CRC-32 of thousands of rows at once, with numpy: the functions of the same names in :mod:`pelton.storage`.

A CRC is linear: the checksum of a content followed by a row's sequence and time is the XOR of what each 16 bits
contribute. Tables of 256 KiB hold the contribution of each value of each 16 bits.
"""

from __future__ import annotations

from functools import cache
from struct import pack
from typing import Any, Final
from zlib import crc32

import numpy as np

Sums = np.ndarray[Any, np.dtype[np.uint32]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

_POSITION: Final = bytes(20)
_BITS: Final = 16
_SEQ_WORDS: Final = 4
_NONE: Final = crc32(_POSITION)


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
    sums = np.full(len(contents) // 4, crc32(_POSITION[:8] + pack("<qi", ts, -1)), np.uint32)
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
        for first in range(0, 8 * len(_POSITION), _BITS)
    ]
    contents = [
        table([crc32(_POSITION, 1 << first + bit) ^ _NONE for bit in range(_BITS)]) for first in range(0, 32, _BITS)
    ]
    return positions + contents


def table(contributions: list[int]) -> Sums:
    """Return the contribution of every value of some bits, given the contribution of each bit."""
    found = np.zeros(1, np.uint32)
    for contribution in contributions:
        found = np.concatenate([found, found ^ np.uint32(contribution)])
    return found
