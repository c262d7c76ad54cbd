"""Rows without headers by columns, as bytes: what becomes many rows without an object of Python's a row."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Final

import msgspec

FIELD: Final = 8
"""The digits of a number in ``pieces``; a row's two stand behind one digit that tells nothing."""

_LENGTH: Final = 0xFF
_SHIFT: Final = 8
_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)


class Columns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Rows that have no place yet, in order; numbers in the machine's order of bytes.

    ``subjects`` holds each subject once, end to end; ``spots`` where that of each row lies (uint32: begin << 8 |
    length). ``payloads`` lie end to end, each ``length`` long; where that is -1, ``pieces`` says where the payload of
    each row begins (from 1 on) and how long it is, in decimal digits. ``contents`` are the rows' checksums (uint32)
    before anything is known of their place: over subject and payload.
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
    """Return ``sum << 32 | spot`` of each row (int64): the two numbers that SQLite is handed a row."""
    low, high = array("I"), array("I")
    low.frombytes(spots)
    high.frombytes(sums)
    both = array("I", bytes(8 * len(low)))
    both[_LOW::2], both[_HIGH::2] = low, high
    return memoryview(both).cast("B").cast("q")
