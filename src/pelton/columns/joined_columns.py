"""Splits the columns that SQLite joined and verifies them: ``pelton.storage.SplitColumns`` with numpy and Arrow."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from pelton.columns.arrow_batches import array_of
from pelton.columns.checksums import Numbers, Sums, positions
from pelton.columns.crc_check import Repeated, crcs_match
from pelton.storage import SUM_DIGITS, Joined, Split

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
    """Parse checksums; None if one is longer: that of a packed row."""
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
