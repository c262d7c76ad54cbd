"""Packs messages from Arrow for a store's bulk append, with at most one Python object for each row.

That object is the payload, while its checksum is computed. Everything else is columnar: distinct subjects once, and
rows as indices into them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pelton.storage import FIELD, Columns
from pelton.streams import Packed

Numbers = np.ndarray[Any, np.dtype[Any]]

_LONGEST_SUBJECT: Final = 0xFF
_SHIFT: Final = 8
_SUBJECTS_END: Final = 1 << 24
_PAYLOADS_END: Final = 10**FIELD - 1
# Each portion counts its subjects anew, so that it is worth joining Spark's batches of 10,000 rows, as long as the
# portion stays in the CPU's cache.
_FEW_ROWS: Final = 24_576
_FEW_BYTES: Final = 4 * 1024 * 1024
# This many payloads stay in the CPU's cache, which makes their checksums a quarter faster.
_NEAR_ROWS: Final = 1024
_BYTES: Final = 8 * 1024 * 1024


def rebatched(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches and split large ones, so that each is worth its overhead and none fills the memory."""
    few: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        few.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _FEW_ROWS or size >= _FEW_BYTES:
            yield from _cut(_joined(few))
            few, rows, size = [], 0, 0
    if rows:
        yield from _cut(_joined(few))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= _BYTES or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _cut(part)


def pack(subjects: pa.StringArray, payloads: pa.BinaryArray) -> Packed | None:
    """Return packed messages without headers; None if a subject or all payloads together are too long for that."""
    coded = subjects.dictionary_encode()
    ends, texts = _offsets(coded.dictionary), coded.dictionary
    lengths = np.diff(ends)
    if lengths.max() > _LONGEST_SUBJECT or ends[-1] - ends[0] >= _SUBJECTS_END:
        return None
    codes = coded.indices.to_numpy()
    cuts = _offsets(payloads)
    if cuts[-1] - cuts[0] > _PAYLOADS_END:
        return None
    length, pieces = _pieces(cuts)
    spots = (ends[:-1] - ends[0]).astype(np.uint32) << _SHIFT | lengths.astype(np.uint32)
    columns = Columns(
        len(subjects),
        _between(texts, ends),
        memoryview(spots[codes]).cast("B"),
        _between(payloads, cuts),
        length,
        pieces,
        memoryview(_contents(texts, codes, payloads)).cast("B"),
    )
    counts = np.bincount(codes, minlength=len(texts))
    size = int(cuts[-1] - cuts[0] + (lengths * counts).sum())
    return Packed(columns, size, texts.to_pylist(), *_bounds(codes, len(texts)), counts.tolist())


def _offsets(values: pa.Array) -> Numbers:
    """Return the offsets of a string or binary array: where each value begins, and where the last one ends."""
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _between(values: pa.Array, ends: Numbers) -> memoryview:
    return memoryview(values.buffers()[2] or b"")[ends[0] : ends[-1]]


def _pieces(cuts: Numbers) -> tuple[int, memoryview]:
    """Return the length of all payloads; if lengths differ, -1 and the position of each in digits."""
    lengths = np.diff(cuts)
    length = int(lengths[0])
    if (lengths == length).all():
        return length, memoryview(b"")
    begins = (cuts[:-1] - cuts[0]).astype(np.int64) + 1
    digits = pc.cast(pa.array(10 ** (2 * FIELD) + begins * 10**FIELD + lengths), pa.string())
    return -1, memoryview(digits.buffers()[2])


def _contents(texts: pa.StringArray, codes: Numbers, payloads: pa.BinaryArray) -> array[int]:
    begun = np.fromiter(map(crc32, texts.cast(pa.binary()).to_pylist()), np.uint32, len(texts))[codes]
    sums = array("I")
    for first in range(0, len(codes), _NEAR_ROWS):
        few = slice(first, first + _NEAR_ROWS)
        sums.extend(map(crc32, payloads[few].to_pylist(), begun[few].tolist()))
    return sums


def _bounds(codes: Numbers, subjects: int) -> tuple[list[int], list[int]]:
    """Return the first and the last row of each subject."""
    places = np.arange(len(codes))
    firsts, lasts = np.empty(subjects, np.int64), np.empty(subjects, np.int64)
    # If an index occurs several times, the last assignment wins.
    lasts[codes] = places
    firsts[codes[::-1]] = places[::-1]
    return firsts.tolist(), lasts.tolist()
