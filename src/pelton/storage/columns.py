"""Rows without headers by columns, as bytes, which become many rows without a Python object per row."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Final

import msgspec

FIELD: Final = 8
"""The digits of a number in ``pieces``; each row has two numbers, after one digit without meaning."""

_LENGTH: Final = 0xFF
_SHIFT: Final = 8
_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)


class Columns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Rows that have no sequence yet, in order; numbers in native byte order.

    ``subjects`` has each subject once, concatenated; ``spots`` has the position of each row's subject (uint32: begin <<
    8 | length). ``payloads`` are concatenated, each ``length`` long; if that is -1, ``pieces`` has the start (from 1)
    and the length of each row's payload, in decimal digits. ``contents`` are the rows' checksums (uint32) over subject
    and payload, without sequence and time.
    """

    count: int
    subjects: memoryview
    spots: memoryview
    payloads: memoryview
    length: int
    pieces: memoryview
    contents: memoryview

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over subjects and payloads."""
        subjects, payloads = bytes(self.subjects), bytes(self.payloads)
        spots, begin = self.spots.cast("I"), 0
        for row, spot in enumerate(spots):
            length = self.length if self.length >= 0 else self._length_of(row)
            first = spot >> _SHIFT
            yield subjects[first : first + (spot & _LENGTH)].decode(), payloads[begin : begin + length]
            begin += length

    def _length_of(self, row: int) -> int:
        end = (row + 1) * (2 * FIELD + 1)
        return int(bytes(self.pieces[end - FIELD : end]))


def pairs(spots: memoryview, sums: bytes) -> memoryview:
    """Return ``sum << 32 | spot`` for each row (int64): the two numbers per row that SQLite needs."""
    low, high = array("I"), array("I")
    low.frombytes(spots)
    high.frombytes(sums)
    both = array("I", bytes(8 * len(low)))
    both[_LOW::2], both[_HIGH::2] = low, high
    return memoryview(both).cast("B").cast("q")
