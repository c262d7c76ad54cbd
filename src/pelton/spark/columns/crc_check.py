"""Whether thousands of rows meet their checksums, with one CRC over all payloads: a CRC is linear.

That of a content followed by N bytes of whatever is the exclusive or of theirs and of the content's, moved on by N
bytes. So the checksum of payloads end to end is made of those of each; and where it does not meet what the rows' own
checksums make it, a row is damaged. Each row has its own place among the payloads, so what is wrong with one does not
hide what is wrong with another (but by the chance of one in 2^32 that any checksum leaves).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from pelton.spark.columns.checksums import Numbers, Sums, table

_POSITION: Final = 20
"""Bytes of where and when a row is stored, which follow its content."""
_OCTETS: Final = range(0, 32, 8)


class Repeated(NamedTuple):
    """Checksums of which each is many times: the different ones, and which of them each is."""

    different: Sums
    indices: np.ndarray[Any, np.dtype[np.int32]]


def crcs_match(positions: Sums, sums: Sums, subjects: Repeated, lengths: Numbers, payloads: bytes) -> bool:
    """Return whether rows without headers meet their ``sums``.

    ``positions`` are the checksums of where and when each is stored, ``subjects`` those of its subject. ``payloads``
    lie end to end, of ``lengths``.
    """
    ends = np.cumsum(lengths)
    # What is left of a row's own checksum is that of its payload, moved on by the position that follows.
    found = sums ^ positions ^ _before_content(subjects, lengths)
    # The payloads together say nothing about an empty one.
    if not lengths.all() and found[lengths == 0].any():
        return False
    wanted = _moved(np.array([crc32(payloads)], np.uint32), np.array([_POSITION]))
    return _end_to_end(found, ends[-1] - ends) == int(wanted[0])


def _before_content(subjects: Repeated, lengths: Numbers) -> Sums:
    """Return the checksums of subjects moved on by payload and position."""
    if (lengths == lengths[0]).all():
        different = _moved(subjects.different, np.full(len(subjects.different), lengths[0] + _POSITION))
        moved: Sums = different[subjects.indices]
        return moved
    return _moved(subjects.different[subjects.indices], lengths + _POSITION)


def _end_to_end(sums: Sums, distances: Numbers) -> int:
    """Return the one checksum of contents, each of which lies at its distance from the end; these never grow."""
    for moves in _moves():
        sums = _looked_up(moves, (distances & 0xFF) << 10, sums)
        distances = distances >> 8
        # What goes on by the same distance goes on together.
        starts = np.flatnonzero(np.diff(distances, prepend=-1))
        sums, distances = np.bitwise_xor.reduceat(sums, starts), distances[starts]
    return int(np.bitwise_xor.reduce(sums))


def _moved(sums: Sums, distances: Numbers) -> Sums:
    """Return checksums, each moved on by its own distance in bytes."""
    for place, moves in enumerate(_moves()):
        digits = (distances >> 8 * place) & 0xFF
        if digits.any():
            sums = _looked_up(moves, digits << 10, sums)
    return sums


def _looked_up(moves: Sums, rows: Numbers | int, sums: Sums) -> Sums:
    """Return what the four bytes of each checksum contribute, each by its table, which begin at ``rows``."""
    octets = sums.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
    found: Sums = moves[rows + octets[:, 0].astype(np.int64)]
    for place in range(1, 4):
        found ^= moves[rows + (octets[:, place] + np.int64(place << 8))]
    return found


@cache
def _moves() -> list[Sums]:
    """Return tables that move a checksum on by 0 to 255 bytes, times 1, 256 and 65,536: 4 x 256 values each."""
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
